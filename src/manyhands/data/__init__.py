"""What is learned from: datasets, the order of their samples, and where they come from."""

from manyhands.data.base import load
from manyhands.data.split import Dataset, Split

__all__ = ["Dataset", "Split", "load"]
