"""`manyhands advise`: the soonest ways to an accuracy within a budget of time or money.

| file | does |
| --- | --- |
| `request`, `prepare` | the options, and what they stand for: predictors, strategies, numbers of workers |
| `advise` | from the request to the record |
| `noise_scale` | the batch beyond which more workers stop paying (McCandlish et al. 2018) |
| `train` | how many steps a recipe needs |
| `search` | every engine, strategy, number of workers and batch, and which are the soonest |
| `reasons`, `record` | why, in words, and the record |
"""
