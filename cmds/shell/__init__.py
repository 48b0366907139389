"""Base of all commands: options, messages, Ctrl-C, files, the way to an exit status."""
