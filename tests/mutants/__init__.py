"""Faults that are planted one at a time, to see which tests notice: ``python -m tests.mutants``."""
