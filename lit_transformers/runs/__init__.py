"""Runs: one model on one kind of data, from a config to a record."""
