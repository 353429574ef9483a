"""Pairs of a damaged text and the target that is to be written: the data for pretraining encoder-decoders."""
