"""Adaptive attention span (arXiv:1905.07799)."""
