"""The measurements in README and docs: the commands that measure them, their results, and the marks in the text."""
