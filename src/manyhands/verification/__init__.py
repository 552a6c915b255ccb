"""`manyhands verify`: whether n workers give the answer of one worker (`verify`), up to round-off (`roundoff`)."""
