"""Pairs of a source and a target: translation, summaries, answers."""
