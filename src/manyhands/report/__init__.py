"""Reports drawn from stored records: tables, words, figures, one HTML page. Needs neither torch nor MPI.

`files.py` writes them; it is not imported here, since a terminal needs the tables alone.
"""
