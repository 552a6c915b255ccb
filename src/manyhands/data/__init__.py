"""What is learned from: datasets, the order of their samples, and where they come from."""

from manyhands.data.base import Dataset, Split, load

__all__ = ["Dataset", "Split", "load"]
