"""`manyhands calibrate --device cuda`: measure what steps, copies and calls take on this machine's GPUs.

| file | does |
| --- | --- |
| `calibrate` | the rounds, within the budget, and the calibration that they give |
| `steps` | steps by rows, in runs as `manyhands train` makes them; one pass over the gradients, one update |
| `calls` | copies to and from a GPU; calls of nccl, or a formula where there is one GPU |
"""
