"""Episodes: the decision process of Placeto (section 3.1), priced by the cost model.

A state is a placement, the group that is current, and those that were visited. Each step places
the current group anew, by a policy; each group is visited once. The reward of a step is by how
much the cost of the placement falls: its latency, as transfers and tasks follow each other in the
order of upward ranks, plus a penalty for what the fullest device holds above its capacity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.baselines.placeto.groups import Groups
from dnnp.core.baselines.placeto.policy import (
    State,
    Weights,
    advance,
    begin,
    choose,
    refresh,
    start,
)
from dnnp.core.baselines.placeto.tape import Tape
from dnnp.core.cost.kernel import callee, kernel
from dnnp.core.latency.lists.lanes import LaneState, clear, new_state
from dnnp.core.latency.lists.net import Net
from dnnp.core.latency.lists.schedule import follow_into
from dnnp.core.model.graph import Floats, Ints

PENALTY = 2.0
"""Cost, in units of `Groups.unit`, of exceeding the memory by all that a device has; the authors
take
two seconds a gigabyte."""

SURE = 2.0
"""In place of a number drawn between 0 and 1: take the likeliest device."""


class Scene(NamedTuple):
    """What prices the placements of a problem."""

    net: Net
    order: Ints
    """i64[n], by upward rank."""


class Seen(NamedTuple):
    """What an episode comes to, filled in; q groups."""

    taken: Ints
    """i64[q], device that each step took."""
    cost: Floats
    """f64[q + 1], before the first step and after each, in units of `Groups.unit`."""
    best: Ints
    """i64[q], the best placement within all memory; only where `value` is finite."""
    value: Floats
    """f64[1], its latency."""


def new_seen(q: int) -> Seen:
    """Nothing was seen yet."""
    return Seen(
        np.zeros(q, dtype=np.int64),
        np.zeros(q + 1),
        np.zeros(q, dtype=np.int64),
        np.full(1, np.inf),
    )


@kernel
def play(
    scene: Scene,
    groups: Groups,
    weights: Weights,
    tape: Tape,
    state: State,
    drawn: Floats,
    seen: Seen,
) -> None:
    """Go through an episode from `state.home`, and leave it at its end.

    `drawn`: f64[q], between 0 and 1, decides what each step takes; see `SURE`.
    """
    lanes = new_state(scene.net)
    home = np.zeros(len(scene.order), dtype=np.int64)
    first = np.zeros((1, 1), dtype=np.int64)
    queue = np.zeros(1, dtype=np.int64)
    _play(scene, groups, weights, tape, state, drawn, seen, lanes, home, first, queue)


@callee
def _play(
    scene: Scene,
    groups: Groups,
    weights: Weights,
    tape: Tape,
    state: State,
    drawn: Floats,
    seen: Seen,
    lanes: LaneState,
    home: Ints,
    first: Ints,
    queue: Ints,
) -> None:
    """`play`, with room to work in."""
    q = len(state.home)
    begin(groups, state)
    start(groups, weights, tape, state)
    seen.cost[0] = _price(scene, groups, state, seen, lanes, home, first, queue)
    for step in range(q):
        v = groups.visits[step]
        choose(groups, weights, tape, v)
        d = _pick(tape, drawn[step])
        seen.taken[step] = d
        seen.cost[step + 1] = seen.cost[step]
        moved = d != state.home[v]
        advance(groups, tape, state, step, d)
        if moved:
            seen.cost[step + 1] = _price(scene, groups, state, seen, lanes, home, first, queue)
        if step + 1 < q:
            refresh(groups, weights, tape, state, 2, False)


@callee
def _pick(tape: Tape, drawn: float) -> int:
    """The device that a number between 0 and 1 falls on, or the likeliest one."""
    best, left = 0, drawn
    for d in range(tape.chance.shape[1]):
        if drawn <= 1.0 and tape.chance[0, d] > 0.0:
            best = d
            left -= tape.chance[0, d]
            if left < 0.0:
                break
        elif tape.chance[0, d] > tape.chance[0, best]:
            best = d
    return best


@callee
def _price(
    scene: Scene,
    groups: Groups,
    state: State,
    seen: Seen,
    lanes: LaneState,
    home: Ints,
    first: Ints,
    queue: Ints,
) -> float:
    """Cost of the placement, which is kept if it fits and none was better."""
    for v in range(len(home)):
        home[v] = state.home[groups.label[v]]
    clear(scene.net, lanes)
    value = follow_into(scene.net, home, scene.order, False, lanes, first, queue)[0]
    excess = 0.0
    fits = True
    for d in range(len(groups.limit)):
        held = 0.0
        for u in range(len(state.home)):
            if state.home[u] == d:
                held += groups.memory[u]
        if held > groups.limit[d]:
            fits = False
            excess = max(excess, (held - groups.limit[d]) / max(groups.limit[d], 1.0))
    if fits and value < seen.value[0]:
        seen.value[0] = value
        for u in range(len(state.home)):
            seen.best[u] = state.home[u]
    return value / groups.unit + PENALTY * excess
