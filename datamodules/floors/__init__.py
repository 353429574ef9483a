"""Floors: what simple predictors reach on the same data, which know nothing of what a study asks about."""
