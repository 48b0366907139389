"""Values that the programs here take on the command line."""

from __future__ import annotations

import argparse


def seconds(text: str) -> float:
    """A time above 0, of at most an hour."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0, of at most 3600")
    return value


def count(text: str) -> int:
    """A number of things, at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)
