"""Where long work stands: what is being done, what was found, how much is left."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Standing(NamedTuple):
    """Where long work stands, as far as that is known.

    It is `doing` something, the best answer has a `value` and none can be below the `bound` (of
    `what`, if that is not the objective), and a `share` of the work is done.
    """

    doing: str = ""
    """What is being done, in a word or two; empty: the same as before."""
    value: float = inf
    """Objective of the best answer so far; inf: there is none."""
    bound: float = 0.0
    """No answer has a smaller objective; 0: nothing is proven."""
    share: float | None = None
    """Share of all the work that is done, from 0 to 1; None: it is not known."""
    what: str = ""
    """What `value` and `bound` are, such as `period`; empty: the same as before."""
    in_seconds: bool = False
    """Whether they are in seconds; else their unit is not known."""

    @property
    def gap(self) -> float | None:
        """Gap between value and bound, relative to the value; None: one of them is not known."""
        if not 0 < self.value < inf or self.bound <= 0:
            return None
        return max(self.value - self.bound, 0.0) / self.value

    def after(self, before: Standing) -> Standing:
        """What is known with what was known before: nothing gets worse.

        >>> Standing("annealing", value=3.0, share=0.2).after(Standing(value=2.0, share=0.5))
        Standing(doing='annealing', value=2.0, bound=0.0, share=0.5, what='', in_seconds=False)
        """
        value, bound = self.value, self.bound
        if self.what in ("", before.what):
            value, bound = min(value, before.value), max(bound, before.bound)
        known = [share for share in (self.share, before.share) if share is not None]
        return Standing(
            self.doing or before.doing,
            value,
            bound,
            max(known) if known else None,
            self.what or before.what,
            self.in_seconds or before.in_seconds,
        )
