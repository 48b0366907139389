"""Operator-level placement on random layered graphs: annealing against baselines and bound."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from dnnp.core.cost.latency import LatencyProblem, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.operators.anneal import anneal_operators
from dnnp.core.latency.operators.bound import operators_bound
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.synthetic import layered_graph
from support.bench import table
from support.latency_cases import layered_case
from support.placing import place

RATIOS = (0.1, 1.0, 5.0)
SECONDS = {50: 5.0, 200: 15.0, 1000: 45.0}
"""Nodes -> seconds that annealing may take."""

SEEDS = (0, 1, 2)
CONGESTIONS = ("device",)
BASELINES = ("heft", "heft-congested", "m-etf", "m-sct", "getf")
BASELINE_SECONDS = 20.0


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def problem_of(n: int, ratio: float, seed: int, congestion: str) -> LatencyProblem:
    """An instance."""
    graph, devices = layered_case(layered_graph(n, ratio, seed))
    options = CostOptions(objective="latency", execution="operators", congestion=congestion)
    return latency_problem(SplitProblem(graph, singletons(graph), devices, options))


def measured(n: int, ratio: float, seed: int, congestion: str) -> list[float]:
    """Latency over that of each baseline, latency over bound, seconds of annealing and bound."""
    problem = problem_of(n, ratio, seed, congestion)
    begun = time.perf_counter()
    run = SearchContext(seed).within(SECONDS[n])
    listed = [
        place(name, problem, SearchContext(seed).within(BASELINE_SECONDS)) for name in BASELINES
    ]
    others = [problem.value(placement) for placement in listed]
    start = listed[others.index(min(others))]
    placement = anneal_operators(problem, start=start, endless=True, run=run)
    value = problem.value(placement)
    annealed = time.perf_counter()
    bound, _ = operators_bound(problem, upper=value)
    bounded = time.perf_counter()
    return [
        *(value / x for x in others),
        value / bound,
        float(value > min(others)),
        annealed - begun,
        bounded - annealed,
    ]


def main() -> None:
    """Measure and print a table."""
    measured(50, 1.0, 99, "none")  # compiles
    rows = []
    for congestion in CONGESTIONS:
        for ratio in RATIOS:
            for n in SECONDS:
                found = [measured(n, ratio, seed, congestion) for seed in SEEDS]
                columns = list(zip(*found, strict=True))
                rows.append(
                    [
                        f"{congestion}, {ratio:g}",
                        n,
                        *(f"{mean(x):.3f}" for x in columns[: len(BASELINES) + 1]),
                        f"{sum(columns[-3]):.0f} of {len(SEEDS)}",
                        *(f"{sum(x) / len(x):.1f} s" for x in columns[-2:]),
                    ]
                )
    print(
        "Random layered graphs (`core.synthetic`) on 4 devices of speed 1, 1, 1/2 and "
        f"1/4; geometric means over {len(SEEDS)} seeds by congestion rule, ratio of communication "
        "to computation, and nodes: latency of annealing, from the best baseline, over that of "
        "each baseline; latency over bound; how often a baseline is better; seconds of baselines "
        "and annealing, and of the bound. Work and sizes are lognormal with a standard deviation "
        "of 2 in the logarithm, as operators of networks have 1 to 3; with 1 the bound is further "
        "away, and HEFT closer.\n"
    )
    header = (
        "rule, ratio",
        "nodes",
        *(f"/ {name}" for name in BASELINES),
        "/ bound",
        "worse",
        "annealing",
        "bound",
    )
    print(table(header, rows))


if __name__ == "__main__":
    main()
