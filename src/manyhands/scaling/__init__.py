"""`manyhands scale`: run a task on many numbers of workers, and say how it scales.

| file | does |
| --- | --- |
| `request` | what a sweep was asked for, checked |
| `defaults` | what the command line must know before torch is imported |
| `cells` | the combinations of engine, strategy, workers and sizes that a sweep runs |
| `checks` | what is refused or said before the first run |
| `sweep` | the runs, interleaved, within the budget |
| `store` | the folders of sweeps |
| `observer` | who is shown the progress |
| `analysis/` | rows, fitted laws, and where the lost time went |
"""
