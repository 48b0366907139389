"""Messages about a plan: its value and bound, other ways and methods, idle devices and options."""

from __future__ import annotations

import numpy as np

from dnnp.callbacks import Callbacks
from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.items import Items, items_of
from dnnp.core.cost.problem import SplitProblem, tied_by
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.graph import Floats, distinct, singletons, totals
from dnnp.core.model.plan import (
    OBJECTIVES,
    WITHIN,
    Plan,
    contiguous_words,
    generation_words,
    status_words,
)
from dnnp.core.model.text import counted, shown_bytes, shown_share, shown_time
from dnnp.formats.spread import NO_COSTS, has_costs, shown_gap, unknown_words
from dnnp.formats.stream import Record, Stream
from dnnp.options.split import SplitOptions

WORTH_SAYING = 1.1
"""Least predicted speed-up by replicas at which they are named."""


def ways_in_words(plan: Plan, in_seconds: bool) -> str:
    """Say which way was chosen, how the others compare, and what cannot be."""
    from dnnp.core.split.ways import SPOKEN

    devices = sum(stage.replicas for stage in plan.stages)
    parts, missing = list[str](), dict[str, list[str]]()
    for way in sorted(plan.ways, key=lambda way: way.value or 0.0):
        if way.value is None:
            missing.setdefault(way.reason, []).append(SPOKEN[way.name])
        elif (way.stages, way.devices) == (len(plan.stages), devices):
            used = f" on {counted(way.devices, 'device')}" if way.devices > 1 else ""
            parts.insert(
                0, f"chosen: {SPOKEN[way.name]}{used}, {shown_time(way.value, in_seconds)}"
            )
        else:
            longer = f" ({way.value / plan.value:.3g} times as long)" if plan.value > 0 else ""
            parts.append(f"{SPOKEN[way.name]} {shown_time(way.value, in_seconds)}{longer}")
    parts += [f"no {' or '.join(names)}: {reason}" for reason, names in missing.items()]
    return "; ".join(parts)


def name_faster_replicas(problem: SplitProblem, plan: Plan, options: SplitOptions) -> None:
    """Say where plain replicas of the whole model fit and are faster than a plan without them."""
    compared = options.allow_replicas or options.max_replicas is not None
    compared = compared or plan.options.workload is not None
    if compared or options.objective != "throughput" or options.memory_mode == "ignore":
        return
    if problem.clustered or not plan.stages or plan.status == "interrupted":
        return
    below, times = plan.value / WORTH_SAYING, problem.units.times
    # No load is below its compute time; mostly that is enough to know.
    several = [d for d in problem.devices if d.count > 1 and d.name in times]
    if min((float(times[d.name].sum()) / d.count for d in several), default=np.inf) >= below:
        return
    from dnnp.core.split.ways import faster_replicas

    found = faster_replicas(problem, below)
    if found is not None:
        value, copies = found
        faster = f"{plan.value / value:.2f} times as fast" if value else "to take no time"
        options.caller.note(
            f"{copies} replicas of the whole model fit and are predicted {faster}: "
            f"{shown_time(value, problem.graph.in_seconds)} (--allow-replicas compares them)"
        )


def tried_in_words(plan: Plan, in_seconds: bool) -> str:
    """Say what became of each method, the best first."""
    said = []
    for entry in sorted(plan.tried, key=lambda e: float("inf") if e.value is None else e.value):
        value, reason = entry.value, f"{entry.status}: {entry.reason}"
        said.append(f"{entry.method} {reason if value is None else shown_time(value, in_seconds)}")
    return f"tried: {'; '.join(said)}"


MOST_OF = 0.8
"""Share of the largest load from which on the nodes that stand together are the reason."""


VALIDITY = {"ordered": "an ordered", "convex": "a convex"}


