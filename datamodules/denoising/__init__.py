"""Pairs of a damaged text and what is to be written of it: the data that encoder-decoders are pretrained on."""
