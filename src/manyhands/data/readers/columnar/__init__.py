"""Typed columns in Parquet and Arrow files, as arrays or as rows."""