def idle_words(problem: SplitProblem, plan: Plan, options: SplitOptions) -> str:
    """Say how many accelerators are idle, why, and what helps; empty: none, or unknown."""
    used = sum(stage.devices for stage in plan.own)
    if not plan.stages or not used < min(plan.k, problem.units.g) or not plan.value > 0:
        return ""
    validity = options.validity or plan.validity
    free = problem.free_items
    items = free if validity == "free" else problem.items
    times = _times(problem, items)
    most = int(times.argmax())
    known = options.max_replicas or options.allow_replicas or plan.options.workload is not None
    helps = [] if known or plan.rules else ["--allow-replicas"]
    share = min(float(times[most]) / plan.value, 1.0)
    stated = next((rule.words for rule in plan.rules if rule.stages), "")
    single = any(device.members for device in problem.devices)
    apart = items.count > used and share < MOST_OF
    if stated or (apart and single):
        found = "there is" if plan.status == "optimal" else "there was found"
        helps, why = [], stated or f"{found} no faster plan that uses more"
    elif apart:
        proven = plan.status in ("optimal", WITHIN) and validity != "convex"
        if not proven or max(used, len(problem.devices)) > 1:
            return ""  # there may be other reasons
        alone = shown_time(simple_bound(problem), problem.graph.in_seconds)
        why = f"transfers of a second stage cost more than it saves (compute alone: {alone})"
        helps += ["--bandwidth"] if options.comm == "overlap" else ["--bandwidth", "--comm overlap"]
    else:
        graph = problem.graph
        nodes = np.flatnonzero(items.label == most)
        tie, parameter, colors = tied_by(graph, nodes)
        held = {*graph.node_ids[nodes].tolist()}
        ruled = [r.words for r in plan.rules if any(len(held & {*p}) > 1 for p in r.parts)]
        tie = tie if parameter or not tie else ", ".join(ruled) or tie
        first = graph.node_names[nodes[0]]
        what = f"{counted(len(nodes), 'node')} that stay together"
        if len(nodes) == 1:
            what = f"node '{first}' alone"
        elif len(distinct(problem.units.label[nodes])) == 1:
            what = f"the group of node '{first}'"
            helps.append("no groups (dnnp-coarsen)")
        elif tie:
            what += f": {tie}"
            if validity != "free":
                what += f", and {VALIDITY[validity]} split keeps what lies between them"
            helps += ["a copy of the parameter for each reader"] if parameter else []
            if validity != "free" and _times(problem, free).max() < MOST_OF * times[most]:
                helps.insert(0, "--validity free")
            bare = np.bincount(items_of(graph, singletons(graph)).label).max()
            if validity != "free" and bare < MOST_OF * len(nodes):
                helps.append("no groups (dnnp-coarsen)")
        why = f"{shown_share(share)} of the largest load is {what}"
        if validity == "convex" and colors > 1:  # which need not be in one block then
            return ""
    idle = plan.k - used
    advice = f"; it may help: {', '.join(helps)}" if helps else ""
    busy = {name for stage in plan.stages for name in stage.homes}
    every = [d.device_name(i) for d in problem.devices if not d.is_cpu for i in range(d.count)]
    names = f" ({', '.join(x for x in every if x not in busy)})" if idle < 9 else ""
    return f"{counted(idle, 'device')} {'is' if idle == 1 else 'are'} idle{names}: {why}{advice}"


def _times(problem: SplitProblem, items: Items) -> Floats:
    """Time of each item on the class where it is least; f64[items]."""
    units = problem.units
    of_unit = items.label[units.first]
    offered = units.times_on(*(d.name for d in problem.devices if d.count))
    return np.min([totals(of_unit, times, items.count) for times in offered], axis=0)


