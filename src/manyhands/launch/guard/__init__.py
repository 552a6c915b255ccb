"""A small parent process of each rank that outlives the rank, and reports how it ended.

| file | does |
| --- | --- |
| `process` | the guard itself, and the words for an exit status (`cause_of`) |
| `state` | what a rank tells its guard: step, phase, and who knows of a failure |
| `meeting` | join the other ranks through MPI or torchrun, and tell the guard |
| `pmi` | relay PMI messages, and abort a run through its starter |
| `siblings` | ranks of this host that ended before MPI_Init |
| `segments` | MPICH's shared memory, freed however ranks end |
"""
