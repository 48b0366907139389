"""The best of what a search has found so far: the answer where it does not come to its end."""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

S = TypeVar("S")


class Kept(Generic[S]):
    """The best of what a search has found so far."""

    def __init__(self) -> None:
        self.split: S | None = None
        self.value = inf
        self.method = ""

    def keep(self, split: S, value: float, method: str) -> None:
        """Take over a split, if it is better."""
        if value < self.value:
            self.split, self.value, self.method = split, value, method
