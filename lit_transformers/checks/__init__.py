"""The requirements on parts, in this library and in plug-ins: the checks of check-plugin."""
