"""Synthesizer: attention with synthetic logits (arXiv:2005.00743)."""
