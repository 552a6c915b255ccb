"""The scaling lab: measure a task on many workers, fit the laws of scaling, say in words where the time went."""
