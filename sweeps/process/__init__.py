"""The process of one run: its start, its order, its ranks and its end."""
