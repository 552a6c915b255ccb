"""One rank's part in a run.

| file | does |
| --- | --- |
| `job` | what a launcher hands to every rank, and what the rank works with |
| `loop` | the training loop: joins data, replica, strategy and comm, and reads straight down |
| `step` | one step, also of the simulator and the calibration: gradients, exchange and update, and what each took |
| `plan` | which rows of which global batch a rank computes in each step |
| `schedule` | the learning rate of each step: warm-up, decay, scaling with the batch |
| `meter` | where a step's time went, and what the ranks share about it now and then |
| `journal` | what a run writes while it goes on: losses, progress, evaluations, checkpoints |
| `checkpoint` | the files that a run goes on from |
| `evaluate` | loss and accuracy on the test set |
| `serving` | the part of a parameter server's rank |
| `summary` | what a run leaves: its record, and the timeline of some steps |
| `agreement` | whether all ranks hold the same data and the same model, before the first step |
| `caveats` | why several workers may not give the answer of one |
| `watch` | the seam between a rank at work and whoever looks after it |
"""
