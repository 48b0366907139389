"""Every search that narrows an interval ends, whatever its ends are: infinite, equal, denormal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.chain import chain_bound
from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError, UsageError
from dnnp.core.model.graph import Floats, singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.split.auto import solve
from dnnp.core.split.clusters.hierarchy import least
from dnnp.formats.graph import graph_of
from support.graphs import random_stream
from support.problems import chain, problem_of

TINY = 5e-324
HUGE = 1.7e308
ENDS = (0.0, TINY, 3 * TINY, 1e-310, 1.0, HUGE, inf)
LIMIT_S = 60.0
LONG = tuple(m for m in SPLITS if m in ("brkga", "mla", "mla-weighted", "ip", "placeto"))


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """Fail where something does not end."""

    def fail(*_: object) -> None:
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


class Threshold:
    """Targets are met from some loads on; it may find less than what it is asked for."""

    def __init__(self, loads: tuple[float, ...], value: float, found: float | None = None) -> None:
        self.loads, self.value, self.low, self.found = loads, value, 0.0, found
        self.passes, self.asked = len(loads), 0

    def decide(self, target: Floats, vary: int) -> tuple[float | None, float]:
        self.asked += 1
        assert self.asked < 5_000
        if all(t >= load for t, load in zip(target.tolist(), self.loads, strict=True)):
            return float(target[vary]) if self.found is None else self.found, inf
        return None, float(np.nextafter(target[vary], inf))


@pytest.mark.parametrize("load", ENDS)
def test_the_least_target(load: float) -> None:
    for value in ENDS:
        for low in (0.0, TINY, load):
            found = least(Threshold((load,), value), low)
            assert found <= value or low > value
        for other in ENDS:
            for stated in (None, 0.0, load):  # what is found may cost less than what was decided
                assert least(Threshold((load, other), value, stated), 0.0) >= 0.0


def scaled(seed: int, scale: float, *, training: bool, clusters: bool) -> SplitProblem:
    """A random graph whose times are multiples of a tiny or huge one."""
    graph = graph_of(random_stream(seed, 6, training=training))
    sent = graph.transfer_s * scale
    graph = replace(
        graph,
        times={name: time * scale for name, time in graph.times.items()},
        transfer_s=np.where(np.isnan(sent), scale, sent),
    )
    device = DeviceClass("dev", count=4, bandwidth_bytes_per_s=1.0)
    if clusters:
        device = replace(device, cluster_size=2, inner_bandwidth_bytes_per_s=4.0)
    objective = "gpipe" if training else "throughput"
    options = CostOptions(objective=objective, memory_model="sum")
    return SplitProblem(graph, singletons(graph), (device,), options)


@pytest.mark.parametrize("scale", [TINY, 1e-320, 1e-308, 1e300])
def test_methods_and_arguments(scale: float) -> None:
    for training, clusters in ((False, False), (False, True), (True, True)):
        problem = scaled(2, scale, training=training, clusters=clusters)
        solved = bounded = 0
        for method in SPLITS:
            if method in LONG:
                continue
            try:
                solve(problem, MethodOptions(method=method), SearchContext(effort=0.1))
            except (InfeasibleError, LimitError, UnavailableError, UsageError):
                continue
            solved += 1
        blocks = solve(problem, MethodOptions(method="slice")).blocks
        known = BoundTask("ordered", blocks, problem.value(blocks))
        for name in ("simple", "chain", "zone-cut", "node-cut", "ideal", "halves", "pairs"):
            assert name in BOUNDS
            try:
                proof = bound(problem, known, name, SearchContext(effort=0.1))
            except UsageError:
                continue
            assert 0 <= proof.claim.value <= known.value
            bounded += 1
        assert solved > 10
        assert bounded > 1


@pytest.mark.parametrize("time", [TINY, 2 * TINY, 1e-310, 1e300])
def test_a_chain(time: float) -> None:
    for count in (1, 2, 3):
        problem = problem_of(chain(time, 0.0, time), DeviceClass("dev", count=count))
        chain_bound(problem)


def test_a_cover_of_few_quanta() -> None:
    """The largest load of a cover may be the target itself."""
    problem = scaled(1, 1e-308, training=False, clusters=False)
    problem = problem.with_devices(replace(problem.devices[0], count=3))
    blocks = solve(problem, MethodOptions(method="slice")).blocks
    known = BoundTask("ordered", blocks, problem.value(blocks))
    bound(problem, known, "cover", SearchContext(effort=0.1))
