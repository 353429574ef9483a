"""The Compressive Transformer: memory, compression and its losses (arXiv:1911.05507)."""
