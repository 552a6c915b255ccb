"""`manyhands crossval`: k-fold cross-validation, with folds and data in parallel."""
