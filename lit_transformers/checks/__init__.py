"""What is asked of parts, ours and those of plug-ins: the checks of check-plugin."""
