"""Covering a graph with stages of single teams of devices and with stages that all devices share.

A device has one stage of its own at most, and its part of every shared stage: its load is the sum,
and so is its memory. Stages are laid from the end of the pipeline on, as in `cover`. Here what is
known of a set of items are labels: ways to hold its items in stages, each with what they take of

    the time and the memory of every device, by shared stages
    the shared stages that there may be, the replicas in all, and the devices with stages of theirs

A label that takes no less of anything than another one goes. Loads of devices' own stages are below
one limit, shared ones below another together; `shared` searches for the best pair of limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, kernel
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.parallel.cover import gather, holds, kind_in, most_in_flight


class Share(NamedTuple):
    """What stages on all devices may take."""

    degree: int
    """Position of the tensor-parallel degree of all devices."""
    most: int
    """Stages, at most."""
    budget: float
    """Time of all of them together, at most."""
    room: float
    """Bytes of all of them together, at most."""
    first: int
    last: int
    """Kinds of sums to try: `PLAIN`, `AGAIN` or both."""
    weighed: bool
    """Whether memory is limited; else it is not counted."""
    counted: bool
    """Whether the number of replicas matters; else it is not counted."""
    only: Ints
    """i64[I], items of each set that cannot be in other stages."""


class Labels(NamedTuple):
    """Ways to hold sets; the arrays have room for more than there are."""

    load: Floats
    memory: Floats
    """Time and bytes of shared stages."""
    stages: Ints
    """Shared stages."""
    replicas: Ints
    """Of all stages."""
    devices: Ints
    """With stages of their own."""
    team: Ints
    """Team of the first stage; -1 - kind: it is shared, and of that kind of sums."""
    before: Ints
    """Label of what follows the first stage; -1: nothing does."""
    held: Ints
    """The set."""
    following: Ints
    """The next label of the same set; -1: there is none."""


class Board(NamedTuple):
    """Labels while they are made."""

    labels: Labels
    head: Ints
    """i64[I], the first label of each set; -1: there is none."""
    made: Ints
    """i64[1], labels."""
    new: Ints
    """i64[5], of a label to be added: stages, replicas, devices, team, label before."""


class Work(NamedTuple):
    """Work space, as `gather` and `most_in_flight` need it."""

    sums: Floats
    block: np.ndarray
    cost: Floats
    save: Floats
    took: Ints


@callee
def _add(board, at, load, memory):  # type: ignore[no-untyped-def]
    """Keep a label of a set unless another one is no worse; drop those that it is no worse than.

    False: there is no room.
    """
    labels, head, new = board.labels, board.head, board.new
    e = head[at]
    while e >= 0:
        if (
            labels.load[e] <= load
            and labels.memory[e] <= memory
            and labels.stages[e] <= new[0]
            and labels.replicas[e] <= new[1]
            and labels.devices[e] <= new[2]
        ):
            return True
        e = labels.following[e]
    last, e = -1, head[at]
    while e >= 0:
        then = labels.following[e]
        if (
            labels.load[e] >= load
            and labels.memory[e] >= memory
            and labels.stages[e] >= new[0]
            and labels.replicas[e] >= new[1]
            and labels.devices[e] >= new[2]
        ):
            if last < 0:
                head[at] = then
            else:
                labels.following[last] = then
        else:
            last = e
        e = then
    i = board.made[0]
    if i == len(labels.load):
        return False
    board.made[0] = i + 1
    labels.load[i], labels.memory[i] = load, memory
    labels.stages[i], labels.replicas[i], labels.devices[i] = new[0], new[1], new[2]
    labels.team[i], labels.before[i], labels.held[i] = new[3], new[4], at
    labels.following[i] = head[at]
    head[at] = i
    return True


@callee
def _hopeless(rules, share, limit, rest, devices, load):  # type: ignore[no-untyped-def]
    """Whether the work that is left is more than what all devices can still do."""
    own = (rules.devices - devices) * (limit + rules.slack)
    return rest > own + rules.devices * (share.budget + rules.slack - load)


@callee
def _add_shared(  # type: ignore[no-untyped-def]
    family, rules, share, limit, small, large, board, work
):
    """Labels of a set whose first stage is shared; False: there is no room."""
    labels, new, sums = board.labels, board.new, work.sums
    i, rest = share.degree, family.work[len(family.work) - 1] - family.work[large]
    room = True
    for asked in range(share.first, share.last + 1):
        kind = kind_in(family, small, large, asked)
        if family.unfit[large, kind, i] > family.unfit[small, kind, i]:
            continue
        compute = family.time[large, kind, i] - family.time[small, kind, i]
        if rules.comm == 0:
            load = sums[0, i] + compute + sums[1, i]
        elif rules.comm == 1:
            load = max(compute, sums[0, i] + sums[1, i])
        else:
            load = max(compute, sums[0, i], sums[1, i])
        fixed = family.fixed[large, kind, i] - family.fixed[small, kind, i]
        each = family.held[large, kind, i] - family.held[small, kind, i]
        if kind == 1:
            each += sums[2, 0]
        e = board.head[small]
        while e >= 0:
            now, total = labels.load[e] + load, labels.replicas[e] + (1 if share.counted else 0)
            memory = labels.memory[e]
            if share.weighed:
                memory += fixed + total * each
            if (
                labels.stages[e] < share.most
                and total <= rules.most_replicas
                and now <= share.budget + rules.slack
                and memory <= share.room
                and not _hopeless(rules, share, limit, rest, labels.devices[e], now)
            ):
                new[0], new[1], new[2] = labels.stages[e] + 1, total, labels.devices[e]
                new[3], new[4] = -1 - kind, e
                room = _add(board, large, now, memory) and room
            e = labels.following[e]
    return room


@callee
def _add_own(  # type: ignore[no-untyped-def]
    family, swaps, teams, rules, share, limit, small, large, board, work
):
    """Labels of a set whose first stage is one of some devices; 1: known, 0: not, -1: no room."""
    labels, new, known = board.labels, board.new, 1
    rest = family.work[len(family.work) - 1] - family.work[large]
    mine = family.work[large] - family.work[small]
    for c in range(len(teams.degree)):
        d, devices = teams.replicas[c], teams.devices[c]
        if mine > devices * (limit + rules.slack):
            continue
        y = most_in_flight(
            family, swaps, rules, limit, small, large, teams.degree[c], d,
            (rules.most_replicas + d - 1) // d,
            work.sums, work.block, work.cost, work.save, work.took,
        )  # fmt: skip
        if y < 0:
            y, known = -1 - y, 0
        if y == 0:
            continue
        e = board.head[small]
        while e >= 0:
            total, used = labels.replicas[e], labels.devices[e] + devices
            if share.counted:
                total += d
            if (
                used <= rules.devices
                and total <= min(y * d, rules.most_replicas)
                and not _hopeless(rules, share, limit, rest, used, labels.load[e])
            ):
                new[0], new[1], new[2], new[3], new[4] = labels.stages[e], total, used, c, e
                if not _add(board, large, labels.load[e], labels.memory[e]):
                    return -1
            e = labels.following[e]
    return known


@callee
def _share(  # type: ignore[no-untyped-def]
    family, nets, swaps, teams, rules, share, limit, board, work
):
    """Labels of all sets; 1: known, 0: not, -1: no room."""
    sets, known = len(family.work), 1
    widest = rules.devices * (max(limit, share.budget) + rules.slack)
    for small in range(sets - 1):
        if board.head[small] < 0:
            continue
        q = np.searchsorted(family.sorted_work, family.work[small] - rules.slack)
        while q < sets and family.sorted_work[q] <= family.work[small] + widest:
            large = family.by_work[q]
            q += 1
            if large <= small or not holds(family.words, small, large):
                continue
            gather(family, nets, small, large, work.sums)
            if share.most > 0 and not _add_shared(
                family, rules, share, limit, small, large, board, work
            ):
                return -1
            if share.only[large] > share.only[small]:
                continue
            if rules.partwise:
                for w in range(len(work.block)):
                    work.block[w] = family.words[large, w] & ~family.words[small, w]
            answer = _add_own(family, swaps, teams, rules, share, limit, small, large, board, work)
            if answer < 0:
                return -1
            known = min(known, answer)
    return known


@kernel
def share_cover(family, nets, swaps, teams, rules, share, limit, most):  # type: ignore[no-untyped-def]
    """Labels of all sets, `most` of them, with own stages below `limit`.

    Returns
    -------
    The arrays of `Labels`; how many there are; the first label of the set of all items, -1: none;
    whether there was room for all; and whether the search for parts to run again never gave up.
    """
    n = swaps.cost.shape[1]
    labels = Labels(
        np.empty(most),
        np.empty(most),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )
    head, count = np.full(len(family.work), -1, np.int64), np.zeros(1, np.int64)
    new = np.zeros(5, np.int64)
    new[3], new[4] = -1, -1
    board = Board(labels, head, count, new)
    work = Work(
        np.zeros((4, family.weight.shape[1])),
        np.zeros(family.words.shape[1], np.uint64),
        np.zeros(n),
        np.zeros(n),
        np.zeros(2 * n + 1, np.int64),
    )
    _add(board, 0, 0.0, 0.0)
    answer = _share(family, nets, swaps, teams, rules, share, limit, board, work)
    return (
        labels.load, labels.memory, labels.stages, labels.replicas, labels.devices, labels.team,
        labels.before, labels.held, labels.following,
        count[0], head[len(head) - 1], answer >= 0, answer == 1,
    )  # fmt: skip


def way_to(labels: Labels, label: int) -> list[tuple[int, int, int]]:
    """Stages of a label in the order of the pipeline: the set before, the set with, the team."""
    found = []
    while labels.before[label] >= 0:
        before = int(labels.before[label])
        found.append((int(labels.held[before]), int(labels.held[label]), int(labels.team[label])))
        label = before
    return found
