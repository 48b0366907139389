"""Run a method of the objective latency; those for throughput (2020 paper, Section 7) as well."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from dnnp.core.baselines.blocks import interval_blocks
from dnnp.core.cost.latency import LatencyProblem, LatencySolution, Split
from dnnp.core.latency.auto import (
    EFFORT,
    LatencyMethod,
    anneal_split,
    first_bound,
    quick,
    refuse_impossible,
    simple_bound,
    with_room,
)
from dnnp.core.latency.homes import homes_of_blocks, split_of_homes
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.lists.schedule import REPAIRED, by_first, schedule_order
from dnnp.core.methods import imported
from dnnp.core.methods.splits import LATENCY
from dnnp.core.model.errors import FormatError, InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Ints
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import (
    NOTHING,
    PLAIN,
    Incumbent,
    MethodOptions,
    SearchContext,
    run_with_fallback,
)
from dnnp.core.split.auto import LINKS, solve
from dnnp.core.split.first import FIRST_FIT, first_latency
from dnnp.core.split.slicing.orders import PUBLISHED

PUBLISHED_TIES = "dnnp.samples.papers.ties:published_split"
"""Function that takes one of the splits of least load as the program of the 2020 paper does."""


HEED_RULES = ("auto", "anneal")
"""Methods that heed rules about what a device holds."""


def check_method(name: str, execution: str, rules: Sequence[Rule] = ()) -> None:
    """Refuse a method that cannot plan this execution.

    Raises UsageError: the method is for throughput, or for the other execution, or knows no rules.
    """
    if name not in LATENCY:
        known = ", ".join(LATENCY)
        raise UsageError(f"method {name} is not for --objective latency, which has: {known}")
    executions = LATENCY[name].kinds
    if execution not in executions:
        raise UsageError(f"method {name} is for --execution {executions[0]}")
    ruled = [rule.words for rule in rules if rule.by_stage and name not in HEED_RULES]
    if ruled:
        known = " and ".join(HEED_RULES)
        raise UsageError(f"{ruled[0]}: not heeded by the method {name}; {known} heed it")


def solve_latency(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext = PLAIN
) -> LatencySolution:
    """Find a split for the latency of one sample.

    Raises
    ------
    UsageError
        The method does not go with the execution.
    InfeasibleError
        No split fits the devices.
    LimitError
        A limit came before there was any split.
    """
    execution = problem.options.execution
    check_method(asked.method, execution)
    method: LatencyMethod = LATENCY[asked.method].function(execution)
    refuse_impossible(problem)
    latency = problem.searched
    kept: Incumbent[Split] = Incumbent()
    told = kept.told_by(run).until_gap(np.inf, 0.0)

    def instead() -> LatencySolution | None:
        split, name = kept.split, kept.method
        if split is None:
            split, name = first_latency(latency), FIRST_FIT
            if split is not None and asked.method != "auto":
                run.warn(f"{asked.method}: {NOTHING}; this split is by {name}")
        return None if split is None else LatencySolution(split, *first_bound(latency), name)

    def work() -> LatencySolution:
        ruled = latency.whole is not None and latency.whole.stage_rules is not None
        if not ruled and (latency.live is None or not latency.live.binds):
            return _found(method, latency.relaxed, asked, told)
        return _fitted(method, latency, asked, told)

    found = run_with_fallback(work, run.stop, instead)
    if kept.beats(latency.value(found.split)) and kept.split is not None:
        found = replace(found, split=kept.split, method=kept.method)
    if kept.proven() > found.bound * (1 + CLOSED):
        found = replace(found, bound=kept.proven(), bound_method=kept.argument)
    return found


def _found(
    method: LatencyMethod, problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Run a method; add its name and a bound."""
    found = method(problem, asked, run)
    if not found.bound_method:
        bound, name = simple_bound(problem, run=quick(run))
        found = replace(found, bound=bound, bound_method=name)
    return replace(found, method=found.method or asked.method)


PROGRAMS = ("ip", "cpsat")
"""Methods that count the memory of parameters with the live tensors of each task by itself."""

LINED = 0.1
"""Share of a time limit that a pipeline may take."""


