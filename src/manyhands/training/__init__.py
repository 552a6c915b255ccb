"""One rank's part in a run.

| file | does |
| --- | --- |
| `job` | what a launcher hands to every rank, and the objects that the rank works with |
| `loop` | the training loop: joins data, replica, strategy and comm, and reads straight down |
| `step` | one step, also of the simulator and the calibration: gradients, exchange and update |
| `plan` | which rows of which global batch a rank computes in each step |
| `schedule` | the learning rate of each step: warm-up, decay, scaling with the batch |
| `meter` | where a step's time goes: computing, communication or waiting |
| `journal` | what a run writes on its way: losses, progress, evaluations, checkpoints |
| `checkpoint` | the files that a run is resumed from |
| `evaluate` | loss and accuracy on the test set |
| `serving` | the part of a parameter server's rank |
| `summary` | what a run leaves: its record, and the timeline of some steps |
| `agreement` | whether all ranks hold the same data and the same model, before the first step |
| `caveats` | why several workers may not give the answer of one |
| `watch` | what a rank reports to its launcher, and how it learns that it should stop |
"""
