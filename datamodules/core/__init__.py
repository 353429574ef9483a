"""The parts that all data share: the interface, corpora on disk, tokenizers, loaders and the order of reading."""
