"""Runs as experiment trackers keep them, read into the rows of a table."""
