"""The Reformer's attention: hashing, buckets, chunks, and shared queries and keys (arXiv:2001.04451)."""
