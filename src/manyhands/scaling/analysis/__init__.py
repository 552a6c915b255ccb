"""Analysis of the runs of a sweep.

| file | does |
| --- | --- |
| `analyse` | all of the following, from a sweep's runs |
| `measured` | look up the runs, the baseline and the probe of a cell |
| `rows` | the table: time, speed-up, efficiency, Karp–Flatt |
| `fits` | the laws of Amdahl, Gustafson and Gunther (USL), with intervals |
| `ranks` | a step as its typical rank sees it: a slow rank, stragglers, uneven shares, other programs |
| `losses` | the lost time of a step, by cause |
| `explain` | the same in words |
| `remedies` | what to try, and the gain to expect |
"""
