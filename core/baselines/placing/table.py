"""The placing methods by name, under one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dnnp.core.baselines.placing.baechi import m_etf, m_sct, m_topo
from dnnp.core.baselines.placing.getf import getf, getf_milp
from dnnp.core.baselines.placing.heft import heft, heft_congested
from dnnp.core.baselines.placing.placeto import placeto
from dnnp.core.baselines.placing.simple import greedy_operators, single
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.timeline import Placement


class Placer(Protocol):
    """A method that places tasks (`operators`).

    It raises InfeasibleError where it is proven that nothing fits, LimitError where nothing was
    found.
    """

    def __call__(
        self,
        problem: LatencyProblem,
        *,
        seed: int = 0,
        effort: float = 1.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Placement:
        """Place the tasks."""


PLACERS: dict[str, Placer] = {
    "single": single,
    "greedy": greedy_operators,
    "m-topo": m_topo,
    "m-etf": m_etf,
    "m-sct": m_sct,
    "heft": heft,
    "heft-congested": heft_congested,
    "getf": getf,
    "getf-milp": getf_milp,
    "placeto": placeto,
}
"""Method of dnnp-partition -> function; `greedy_blocks` is the one for `blocks`."""
