"""alpha-entmax attention: the mixer, and weights from scores (arXiv:1905.05702, arXiv:1909.00015)."""
