"""What is learned from: datasets, the order of their samples, and where they come from."""

from manyhands.data.base import load
from manyhands.data.convert import as_dataset
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import AnySplit, Dataset, Split

__all__ = ["AnySplit", "Dataset", "SampleSplit", "Split", "as_dataset", "load"]
