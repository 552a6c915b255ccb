"""`manyhands verify`: whether n workers give the answer of one (`verify`), to round-off and no further (`roundoff`)."""
