"""How a trained network writes: sampling, greedy decoding, beam search, generation from a prompt."""
