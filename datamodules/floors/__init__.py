"""Floors: values of simple predictors on the same data. The predictors know nothing of the subject of a study."""
