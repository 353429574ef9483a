"""Text for language models: sources, documents in lanes, and their data module."""
