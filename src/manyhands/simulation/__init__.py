"""`manyhands simulate`: predict step times on nodes that do not exist, from a calibration.

| file | does |
| --- | --- |
| `request` | the checked request: numbers of nodes, strategies, a cluster |
| `simulate` | from the request to the record |
| `parts` | a task's network, and the measured parts of its step |
| `predict` | step times of a strategy on n workers, with intervals |
| `spread` | uncertainty: other seeds, other runs, extrapolation |
| `forms`, `messages` | closed forms: of collectives, and of strategies that send messages |
| `rows` | the table: speed-up, efficiency, cost |
| `train` | `--train`: each row trained by virtual ranks |
"""
