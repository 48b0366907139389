"""The best of what a search has found so far: the answer where it does not come to its end."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Generic, TypeVar

from dnnp.core.model.run import Run

S = TypeVar("S")


class Kept(Generic[S]):
    """The best of what a search has found so far."""

    def __init__(self) -> None:
        self.split: S | None = None
        self.value = inf
        self.method = ""

    def told_by(self, run: Run) -> Run:
        """The same run; what it keeps is kept here, and whoever watches sees its value."""

        def keep(split: S, value: float, method: str) -> None:
            self.keep(split, value, method)
            run.stands(value=value)

        return replace(run, keep=keep)

    def keep(self, split: S, value: float, method: str) -> None:
        """Take over a split, if it is better."""
        if value < self.value:
            self.split, self.value, self.method = split, value, method
