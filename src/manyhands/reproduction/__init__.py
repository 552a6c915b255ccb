"""`manyhands reproduce`: the papers' tables beside ours.

| file | does |
| --- | --- |
| `papers/` | one file for each paper: its published tables, and what of ours stands beside each figure |
| `base` | what a paper is made of |
| `run` | from the request to the record |
| `child` | one measurement, in a process of its own |
| `readings` | the figures, from runs |
| `compare`, `verdict`, `lost` | our tables beside theirs, and how they compare |
| `store` | the folders of reproductions |
"""
