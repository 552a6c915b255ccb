"""What the runs of a sweep say together.

| file | does |
| --- | --- |
| `analyse` | all of the following, from a sweep's runs |
| `measured` | the runs, to look up: baselines and probes of each cell |
| `rows` | the table: time, speed-up, efficiency, Karp–Flatt |
| `fits` | the laws of Amdahl, Gustafson and Gunther (USL), with intervals |
| `losses` | where the time of a slower step went |
| `explain` | the same in words |
| `remedies` | what to try, and what it would gain |
"""
