"""The baselines by name, under one signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dnnp.core.baselines.cuts import CUTS, cut_order
from dnnp.core.baselines.greedy import greedy
from dnnp.core.baselines.local_search import local_search
from dnnp.core.baselines.metis import metis
from dnnp.core.baselines.pipedream import pipedream
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.plan import Block


@dataclass(frozen=True)
class Settings:
    """What a baseline may be told besides the problem; each heeds what concerns it."""

    order: str = "kahn"
    """Name in `ORDERS` of the topological order that greedy, uniform, params and single cut."""
    seed: int = 0
    effort: float = 1.0
    """Scales the work after which a search ends."""
    stop: Callable[[], bool] = lambda: False
    """Asked now and then: whether to return the best split so far."""
    warn: Callable[[str], None] = lambda message: None
    """Told what went wrong, or was cut short, without ending the search."""


Baseline = Callable[[SplitProblem, Settings], list[Block]]
"""Blocks to be priced by `make_plan`; InfeasibleError if the method has
no split within the limits, UnavailableError if a package is missing."""


def _cut_by(name: str) -> Baseline:
    """A baseline of `cuts`."""
    return lambda p, s: cut_order(p, name, s.order)


BASELINES: dict[str, Baseline] = {
    "greedy": lambda p, s: greedy(p, s.order),
    "local-search": lambda p, s: local_search(p, s.seed, effort=s.effort, stop=s.stop, warn=s.warn),
    "pipedream": lambda p, s: pipedream(p, s.stop, s.warn),
    "metis": lambda p, s: metis(p, s.seed),
    **{name: _cut_by(name) for name in CUTS},
}
"""Method of dnnp-partition -> function. Scotch is a program; `cmds.external` runs it."""
