"""How times are measured, for sweeps, calibrations, validations and the papers' tables.

| file | does |
| --- | --- |
| `measure` | one run in a process of its own |
| `trial` | some steps in this process, to see how long one takes |
| `calls` | a log of every call that a thread makes, and the sum for each function |
| `budget` | what fits into the time that a command may take |
| `stats` | medians with confidence intervals, and the figures of scaling |
"""
