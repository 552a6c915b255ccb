"""This host: its cores and memory, what other programs use of them, and the energy it draws."""
