"""What the commands share: options, help, progress, printed configs, and the console."""
