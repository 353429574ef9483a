"""Attention over patterns: which keys a query may see, the masks of these pairs, and the executors."""
