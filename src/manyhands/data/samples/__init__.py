"""Samples that are read one by one, such as images that are decoded and augmented: torch's map-style datasets."""
