"""The site of the documentation: its pages, what is generated for it, and the code blocks that tests run."""
