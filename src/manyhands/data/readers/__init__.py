"""Readers of real data: tables, image folders and tar shards, and the parts of a dataset in their folders."""
