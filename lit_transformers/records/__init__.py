"""What a run leaves on disk: the names of its files, its record and its environment."""
