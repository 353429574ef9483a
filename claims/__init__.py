"""What README and docs claim was measured: the commands that measure it, their results, and the marks in the text."""
