"""Transformer variants, how they are trained and measured, and what one run of them is."""
