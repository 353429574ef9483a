"""The common parts of the commands: options, help, progress, printed configs, and the console."""
