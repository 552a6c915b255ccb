"""Ranks on a Ray cluster: its start and end (`cluster`), one rank (`actor`), and who ends it with us (`guard`)."""
