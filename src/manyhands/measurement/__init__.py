"""How times are measured, for sweeps, calibrations, validations and the papers' tables.

| file | does |
| --- | --- |
| `measure` | one run in a process of its own |
| `trial` | some steps in this process, to measure how long one takes |
| `calls` | a log of every call that a thread makes, and the time of each function |
| `budget` | the steps and repeats that fit into a time budget |
| `stats` | medians with confidence intervals, and the figures of scaling |
"""
