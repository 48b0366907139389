"""Splits to start a search from, as labels, and the way from labels to splits and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import by_first, components
from dnnp.core.cost.latency import POOL, Invocations
from dnnp.core.latency.blocks.items import BlockItems
from dnnp.core.latency.blocks.state import Fixed, devices_of
from dnnp.core.model.graph import Ints, distinct


class Labels(NamedTuple):
    """A split as in `state`."""

    at: Ints
    """i64[c], label of each item."""
    slot: Ints
    """i64[S], slot at each position."""
    device: Ints
    """i64[S], accelerator of each slot."""


def split_of(items: BlockItems, labels: Labels) -> Invocations:
    """The blocks of labels, in the order of their positions."""
    odd = labels.at % 2 == 1
    used = distinct(labels.at[odd] // 2)
    number = np.full(len(labels.slot) + 1, POOL, dtype=np.int64)
    number[used] = np.arange(len(used))
    block = np.where(odd, number[labels.at // 2], POOL)
    return Invocations(items.devices[labels.device[labels.slot[used]]], block[items.label])


def labels_of(items: BlockItems, fixed: Fixed, split: Invocations) -> Labels | None:
    """Labels of a split; None if it parts items, has a cycle, or too many blocks for a pass."""
    block = split.block[items.member_idx[items.member_ptr[:-1]]] if items.count else split.block
    if (block[items.label] != split.block).any():
        return None
    order = _line_up(items, split, block)
    if order is None:
        return None
    accelerator = np.full(int(items.devices.max(initial=-1)) + 1, -1, dtype=np.int64)
    accelerator[items.devices] = np.arange(len(items.devices))
    device = np.zeros(len(fixed.slot_late), dtype=np.int64)
    slot: list[int] = []
    position = np.zeros(len(split.device), dtype=np.int64)
    free = {late: np.flatnonzero(fixed.slot_late == late).tolist() for late in (0, 1)}
    for p, b in enumerate(order):
        held = fixed.late[block == b]
        if not len(held) or not free[int(held[0])]:
            return None
        s = free[int(held[0])].pop(0)
        slot.append(s)
        device[s] = accelerator[split.device[b]]
        position[b] = p
    rest = [s for s in range(len(device)) if s not in slot]
    for late in (0, 1):
        mine = fixed.slot_late == late
        most = int(mine.sum()) // max(len(items.devices), 1)
        taken = np.bincount(device[[s for s in slot if mine[s]]], minlength=len(items.devices))
        if (taken > most).any():
            return None
        left = np.repeat(np.arange(len(items.devices)), np.maximum(most - taken, 0))
        device[[s for s in rest if mine[s]]] = left[: sum(bool(mine[s]) for s in rest)]
    at = np.where(block >= 0, 2 * position[block] + 1 if len(position) else 0, 0)
    for i in range(items.count):
        if block[i] < 0:
            earlier = items.before_idx[items.before_ptr[i] : items.before_ptr[i + 1]]
            low = int(at[earlier].max(initial=0))
            at[i] = low + low % 2
    return Labels(at, np.array(slot + rest, dtype=np.int64), device)


def filled_start(items: BlockItems, fixed: Fixed) -> Labels:
    """Greedy (2020 paper, Section 7): each accelerator takes what fits, in topological order."""
    line = line_of(items)
    return _sliced(items, fixed, line, _order(line, None), None)


def pooled_start(items: BlockItems, fixed: Fixed) -> list[Labels]:
    """All in the pool, if the CPU supports everything."""
    slots = len(fixed.slot_late)
    if not items.pooled.all():
        return []
    return [
        Labels(np.zeros(items.count, dtype=np.int64), np.arange(slots), devices_of(items, fixed))
    ]


def random_start(items: BlockItems, fixed: Fixed, rng: np.random.Generator) -> Labels:
    """Slices of a random order, about equal in memory or time, on accelerators in any order."""
    line = line_of(items)
    return _sliced(items, fixed, line, _order(line, rng), rng)


class Line(NamedTuple):
    """Groups of items, to be put in an order that suits both passes."""

    along: bool
    """The backward pass runs through the accelerators in the order of the forward pass."""
    part: Ints
    """i64[g], strongly connected component of each group."""
    after: list[list[int]]
    """Components directly after each."""


def line_of(items: BlockItems) -> Line:
    """Order the groups by the edges of both passes; the direction that joins fewer groups."""
    groups = int(items.group.max(initial=-1)) + 1
    tail = np.repeat(np.arange(items.count), np.diff(items.after_ptr))
    head = items.after_idx
    inner = items.backward[tail] == items.backward[head]
    tail, head = tail[inner], head[inner]
    late = items.backward[tail]
    best: Line | None = None
    for along in (False, True):
        a = items.group[np.where(late & (not along), head, tail)]
        b = items.group[np.where(late & (not along), tail, head)]
        part = components(np.arange(groups), a, b)
        first = by_first(part[items.group])
        part = first[part]
        if best is None or len(first) > len(best.after):
            after: list[list[int]] = [[] for _ in first]
            pairs = distinct(part[a] * max(len(first), 1) + part[b])
            for pair in pairs.tolist():
                x, y = divmod(pair, len(first))
                if x != y:
                    after[x].append(y)
            best = Line(along, part, after)
    return best or Line(False, np.zeros(0, dtype=np.int64), [])


def _order(line: Line, rng: np.random.Generator | None) -> Ints:
    """Groups in a topological order: the first ready one, or a random one, or the last ready."""
    count = len(line.after)
    waits = [0] * count
    for later in line.after:
        for y in later:
            waits[y] += 1
    ready = [x for x in range(count) if not waits[x]]
    deep = rng is not None and rng.integers(2) == 0
    place = np.zeros(count, dtype=np.int64)
    draws = rng.random(count).tolist() if rng is not None else None
    for done in range(count):
        if draws is None:
            k = ready.index(min(ready))
        else:
            k = int(draws[done] * len(ready))
            k = max(k, len(ready) - 2) if deep else k
        x = ready.pop(k)
        place[x] = done
        for y in line.after[x]:
            waits[y] -= 1
            if not waits[y]:
                ready.append(y)
    return np.argsort(place[line.part], kind="stable")


def _sliced(
    items: BlockItems, fixed: Fixed, line: Line, order: Ints, rng: np.random.Generator | None
) -> Labels:
    """Slots one after the other, until each is full, or (`rng`) has its share of a weight."""
    slots = len(fixed.slot_late)
    forward = int((fixed.slot_late == 0).sum())
    device = devices_of(items, fixed, along=line.along)
    groups = len(order)
    load = np.bincount(items.group, items.memory, groups)
    weight, cut = load, np.full(forward, np.inf)
    if rng is not None and forward:
        device = rng.permutation(len(items.devices))[device]
        if rng.integers(2) or not weight.any():
            quick = items.time.min(axis=0)
            weight = np.bincount(items.group, np.where(np.isfinite(quick), quick, 0.0), groups)
        finite = items.capacity[np.isfinite(items.capacity)]
        capacity = max(float(finite.mean()), 1e-300) if len(finite) else np.inf
        least = min(max(int(np.ceil(float(load.sum()) / capacity)), 1), forward)
        used = int(rng.integers(least, forward + 1))
        cut[:used] = float(weight.sum()) * np.arange(1, used + 1) / used
        cut[used - 1] = np.inf
    held = np.zeros(len(items.devices))
    turn = np.zeros(groups, dtype=np.int64)
    p, passed = 0, 0.0
    for g in order.tolist():
        while p < forward:
            full = rng is None and held[device[p]] + load[g] > items.capacity[device[p]]
            if not full and passed + 0.5 * weight[g] <= cut[p]:
                break
            p += 1
        turn[g] = p
        passed += weight[g]
        if p < forward:
            held[device[p]] += load[g]
    at = np.zeros(items.count, dtype=np.int64)
    for i in range(items.count):
        earlier = items.before_idx[items.before_ptr[i] : items.before_ptr[i + 1]]
        low = int(at[earlier].max(initial=0))
        p = int(turn[items.group[i]])
        wanted = 2 * p + int(p < forward)
        if fixed.late[i]:
            wanted = 2 * forward + (wanted if line.along else 2 * forward - wanted)
        at[i] = _fit(items, fixed, device, i, max(low, wanted))
    return Labels(at, np.arange(slots), device)


def _fit(items: BlockItems, fixed: Fixed, device: Ints, i: int, label: int) -> int:
    """The first label from `label` on that an item may have; else the pool after it."""
    for found in range(label, 2 * len(device) + 1):
        if found % 2 == 0:
            if items.pooled[i]:
                return found
            continue
        s = found // 2
        if fixed.slot_late[s] == fixed.late[i] and np.isfinite(items.time[device[s], i]):
            return found
    return label + label % 2


def _line_up(items: BlockItems, split: Invocations, block: Ints) -> list[int] | None:
    """The blocks in an order in which they can run; None if they wait for each other."""
    blocks = len(split.device)
    vertex = np.where(block >= 0, block, blocks + np.arange(items.count))
    after: list[set[int]] = [set() for _ in range(blocks + items.count)]
    for i in range(items.count):
        for j in items.after_idx[items.after_ptr[i] : items.after_ptr[i + 1]].tolist():
            if vertex[i] != vertex[j]:
                after[int(vertex[i])].add(int(vertex[j]))
    last: dict[int, int] = {}
    for b, d in enumerate(split.device.tolist()):
        if d in last:
            after[last[d]].add(b)
        last[d] = b
    waits = [0] * len(after)
    for later in after:
        for v in later:
            waits[v] += 1
    ready = [v for v in range(len(after)) if not waits[v]]
    for v in ready:
        for w in sorted(after[v]):
            waits[w] -= 1
            if not waits[w]:
                ready.append(w)
    return [v for v in ready if v < blocks] if len(ready) == len(after) else None
