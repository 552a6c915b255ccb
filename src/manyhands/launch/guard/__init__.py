"""A small parent of each rank that outlives it, and says how it ended.

| file | does |
| --- | --- |
| `process` | the guard itself |
| `state` | what a rank lets its guard know: how far it is, and who knows of a failure |
| `pmi` | end a rank's world through its launcher |
| `siblings` | ranks of this host that ended before MPI knew of them |
| `segments` | MPICH's shared memory, freed however ranks end |
"""
