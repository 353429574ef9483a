"""Hyperparameter search: a search for every arm, with the same budget."""
