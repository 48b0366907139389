"""Methods `max-load` and `scotch` for latency: splits for throughput (2020 paper, Section 7)."""

from __future__ import annotations

from dataclasses import replace

from dnnp.core.baselines.blocks import interval_blocks
from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.homes import homes_of_blocks, split_of_homes
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.run import Run
from dnnp.core.order.orders import PUBLISHED
from dnnp.core.portfolio.solve import solve


def max_load(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """The split of the least largest load; for the errors see `solve`.

    In the order `published` it is the one of them that `asked.ties` takes; there is no other order.
    The run is warned where no split is proven to have the least.
    """
    if asked.order not in ("best", PUBLISHED):
        raise UsageError(f"method max-load knows --order {PUBLISHED}, not {asked.order}")
    if asked.order == PUBLISHED and asked.ties is None:
        raise UsageError(f"--order {PUBLISHED} of method max-load needs the ties of a program")
    return by_throughput(problem, replace(asked, method="exact"), run)


def by_throughput(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """The split of a method for throughput; for the errors see `solve`."""
    whole = problem.whole
    if whole is None:
        raise UsageError(f"method {asked.method} needs a graph, not only its tasks")
    alone = whole.options.memory_model == "weights" and not whole.graph.backward.any()
    counted = "peak" if alone else "sum"
    options = replace(whole.options, objective="throughput", memory_model=counted)
    whole = whole.with_options(options)
    found = solve(whole, replace(asked, order="best"), run)
    value = whole.value(found.blocks)
    if asked.method == "exact" and value > found.bound * (1 + CLOSED):
        least = run.shown(found.bound)
        run.warn(f"max-load: the largest load {run.shown(value)} is not proven least ({least})")
    blocks = found.blocks
    if asked.method == "exact" and asked.order == PUBLISHED and asked.ties is not None:
        line, bounds, classes = asked.ties(whole, value, run)
        blocks = interval_blocks(whole.graph, line, bounds, classes, whole.devices)
    blocks = [block for block in blocks if len(block.nodes)]
    split = split_of_homes(problem, homes_of_blocks(problem, whole.units.label, blocks))
    return LatencySolution(split, method="" if found.method == asked.method else found.method)
