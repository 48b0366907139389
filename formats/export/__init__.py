"""Folders of exported stages, and plans for other programs."""
