"""Parallel cross-validation."""

from manyhands.crossval.record import CrossvalRecord, CrossvalTable
from manyhands.crossval.run import cross_validate, tabulate

__all__ = ["CrossvalRecord", "CrossvalTable", "cross_validate", "tabulate"]
