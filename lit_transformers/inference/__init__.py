"""Use of a trained network: generation, translation and predictions for lines of text."""
