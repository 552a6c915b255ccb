"""This host: its cores and memory, their use by other programs, and the energy it draws."""
