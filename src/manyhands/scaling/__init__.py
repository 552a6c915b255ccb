"""`manyhands scale`: run a task on many numbers of workers, and say how it scales.

| file | does |
| --- | --- |
| `request` | the request for a sweep, checked |
| `defaults` | defaults that the command line imports before torch |
| `cells` | the combinations of engine, strategy, workers and sizes that a sweep runs |
| `checks` | checks before the first run |
| `sweep` | the runs, interleaved, within the budget |
| `store` | the folders of sweeps |
| `observer` | callbacks for progress and messages |
| `analysis/` | rows, fitted laws, and where the lost time went |
"""
