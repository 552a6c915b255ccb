"""Defaults of a profile. Imported by the command line before torch is."""

PROFILE_S = 4.0
"""How long the steps of a profile take together, if neither steps nor epochs were asked for."""
TRACE = 20
"""Steps in a profile's timeline, if not asked for otherwise: fewer in a short run."""
