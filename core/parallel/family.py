"""Families of sets of items, in which stages of a parallel plan may begin and end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.model.graph import Bools, Floats, Ints, offsets
from dnnp.core.model.hybrid import HybridProblem
from dnnp.core.parallel.cover import (
    AGAIN,
    FASTEST,
    PLAIN,
    Family,
    Nets,
    Rules,
    Swaps,
    Teams,
)
from dnnp.core.parallel.problem import degrees_of, replicas_of, summed
from dnnp.core.split.ideals.lattice import make_lattice

AT_ONCE = 2_000_000
"""Sets times pins, or items, that are looked at at once."""


def least_work(problem: HybridProblem) -> Floats:
    """Device-seconds that each item takes at least; f64[n], inf: no device can run it."""
    first, last = kinds_of(problem)
    time = summed(_kinds(problem, problem.time)[first : last + 1], problem.part, problem.n)
    degrees = degrees_of(problem)
    share = problem.degrees[degrees, None] * time[:, degrees]
    least: Floats = share.min(axis=(0, 1), initial=np.inf)
    if problem.whole < 0:
        return least
    if problem.shared_only is not None:
        least = np.where(problem.shared_only, np.inf, least)
    shared = problem.degrees[problem.whole] * time[:, problem.whole]
    return np.minimum(least, shared.min(axis=0))


def kinds_of(problem: HybridProblem) -> tuple[int, int]:
    """The first and the last kind of sums that stages may have."""
    auto = (FASTEST, FASTEST) if problem.partwise else (PLAIN, AGAIN)
    choice = {"none": (PLAIN, PLAIN), "full": (AGAIN, AGAIN)}
    return choice.get(problem.options.recompute, auto)


def all_ends(problem: HybridProblem, most: int) -> Bools | None:
    """Every set of items that holds what follows them; bool[I, n]. None: more than `most`."""
    last = problem.n - 1
    lattice = make_lattice(problem.n, last - problem.head, last - problem.tail, most)
    if lattice is None:
        return None
    member = np.zeros((lattice.size, problem.n), dtype=np.bool_)
    for i in range(1, lattice.size):
        member[i] = member[lattice.parent[i]]
        member[i, last - lattice.last[i]] = True
    return member


def ends_of_orders(orders: Sequence[Ints]) -> Bools:
    """The sets that hold the last items of an order of all items; bool[I, n]."""
    n = len(orders[0])
    found = []
    for order in orders:
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        found.append(place[None, :] >= n - np.arange(n + 1)[:, None])
    member = np.unique(np.concatenate(found), axis=0) if len(found) > 1 else found[0]
    return np.asarray(member[np.argsort(member.sum(axis=1), kind="stable")])


def family_of(problem: HybridProblem, member: Bools) -> Family:
    """What a cover needs of sets of items.

    `member`: bool[I, n], by size, each set once, the empty one and that of all items among them.
    """
    sets, n = member.shape
    words = n // 64 + 1
    bits = np.zeros((sets, words * 64), dtype=np.bool_)
    bits[:, :n] = member
    packed = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    values = [_kinds(problem, which) for which in (problem.time, problem.held, problem.fixed)]
    finite = np.isfinite(values[0])
    by_part = [*(np.where(np.isfinite(v), v, 0.0) for v in values), ~finite]
    by_item = [summed(v, problem.part, n).reshape(-1, n) for v in by_part]
    flat = np.concatenate(
        [least_work(problem)[None], *by_item, problem.weight, problem.ahead[None]]
    ).T
    sums = np.empty((sets, flat.shape[1]))
    step = max(AT_ONCE // max(n, 1), 1)
    for at in range(0, sets, step):
        sums[at : at + step] = member[at : at + step].astype(float) @ flat
    count = len(problem.degrees)
    cuts = np.cumsum([1, *[3 * count] * 4, count])
    work, time, held, fixed, unfit, weight, ahead = np.split(sums, cuts, axis=1)
    by_work = np.argsort(work[:, 0], kind="stable")
    cross_ptr, cross = _crossing(problem, member)
    return Family(
        words=np.ascontiguousarray(packed),
        work=np.ascontiguousarray(work[:, 0]),
        by_work=by_work,
        sorted_work=np.ascontiguousarray(work[by_work, 0]),
        time=np.ascontiguousarray(time.reshape(sets, 3, count)),
        held=np.ascontiguousarray(held.reshape(sets, 3, count)),
        fixed=np.ascontiguousarray(fixed.reshape(sets, 3, count)),
        unfit=np.ascontiguousarray(np.rint(unfit).astype(np.int64).reshape(sets, 3, count)),
        weight=np.ascontiguousarray(weight),
        ahead=np.rint(ahead[:, 0]).astype(np.int64),
        cross_ptr=cross_ptr,
        cross=cross,
    )


def faster_again(problem: HybridProblem) -> Bools:
    """Parts that are as fast, or faster, if their forward pass is run again; bool[D, q].

    Of equally fast ways it is the one that holds less with one micro-batch under way.
    """
    memory = problem.held + problem.fixed
    same = problem.time[AGAIN] == problem.time[PLAIN]
    return np.asarray(
        (problem.time[AGAIN] < problem.time[PLAIN]) | (same & (memory[AGAIN] < memory[PLAIN]))
    )


def _kinds(problem: HybridProblem, values: Floats) -> Floats:
    """Values by `PLAIN`, `AGAIN` and `FASTEST`; f64[3, D, q]."""
    fastest = np.where(faster_again(problem), values[AGAIN], values[PLAIN])
    return np.stack([values[PLAIN], values[AGAIN], fastest])


def _crossing(problem: HybridProblem, member: Bools) -> tuple[Ints, Ints]:
    """Nets with some pins in each set and some outside it (CSR)."""
    p = len(problem.source)
    pins = np.diff(problem.pin_ptr)
    rows: list[Ints] = []
    counts: list[Ints] = []
    step = max(AT_ONCE // max(len(problem.pins), 1), 1)
    for at in range(0, len(member), step):
        inside = member[at : at + step][:, problem.pins].astype(np.int64)
        total = np.add.reduceat(inside, problem.pin_ptr[:-1], axis=1) if p else inside[:, :0]
        some = (total > 0) & (total < pins)
        counts.append(some.sum(axis=1))
        rows.append(np.nonzero(some)[1])
    return offsets(np.concatenate(counts)), np.concatenate(rows).astype(np.int64)


def nets_for(problem: HybridProblem) -> Nets:
    """The nets of a problem for a cover."""
    p, words = len(problem.source), problem.n // 64 + 1
    bits = np.zeros((p, words * 64), dtype=np.bool_)
    bits[np.repeat(np.arange(p), np.diff(problem.pin_ptr)), problem.pins] = True
    packed = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    return Nets(
        np.ascontiguousarray(packed.reshape(p, words)),
        problem.source.astype(np.int64),
        np.ascontiguousarray(problem.in_s),
        np.ascontiguousarray(problem.out_s),
        problem.kept.astype(np.float64),
        np.ascontiguousarray(problem.read),
    )


def swaps_of(problem: HybridProblem, most: int) -> Swaps:
    """Parts that save memory if they do not run as is fastest, for 1 to `most` under way."""
    sign = np.where(faster_again(problem), -1.0, 1.0)
    if kinds_of(problem)[0] != FASTEST:
        none, empty = np.zeros(0, dtype=np.int64), np.zeros((len(problem.degrees), 0))
        return Swaps(none, none, empty, empty, empty, np.zeros((len(empty), 0, 0), np.int32))
    with np.errstate(invalid="ignore"):
        cost = sign * (problem.time[AGAIN] - problem.time[PLAIN])
        fixed = sign * (problem.fixed[PLAIN] - problem.fixed[AGAIN])
        held = sign * (problem.held[PLAIN] - problem.held[AGAIN])
    possible = np.isfinite(cost)
    part = np.flatnonzero((possible & ((fixed > 0) | (held > 0))).any(axis=0))
    kept = (np.where(possible, v, 0.0)[:, part] for v in (cost, fixed, held))
    # In one layout: a kernel is compiled for each.
    cost, fixed, held = map(np.ascontiguousarray, kept)
    saved = fixed[:, None] + np.arange(1, most + 1)[None, :, None] * held[:, None]
    key = np.where(saved > 0, cost[:, None] / np.where(saved > 0, saved, 1.0), np.inf)
    order = np.argsort(key, axis=2, kind="stable").astype(np.int32)
    return Swaps(part, problem.part[part], cost, fixed, held, order)


def teams_of(problem: HybridProblem) -> Teams:
    """The ways in which a stage may use devices."""
    allowed, copies = np.array(degrees_of(problem), dtype=np.int64), replicas_of(problem)
    degree, replicas = np.repeat(allowed, len(copies)), np.tile(copies, len(allowed))
    devices = problem.degrees[degree] * replicas
    order = np.argsort(devices, kind="stable")
    order = order[devices[order] <= problem.devices]
    devices = devices[order]
    first = np.flatnonzero(np.diff(devices, prepend=0))
    return Teams(degree[order], replicas[order], devices, np.append(first, len(devices)))


def rules_of(problem: HybridProblem, scale: float) -> Rules:
    """How stages are priced and judged; `scale`: a time that no sum of them exceeds."""
    options = problem.options
    first, last = kinds_of(problem)
    return Rules(
        devices=problem.devices,
        most_replicas=min(
            options.micro_batches,
            problem.devices + (options.shared_stages if problem.whole >= 0 else 0),
        ),
        partwise=first == FASTEST,
        first=first,
        last=last,
        comm=problem.comm,
        overlap_sync=options.overlap_sync,
        sync_s=problem.sync_s,
        room=problem.memory * ROOM,
        slack=max(scale * MARGIN * 1e-3, np.finfo(float).tiny),  # also where nothing takes time
    )
