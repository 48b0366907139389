"""Rules of a placement: what users say by name of where nodes go, as nodes of the graph.

A rule names sets of nodes, its parts. No plan breaks it:

- `cut-before`: no stage holds a node of the part and one of what comes before it: ancestors that
  are not in the part, and have no ancestor in it. Nodes that only prepare weights, which follow
  from no input of the model, are free.
- `pin`: the part is on a device, one of several that its stage may have, or on those of a class.
- `together`: the part, of all its names, is on one device.
- `apart`: no device holds nodes of two parts.
- `layers-per-stage`: there is one stage for each part, which holds all of it.
- `exactly`: there are so many stages, none of them empty.

For latency in blocks a stage is all that a device holds; the pool of CPUs is one.
"""

from __future__ import annotations

from typing import NamedTuple

FORMS = {
    "cut-before": "NAME", "pin": "NAME=DEVICE", "together": "NAME[,NAME]", "apart": "NAME,NAME",
    "layers-per-stage": "N,N", "exactly": "N",
}  # fmt: skip
"""Rule -> what the option of its name takes."""


class Rule(NamedTuple):
    """One rule."""

    rule: str
    names: tuple[str, ...] = ()
    """Names as they were given; of layers-per-stage the numbers."""
    parts: tuple[tuple[int, ...], ...] = ()
    """Ids of the nodes of each name, or of each stage; of together, those of all names."""
    device: str = ""
    """pin: the device, or the class."""
    stages: int = 0
    """exactly, layers-per-stage: number of stages."""

    @property
    def words(self) -> str:
        """The rule as the option that states it."""
        given = ",".join(self.names) + f"={self.device}" * bool(self.device)
        return f"--{self.rule} {given or self.stages}"

    @property
    def by_stage(self) -> bool:
        """True for what a stage may hold, or how many there are: not every method heeds it."""
        return self.rule not in ("pin", "together")
