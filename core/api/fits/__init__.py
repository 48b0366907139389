"""Loaded only where asked for: fits of devices and links, factors of runs, gradients, policies."""
