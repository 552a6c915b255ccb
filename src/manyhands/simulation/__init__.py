"""`manyhands simulate`: predict step times on nodes that are not there, from a calibration.

| file | does |
| --- | --- |
| `request` | what was asked for, checked: numbers of nodes, strategies, a cluster |
| `simulate` | from the request to the record |
| `parts` | what a task's steps and weights are |
| `predict` | step times of a strategy on n nodes, with intervals |
| `spread` | how sure they are: other seeds, other runs, what was not measured |
| `forms`, `messages` | closed forms: of collectives, and of strategies that send messages |
| `rows` | the table: speed-up, efficiency, cost |
| `train` | `--train`: each row trained by virtual ranks |
"""
