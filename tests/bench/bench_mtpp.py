"""Orders evaluated in a second, the best split found in five, and orders of small peak memory.

DNNP_BENCH_GRAPHS says on how many of the 40 graphs of samples/regal.json; with all of them this
takes half an hour on two cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench_models import SHARED, stream_of

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Floats
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import Evolution, MethodOptions, SearchContext
from dnnp.core.split.auto import solve
from dnnp.core.split.order_search import OrderSpace
from dnnp.core.split.peak import peak_order
from dnnp.core.split.slicing.decoder import SLICING
from dnnp.core.split.slicing.orders import ORDERS
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import read_bytes
from dnnp.formats.workloads.synthetic import synthetic_stream
from dnnp.samples.build import select, write
from dnnp.samples.papers.regal import FAMILIES, regal_graph
from support.bench import medians, table

REPEATS = 3
EVALUATED_ITEMS = 400_000
"""Items of the orders that are timed together."""
RATES = {200: (10_000, 30_000), 1_000: (1_000, 3_000)}
"""Nodes -> orders to evaluate in a second; and with rejection."""

GRAPHS = int(os.environ.get("DNNP_BENCH_GRAPHS", "12"))
"""Of the four families in turn: three of each by default."""
GAINS = {2: 1.0, 4: 3.0, 8: 5.0, 16: 3.5}
"""k -> percent by which to beat brkga-10000."""
LIMIT_S = 5.0
OURS, RIVAL = "heuristic", "brkga-10000"
TEN_THOUSAND = Evolution(population=100, generations=100)
ORDERED: dict[str, MethodOptions] = {
    **{name: MethodOptions(method="slice", order=name) for name in ORDERS},
    "random-10000": MethodOptions(method="random", samples=10_000),
    **{
        name: MethodOptions(method=name.removesuffix("-10000"), evolution=TEN_THOUSAND)
        for name in (RIVAL, "mla", "mla-weighted")
    },
}
"""Orders to beat, all of them."""


def regal_problem(family: str | None, n: int | None, seed: int, k: int) -> SplitProblem:
    """Split a generated graph over k devices."""
    made = regal_graph(family, n, seed)
    stream = synthetic_stream(made.family, made.tail, made.head, made.size, made.cost)
    graph = graph_of(stream)
    device = DeviceClass("unit", count=k, bandwidth_bytes_per_s=1.0)
    return SplitProblem(graph, units_of(stream, graph), (device,), CostOptions())


def speeds() -> list[tuple[object, ...]]:
    """Orders a second: one row a size and k, the slowest family."""
    rows = []
    for n, (goal, rejecting) in RATES.items():
        for k in (2, 8, 64):
            found = {}
            for family in FAMILIES:
                p = regal_problem(family, n, 0, k)
                space = OrderSpace(p)
                keys = np.random.default_rng(1).random((EVALUATED_ITEMS // n, n))
                best = float(space.values(keys, SLICING).min())
                actions: list[Callable[[], Floats]] = [
                    partial(space.values, keys),
                    partial(space.values, keys, SLICING, best, reject=True),
                ]
                times = medians(actions, REPEATS)
                found[family] = [len(keys) / t for t in times]
            columns = []
            for i, target in enumerate((goal, rejecting)):
                slowest = min(found, key=lambda f, i=i: found[f][i])
                rates = [found[f][i] for f in FAMILIES]
                columns += [
                    f"{np.exp(np.log(rates).mean()):,.0f}",
                    f"{found[slowest][i]:,.0f} ({slowest})",
                    f"{target:,}",
                ]
            rows.append((f"{n:,}", k, *columns))
    return rows


class Race(NamedTuple):
    """Values of one graph and k."""

    name: str
    k: int
    values: dict[str, float]
    seconds: float
    """Seconds of our search."""


def race(seed: int, k: int) -> Race:
    """Ours and all orders on one graph."""
    problem = regal_problem(None, None, seed, k)
    values = {name: problem.value(solve(problem, how).blocks) for name, how in ORDERED.items()}
    start = time.monotonic()
    run = SearchContext().within(LIMIT_S)
    values[OURS] = problem.value(solve(problem, MethodOptions(method=OURS), run).blocks)
    return Race(f"{seed:02d}", k, values, time.monotonic() - start)


def mean_ratio(ratios: list[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.log(ratios).mean()))


def qualities(races: list[Race]) -> tuple[list[tuple[object, ...]], list[str]]:
    """One row a k; and where some order is better than ours."""
    rows, lost = [], []
    for k, goal in GAINS.items():
        mine = [r for r in races if r.k == k]
        ratios = {r.name: r.values[OURS] / r.values[RIVAL] for r in mine}
        orders = [min(v for name, v in r.values.items() if name != OURS) for r in mine]
        to_best = [r.values[OURS] / best for r, best in zip(mine, orders, strict=True)]
        worse = [r for r, ratio in zip(mine, to_best, strict=True) if ratio > 1 + 1e-9]
        for r in worse:
            better = min(r.values, key=lambda name, r=r: r.values[name])
            lost.append(f"{r.name} k = {k}: {r.values[OURS]:.6g}, {better} {r.values[better]:.6g}")
        worst = max(ratios, key=lambda name: ratios[name])
        mean = mean_ratio(list(ratios.values()))
        rows.append(
            (
                k,
                f"{mean:.4f}",
                f"{100 * (1 / mean - 1):.1f}%",
                f"{goal:g}%",
                f"{ratios[worst]:.4f} ({worst})",
                f"{mean_ratio(to_best):.4f}",
                f"{len(worse)} of {len(mine)}",
                f"{max(r.seconds for r in mine):.1f} s",
            )
        )
    return rows, lost


def peaks() -> list[tuple[object, ...]]:
    """Peak memory on one device: in the order of the graph, in the one found, and the bound."""
    graphs = {}
    with tempfile.TemporaryDirectory() as folder:
        models = [write(name, Path(folder)) for name in select([], "small")]
        models += sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else []
        for model in models:
            stream = read_bytes(stream_of(model, coarsen=False), model.name)
            graphs[model.stem] = graph_of(stream)
    for seed in range(GRAPHS):
        made = regal_graph(seed=seed)
        name = f"{seed:02d}, {made.family}"
        graphs[name] = regal_problem(None, None, seed, 1).graph
    rows = []
    for name, graph in graphs.items():
        own = peak_order(graph, graph.order, SearchContext(effort=0.0)).peak_bytes
        start = time.perf_counter()
        found = peak_order(graph, graph.order)
        seconds = time.perf_counter() - start
        above = found.peak_bytes / found.bound_bytes - 1
        rows.append(
            (
                name,
                graph.n,
                f"{own:,.0f}",
                f"{found.peak_bytes:,.0f}",
                f"{found.bound_bytes:,.0f}",
                f"{100 * above:.2f}%",
                f"{seconds:.2f} s",
            )
        )
    return rows


def main() -> None:
    """Print the tables."""
    print(
        "Graphs of `dnnp-import --synthetic`. Orders by random priorities, each laid out and cut "
        f"optimally, in a second of wall time on all cores, warm, median of {REPEATS}: geometric "
        "mean of the four families (seed 0), and the slowest. Rejecting: what cannot beat the best "
        "of them is given up.\n"
    )
    print(
        table(
            ("nodes", "k", "a second", "slowest", "target", "rejecting", "slowest", "target"),
            speeds(),
        )
    )
    solve(regal_problem(None, 20, 0, 2), MethodOptions(method=OURS))  # compiles
    races = [race(seed, k) for seed in range(GRAPHS) for k in GAINS]
    rows, lost = qualities(races)
    names = ", ".join(dict.fromkeys(r.name for r in races))
    print(
        f"\nLargest load that `--method heuristic` finds within {LIMIT_S:g} s, over that of "
        f"`brkga-10000`, and over the best of all orders ({', '.join(ORDERED)}), on the graphs "
        f"{names} of `samples/regal.json`: geometric means.\n"
    )
    header = (
        "k",
        "over brkga-10000",
        "gain",
        "target",
        "worst graph",
        "over best order",
        "worse than it",
        "longest",
    )
    print(table(header, rows))
    print(f"\nWorse than some order: {'; '.join(lost) or 'none'}.\n")
    print(
        "Peak of live activations on one device, bytes: in the order of the graph, in the one "
        "that is found, and a proven lower bound for any.\n"
    )
    header = ("graph", "nodes", "own order", "found", "bound", "above it", "time")
    print(table(header, peaks()))


if __name__ == "__main__":
    main()
