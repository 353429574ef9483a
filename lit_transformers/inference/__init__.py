"""A trained network at work: what it writes, translates and predicts for lines of text."""
