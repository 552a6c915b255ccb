"""Ranks on a Ray cluster: the cluster (`cluster`), one rank (`actor`), and who ends a Ray of ours (`guard`)."""
