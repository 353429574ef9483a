"""Linformer: attention to projections of the keys (arXiv:2006.04768)."""
