"""`manyhands validate`: predict, write it down, run, compare."""
