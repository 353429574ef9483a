"""Rows of text in which symbols are hidden: the data that bidirectional encoders are pretrained on."""
