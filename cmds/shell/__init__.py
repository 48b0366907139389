"""What all commands share: options, messages, Ctrl-C, files, the way to an exit status."""
