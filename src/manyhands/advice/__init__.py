"""`manyhands advise`: the soonest ways to an accuracy within a budget of time or money.

| file | does |
| --- | --- |
| `request` | what was asked for, checked |
| `advise` | from the request to the record |
| `noise_scale` | the batch beyond which more workers stop paying (McCandlish et al. 2018) |
| `search` | every strategy and number of workers that may be worth it |
| `train` | how many steps each needs |
| `rank` | which are the soonest |
| `reasons`, `record` | why, in words, and the record |
"""
