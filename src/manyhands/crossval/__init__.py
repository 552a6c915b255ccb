"""`manyhands crossval`: k-fold cross-validation, with folds and data in parallel."""

from typing import TYPE_CHECKING

from manyhands._lazy import lazy

if TYPE_CHECKING:
    from manyhands.crossval.record import CrossvalRecord, CrossvalTable
    from manyhands.crossval.run import cross_validate, tabulate

__all__ = ["CrossvalRecord", "CrossvalTable", "cross_validate", "tabulate"]

__getattr__, __dir__ = lazy(
    __name__, {"CrossvalRecord": "record", "CrossvalTable": "record", "cross_validate": "run", "tabulate": "run"}
)
