"""`manyhands profile`: functions by their share of the time, on every rank.

| file | does |
| --- | --- |
| `profile` | from the request to the record |
| `lens` | time some steps of a rank call by call |
| `functions` | names, files and lines of functions |
| `defaults` | what the command line must know before torch is imported |
"""
