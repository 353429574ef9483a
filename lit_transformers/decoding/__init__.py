"""Writing with a trained model: decoding, sampling, generation from a prompt, translation line by line."""
