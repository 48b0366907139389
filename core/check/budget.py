"""How much work the verification of certificates may be, counted in steps, not in seconds."""

from __future__ import annotations

from dnnp.core.check.fields import UncheckedError

MOST_STEPS = 20_000_000
"""Looks at an item, a pin or a word of a bit mask; seconds on a slow machine."""

WORD = 64
"""Bits of a mask that one step looks at."""


class Budget:
    """Steps that are left, for all certificates of a stream together."""

    def __init__(self) -> None:
        self.most = self.left = MOST_STEPS

    def spend(self, steps: int) -> None:
        """Take steps away before they are made.

        Raises
        ------
        UncheckedError
            There are not so many left.
        """
        self.left -= steps
        if self.left < 0:
            raise UncheckedError(f"it takes more than {self.most} steps to verify")
