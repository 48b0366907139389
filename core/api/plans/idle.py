"""Reasons why devices of a plan are idle, and options that help."""

from __future__ import annotations

import numpy as np

from dnnp.core.bounds.simple import simple_bound
from dnnp.core.cost.items import Items, items_of
from dnnp.core.cost.problem import SplitProblem, tied_by
from dnnp.core.model.graph import Floats, singletons, totals
from dnnp.core.model.plan import WITHIN, Plan
from dnnp.core.model.text import counted, shown_share, shown_time
from dnnp.options.split import SplitOptions

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
    helps = [] if options.max_replicas or options.allow_replicas else ["--allow-replicas"]
    share = min(float(times[most]) / plan.value, 1.0)
    if items.count > used and share < MOST_OF:
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
        first = graph.node_names[nodes[0]]
        what = f"{counted(len(nodes), 'node')} that stay together"
        if len(nodes) == 1:
            what = f"node '{first}' alone"
        elif len(np.unique(problem.units.label[nodes])) == 1:
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
    return f"{counted(idle, 'device')} {'is' if idle == 1 else 'are'} idle: {why}{advice}"


def _times(problem: SplitProblem, items: Items) -> Floats:
    """Time of each item on the class where it is least; f64[items]."""
    units = problem.units
    of_unit = items.label[units.first]
    offered = units.times_on(*(d.name for d in problem.devices if d.count))
    return np.min([totals(of_unit, times, items.count) for times in offered], axis=0)
