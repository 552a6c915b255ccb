"""The columns of every table; a new column is one `Column` in one of these files.

`table.py` has `Column` and `Table`, and writes Markdown and CSV; `cli/tables.py` prints a table on a terminal, and
`page.html` sets it on a page. The others hold the columns of sweeps, simulations, validations, advice and runs; a table
that only a terminal shows, such as that of `doctor`, is defined with its command.
"""
