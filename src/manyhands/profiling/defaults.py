"""Defaults of a profile, which the command line imports before torch."""

PROFILE_S = 4.0
"""Total time of the steps of a profile, if neither steps nor epochs are given."""
TRACE = 20
"""Steps in a profile's timeline, unless given; fewer in a short run."""