def _fitted(
    method: LatencyMethod, problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """Run a method where live tensors count, or rules, from what knows more of them.

    Its bound may be that of the relaxation without them.

    Annealing counts them itself, programs in part. Other methods count the memory of the tasks
    alone, and of operators are run again with less memory, by the live tensors of their result
    before; if none fits, the result is the best of a pipeline and of a little annealing.

    Raises
    ------
    InfeasibleError
        No split fits, as far as live tensors are known to the method.
    LimitError
        None was found that fits with them.
    """

    def keep(split: Split, value: float, name: str) -> None:
        if problem.fits(split):
            run.report_incumbent(split, value, name)

    def roomy(_: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
        return with_room(problem, method, asked, run)

    free = asked.method in ("auto", "anneal")  # to answer with any split that fits
    knows = free or asked.method in PROGRAMS
    first = free and problem.options.execution == "blocks"
    splits = _lined(problem, asked, quick(run).part(LINED)) if first else []
    for split in splits:
        run.report_incumbent(split, problem.value(split), "max-load")
    found: LatencySolution | None = None
    try:
        told = replace(run, report_incumbent=keep, warn=cache(run.warn))
        if knows or problem.options.execution == "blocks":
            found = _found(method, problem if knows else problem.relaxed, asked, told)
        else:
            found = _found(roomy, problem.relaxed, asked, told)
    except LimitError:
        if not knows:
            raise
    if found is not None and problem.fits(found.split):
        return found
    if not first:
        splits = _lined(problem, asked, quick(run))
    with suppress(LimitError):
        part = replace(run.alone(), effort=EFFORT if splits else 1.0)
        splits.append(anneal_split(problem, run=part))
    if not splits:
        raise LimitError("nothing was found that fits with its live tensors; offer more memory")
    split = min(splits, key=problem.value)
    name = asked.method if free else asked.method + REPAIRED
    if name != asked.method:
        run.warn(
            f"{asked.method} does not know {'all ' * knows}live tensors, and those of its answer "
            f"do not fit; what ran instead is {name}"
        )
    if found is None:
        return LatencySolution(split, *simple_bound(problem.relaxed, run=quick(run)), name)
    return replace(found, split=split, method=name)


def _lined(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> list[Split]:
    """Pipelines for throughput that fit, as splits."""
    try:
        asked = replace(asked, method="auto", ties=None, validity=None)
        home, units, _ = _throughput(problem, asked, replace(run, warn=PLAIN.warn))
        splits = [split_of_homes(problem, home)]
        if problem.options.execution == "operators":
            splits.append(schedule_order(net_of(problem), home, by_first(units)))
        return [split for split in splits if problem.fits(split)]
    except (InfeasibleError, LimitError, FormatError, UsageError):
        return []


def max_load(problem: LatencyProblem, asked: MethodOptions, run: SearchContext) -> LatencySolution:
    """The split of the least largest load; for the errors see `solve`.

    In the order `published` it is the one of them that `asked.ties` takes, or the program of the
    2020 paper; there is no other order.
    The run is warned where no split is proven to have the least.
    """
    if asked.order not in ("best", PUBLISHED):
        raise UsageError(f"method max-load knows --order {PUBLISHED}, not {asked.order}")
    published = asked.order == PUBLISHED
    ties = asked.ties or imported(PUBLISHED_TIES) if published else None
    return by_throughput(problem, replace(asked, method="auto", ties=ties), run)


def by_throughput(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> LatencySolution:
    """The split of a method for throughput; for the errors see `solve`."""
    home, _, method = _throughput(problem, asked, run)
    split = split_of_homes(problem, home)
    return LatencySolution(split, method="" if method in (asked.method, LINKS) else method)


def _throughput(
    problem: LatencyProblem, asked: MethodOptions, run: SearchContext
) -> tuple[Ints, Ints, str]:
    """Blocks by a method for throughput: devices of tasks, units in order, name of the method."""
    whole = problem.whole
    if whole is None:
        raise UsageError(f"method {asked.method} needs a graph, not only its tasks")
    alone = whole.options.memory_model != "sum" and not whole.graph.backward.any()
    counted = "peak" if alone else "sum"
    options = replace(whole.options, objective="throughput", memory_model=counted)
    whole = whole.with_options(options)
    found = solve(whole, replace(asked, order="best"), run.unvalued())
    value = whole.value(found.blocks)
    if asked.method == "auto" and value > found.bound * (1 + CLOSED):
        least = run.shown(found.bound)
        run.warn(f"max-load: the largest load {run.shown(value)} is not proven least ({least})")
    blocks = found.blocks
    if asked.method == "auto" and asked.order == PUBLISHED and asked.ties is not None:
        line, bounds, classes = asked.ties(whole, value, run)
        blocks = interval_blocks(whole, line, bounds, classes)
    blocks = [block for block in blocks if len(block.nodes)]
    label = whole.units.label
    units = np.concatenate([label[block.nodes] for block in blocks] or [label])
    return homes_of_blocks(problem, label, blocks), units, found.method
