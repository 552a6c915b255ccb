"""`manyhands reproduce`: the papers' tables beside ours.

| file | does |
| --- | --- |
| `papers/` | one file for each paper: its published tables, and the setting of ours for each figure |
| `base` | the parts of a paper's table |
| `run` | from the request to the record |
| `child` | one measurement, in a process of its own |
| `readings` | measured values by setting |
| `compare`, `verdict` | our tables beside theirs; the rules of comparison |
| `predict`, `variants` | simulate what has more workers than cores; tasks with a paper's data, to calibrate |
| `predicted` | predicted figures and their own verdicts |
| `store` | the folders of reproductions |
| `document` | one page over all records |
"""
