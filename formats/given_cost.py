"""What a file of costs says, whatever its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> names of what it joins, for the costs of other files of this kind; a file with any
    has no costs."""
