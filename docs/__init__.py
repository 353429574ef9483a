"""The site of the documentation: its pages, the parts that are generated, and the code blocks that tests run."""
