"""Every search ends after counted work, on wide, deep, dense, empty and star-shaped graphs.

Counted are calls of kernels and questions whether to stop: a search that would not end asks, or
calls, without end. Solvers of programs are left out; linear programs that bounds solve are not.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from math import inf, isqrt
from threading import Lock
from typing import Any

import pytest

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.cost.latency import latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.kernels.kernel import Kernel
from dnnp.core.latency.solve import solve_latency
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.methods.schedules import ALL_SHAPES, RECIPES, SEARCHES
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError, UsageError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, Progress, SearchContext
from dnnp.core.schedule.auto import solve as solve_schedule
from dnnp.core.schedule.problem import Wanted
from dnnp.core.schedule.shapes import shape
from dnnp.core.split.auto import solve
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.graphs import header, node, tensor

Edges = list[tuple[int, int]]

PROGRAMS = {"ip", "cpsat", "getf", "getf-milp", "scotch", "metis", "placeto"}
"""Methods that hand the problem to a solver, or to another program."""

BY_SOLVER = {"no-dag", "no-io", "bottleneck", "guess", "exact", "auto"}
"""Bounds that do; `auto` asks them."""

BY_LINEAR_PROGRAM, FEW = {"cover", "same-block"}, 16
"""Bounds by linear programs that take long for more nodes; no large graph is tried."""

EFFORT, LARGE = 0.002, 5_000
NOT = (InfeasibleError, LimitError, UnavailableError, UsageError)


def wide(n: int, rng: random.Random) -> Edges:
    """Five layers, each node reads two of the one before."""
    width = max(n // 5, 1)
    return [(v - width + rng.randrange(-(v % width), width - v % width), v)
            for v in range(width, n) for _ in range(2)]  # fmt: skip


def dense(n: int, rng: random.Random) -> Edges:
    """Half of all pairs, of many nodes 12 for each."""
    wanted = min(n * (n - 1) // 4, 12 * n)
    return [(a, b) for a, b in (sorted(rng.sample(range(n), 2)) for _ in range(wanted))]


FAMILIES: dict[str, Callable[[int, random.Random], Edges]] = {
    "wide": wide,
    "deep": lambda n, rng: [(v - 1, v) for v in range(1, n)],
    "dense": dense,
    "empty": lambda n, rng: [],
    "star": lambda n, rng: [(0, v) for v in range(1, n)],
    "gathered": lambda n, rng: [(v, n - 1) for v in range(n - 1)],
    "chains": lambda n, rng: [(v - isqrt(n), v) for v in range(isqrt(n), n)],
}


def drawn(family: str, n: int) -> Graph:
    """A graph of a family, its times whole numbers."""
    rng = random.Random(f"{family} {n}")
    reads: list[list[int]] = [[] for _ in range(n)]
    for a, b in sorted(set(FAMILIES[family](n, rng))):
        reads[b].append(a)
    tensors = [tensor(v, "activation", rng.randint(1, 20)) for v in range(n)]
    nodes = []
    for v in range(n):
        times = dict.fromkeys(("dev", "cpu"), float(rng.randint(5, 100)))
        nodes.append(node(v, "Op", reads[v], [v], time_s=times))
    return graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


def problem(graph: Graph, k: int, *, cpus: bool = False, **options: Any) -> SplitProblem:
    devices = (DeviceClass("dev", count=k, bandwidth_bytes_per_s=1.0),)
    if cpus:
        devices += (DeviceClass("cpu", kind="cpu", count=1),)
    return SplitProblem(
        graph, singletons(graph), devices, CostOptions(memory_model="sum", **options)
    )


class Meter:
    """Counts work, and refuses more than `most`."""

    def __init__(self) -> None:
        self.spent, self.most, self.lock = 0, 0, Lock()
        self.heard: list[tuple[int, Progress]] = []
        """Steps so far, and what was then reported."""

    def hear(self, said: Progress) -> None:
        with self.lock:
            before = self.heard[-1][1] if self.heard else Progress()
            self.heard.append((self.spent, said.after(before)))

    def spend(self) -> bool:
        with self.lock:
            self.spent += 1
        assert self.spent <= self.most, f"more than {self.most} steps"
        return False

    def run(
        self, work: Callable[[SearchContext], object], most: int, effort: float = EFFORT
    ) -> bool:
        """Work, within `most` steps; False: it is not for this problem."""
        self.spent, self.most, self.heard = 0, most, []
        try:
            work(SearchContext(effort=effort, interrupted=self.spend, watch=self.hear))
        except NOT:
            return False
        assert self.spent <= most  # where a thread of its own was refused more
        return True


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    meter, call = Meter(), Kernel.__call__

    def counted(self: Kernel, *given: Any) -> Any:
        meter.spend()
        return call(self, *given)

    meter.most = 10**9
    monkeypatch.setattr(Kernel, "__call__", counted)
    yield meter
    meter.most = 10**9


def sizes(name: str) -> Iterator[tuple[str, int, int]]:
    """Families, numbers of nodes and of devices for a method; one of its graphs is large."""
    rng = random.Random(name)
    large = list(FAMILIES)[zlib.crc32(name.encode()) % len(FAMILIES)]
    for family in FAMILIES:
        yield family, rng.choice((2, 20, 60, 150)), rng.choice((2, 3, 8))
        if family == large:
            yield family, LARGE, rng.choice((2, 8))


def allowed(n: int) -> int:
    """Steps that a search may take at this effort: some for all, some for each node."""
    return 60_000 + 40 * n


@pytest.mark.parametrize("method", [m for m in SPLITS if m not in PROGRAMS])
def test_splits_end(method: str, meter: Meter) -> None:
    done = 0
    for family, n, k in sizes(method):
        case = problem(drawn(family, n), k)
        kinds = SPLITS[method].kinds
        validity = "ordered" if method == "auto" else kinds[n % len(kinds)]
        asked = MethodOptions(method=method, validity=validity)
        done += meter.run(lambda run, c=case, a=asked: solve(c, a, run), allowed(n))
    assert done > 4


@pytest.mark.parametrize("name", [name for name in BOUNDS if name not in BY_SOLVER | {"links"}])
def test_bounds_end(name: str, meter: Meter) -> None:
    done = 0
    for family, n, k in sizes(name):
        n = min(n, FEW) if name in BY_LINEAR_PROGRAM else n
        case = problem(drawn(family, n), 2 if name == "halves" else k, cpus=name == "cpu-cut")
        blocks = solve(case, MethodOptions(method="slice")).blocks
        known = BoundTask("ordered", blocks, case.value(blocks))
        done += meter.run(lambda run, c=case, kn=known: bound(c, kn, name, run), allowed(n))
    assert done > 3


@pytest.mark.parametrize("execution", ["operators", "blocks"])
@pytest.mark.parametrize("method", [m for m in LATENCY if m not in PROGRAMS])
def test_latency_ends(method: str, execution: str, meter: Meter) -> None:
    if execution not in LATENCY[method].kinds:
        return
    done = 0
    for family, n, k in sizes(f"{method} {execution}"):
        case = problem(
            drawn(family, min(n, LARGE // 4)), k, objective="latency", execution=execution
        )
        late, asked = latency_problem(case), MethodOptions(method=method)
        done += meter.run(lambda run, c=late, a=asked: solve_latency(c, a, run), allowed(n))
    assert done > 4


@pytest.mark.parametrize("methods", [*((name,) for name in SEARCHES), tuple(RECIPES)], ids=str)
def test_schedules_end(methods: tuple[str, ...], meter: Meter) -> None:
    rng, done = random.Random(methods[0]), 0
    for method, name in product(methods, ALL_SHAPES):
        placement, wanted = shape(name, 4), Wanted(rng.choice((4, 8, 16)), method=method)
        done += meter.run(lambda run, p=placement, w=wanted: solve_schedule(p, w, run), 20_000)
    assert done > 4


STILL = 1_500
"""Steps in which the share of the work that is done grows, whatever is tried."""

WATCHED = [*(("throughput", m) for m in ("auto", "exact", "heuristic", "anneal", "brkga")),
           *(("latency", m) for m in ("auto", "anneal"))]  # fmt: skip


@pytest.mark.parametrize(("objective", "method"), WATCHED)
def test_shares_grow(objective: str, method: str, meter: Meter) -> None:
    """Shares grow with counted work; what is tried has a name, a value and a bound are told."""
    told = 0
    for family, n, k in (("wide", 40, 2), ("dense", 60, 3), ("chains", 120, 4), ("star", 310, 3)):
        graph, asked = drawn(family, n), MethodOptions(method=method)
        if objective == "latency":
            late = latency_problem(problem(graph, k, objective="latency", execution="operators"))
            work = partial(solve_latency, late, asked)
        else:
            work = partial(solve, problem(graph, k), asked)
        assert meter.run(work, 10**6, effort=0.02)
        known = [(spent, said.share) for spent, said in meter.heard if said.share is not None]
        assert all(0 <= share <= 1 for _, share in known)
        rises = [known[0][0]] if known else []
        for (_, before), (spent, share) in pairwise(known):
            if share > before:
                rises.append(spent)
        still = max(
            (after - before, before) for before, after in pairwise([0, *rises, meter.spent])
        )
        assert still[0] <= STILL, (family, still, meter.spent)
        doing = {said.doing for _, said in meter.heard}
        assert doing - {""}
        assert any(said.value < inf for _, said in meter.heard)
        told += len(rises)
    assert told > 6
