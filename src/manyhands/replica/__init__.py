"""What holds the weights."""

from manyhands.replica.base import Batch, Replica
from manyhands.replica.build import build

__all__ = ["Batch", "Replica", "build"]
