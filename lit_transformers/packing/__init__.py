"""Packed files of weights: few bits for weights of few levels or values, nothing for zeros, entropy-coded."""
