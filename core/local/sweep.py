"""Annealing at one temperature: kernels.

Two kinds of moves are tried: single items (`dnnp.core.local.singles`), and clusters of items
(`dnnp.core.local.clusters`). Stages of a pipeline on devices of different classes may also swap
these. What is minimised stands in `dnnp.core.local.energy`.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.kernel import callee, lean
from dnnp.core.local.clusters import clusters
from dnnp.core.local.energy import CLUSTER, note, record, refer, weigh
from dnnp.core.local.peak import measure
from dnnp.core.local.random import below
from dnnp.core.local.singles import singles
from dnnp.core.local.state import fill


@callee
def total(values):  # type: ignore[no-untyped-def]
    """Sum, from the first to the last."""
    result = 0.0
    for x in range(len(values)):
        result += values[x]
    return result


@lean
def exchange(problem, state, live, search, temperature, tries):  # type: ignore[no-untyped-def]
    """Let two stages of different classes swap their devices, `tries` times."""
    rng, kind, place = search.rng, problem.kind, state.place
    for _ in range(tries):
        a, b = below(rng, len(kind)), below(rng, len(kind))
        able = kind[a] != kind[b]
        for item in range(len(place)):
            if place[item] == a:
                able = able and problem.allowed[kind[b], item]
            elif place[item] == b:
                able = able and problem.allowed[kind[a], item]
        if not able:
            continue
        before = total(search.energy)
        kind[a], kind[b] = kind[b], kind[a]
        fill(problem, state)
        measure(live, state)
        weigh(problem, state, search)
        if total(search.energy) - before <= temperature * search.dice[below(rng, len(search.dice))]:
            note(problem, state, live, search)
        else:
            kind[a], kind[b] = kind[b], kind[a]
            record(problem, state, live, search)


@lean
def sweep(problem, state, live, search, temperature, work):  # type: ignore[no-untyped-def]
    """Anneal at one temperature until `work` pins were visited; return how many were."""
    record(problem, state, live, search)
    if search.value[0] == np.inf:
        refer(problem, state, search)
    visits = 0
    while visits < work:
        share = search.mix[CLUSTER]
        for kind in range(2):
            left = share if kind else 100 - share
            while left > 0:
                if kind:
                    more, left, better = clusters(problem, state, search, temperature, left)
                else:
                    more, left, better = singles(problem, state, search, temperature, left)
                visits += more
                if better:
                    note(problem, state, live, search)
    return visits
