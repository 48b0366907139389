"""What a file of costs says, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GivenCost:
    """What took some time, as a file calls it."""

    name: str
    """As it stands in the file."""
    seconds: float
    parts: tuple[str, ...] = ()
    """Names of what it joins; empty: itself."""
    span: tuple[str, str] | None = None
    """Names of the first and the last of what it joins, where those between have none."""
    device: str | None = None
    """Device class; None: the file does not say."""
    line: int | None = None


@dataclass(frozen=True)
class CostFile:
    """All that a file says."""

    path: str
    kind: str
    """One of `records.COST_FILES`."""
    costs: tuple[GivenCost, ...]
    whole: bool
    """A profile: all that ran is in it."""
    caveat: str = ""
    """What the user must know about the times; empty: nothing."""