def report(
    caller: Callbacks, plan: Plan, problem: SplitProblem, record: Record, *, one_of_many: bool
) -> None:
    """One line about what was found; `record` of the plan, with what is known of its costs."""
    lead = f"k = {plan.k}: " if one_of_many else ""
    units, in_seconds = problem.units.g, problem.graph.in_seconds
    stages, used = counted(len(plan.own), "stage"), sum(s.devices for s in plan.own)
    if used > len(plan.own):
        stages += f" on {used} devices"
    shared = len(plan.stages) - len(plan.own)
    if shared:
        stages += f" and {shared} shared by all {plan.k}"
    if plan.hybrid is None and plan.k > max(used, units) and not one_of_many:
        there = f"{'is' if units == 1 else 'are'} only {counted(units, 'unit')}"
        caller.note(f"k = {plan.k}, but there {there}: {stages}")
    what = OBJECTIVES[plan.objective]
    found = f"{stages}, {plan.method}: {what} {shown_time(plan.value, in_seconds)}"
    if "spread" in record:
        found += f" +- {record['spread']:.1%}"
    if plan.tokens_per_s is not None:
        found += f" a sequence, {generation_words(plan)}"
    by = f" ({plan.bound_method})" if plan.bound_method else ""
    proven = f"bound {shown_time(plan.bound, in_seconds)}{by}, gap {shown_gap(record, plan.gap)}"
    if plan.status in ("optimal", WITHIN):
        proven = status_words(plan)
    interrupted = ", interrupted" if plan.status == "interrupted" else ""
    proven += contiguous_words(plan, in_seconds)
    caller.note(f"{lead}{found}, {proven}, {plan.validity}{unknown_words(record)}{interrupted}")
    if plan.status == "infeasible":
        caller.warn(
            f"the split is infeasible: a device needs {shown_bytes(plan.excess_bytes)} more than "
            "it has (--memory-mode ignore)"
        )
    if plan.ways:
        caller.note(ways_in_words(plan, in_seconds))
    if plan.tried:
        caller.note(tried_in_words(plan, in_seconds))


def advise(stream: Stream, plan: Record, caller: Callbacks) -> None:
    """Say what would make known what the costs of a plan leave out, where that is a tenth."""
    unknown = plan.get("unknown", {"time": 0.0, "sizes": 0})
    if unknown["sizes"]:
        caller.warn(
            f"{counted(unknown['sizes'], 'tensor')} of unknown size, counted as 0 bytes: nothing "
            "is optimal; dnnp-import --shapes run, --dim or --inputs make known what is missing"
        )
    if not has_costs(plan):
        caller.warn(NO_COSTS)
    elif unknown["time"] >= 0.1:
        from dnnp.pricing import unpriced

        if names := unpriced(stream):
            caller.warn(
                f"costs are unknown for {unknown['time']:.0%} of the time, as no formula covers "
                f"{names}: dnnp-profile --mode measure times the model"
            )


OPTIONS = (
    "order", "solver", "effort", "seed", "samples", "population", "generations", "elite", "mutants",
    "bias", "max-replicas",
)  # fmt: skip
"""Options that not every method heeds."""


def name_idle_options(options: SplitOptions) -> None:
    """Say which of the options given the method makes no use of."""
    latency, given = options.objective == "latency", options.eval is not None
    heeded = {name for method in options.methods for name in _heeded(options, method)}
    stated = [name for name in OPTIONS if getattr(options, name.replace("-", "_")) is not None]
    idle = [name for name in stated if name not in heeded]
    idle += ["validity"] * (given and options.validity is not None and not latency)
    idle += ["comm"] * (latency and options.comm != "sum")
    several = "s" if len(options.methods) > 1 else ""
    user = "--eval" if given else f"method{several} {', '.join(options.methods)}"
    for name in idle:
        options.caller.note(f"--{name} has no effect with {user}")


def _heeded(options: SplitOptions, method: str) -> tuple[str, ...]:
    """List the options that a method heeds, or a given split."""
    latency = options.objective == "latency"
    if options.eval is not None:
        return () if latency else ("max-replicas",)
    if latency:
        return LATENCY[method].heeds
    from dnnp.core.split.auto import resolved

    return SPLITS[resolved(method, options.validity or "ordered")].heeds
