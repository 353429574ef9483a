"""Weights of Hugging Face folders in and out: a mapping as data for each architecture, and the files around it."""
