"""The integer program of the largest load (2020 paper, Fig. 6, Lemma 4.1 and section 5.3).

Everything is divided by a reference load, so that the objective is about 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.mip.program import SLACK
from dnnp.core.mip.split.draft import Draft, Term
from dnnp.core.mip.split.shape import budget_devices, keep_contiguous, keep_order, number_places
from dnnp.core.mip.split.storage import Bytes
from dnnp.core.mip.split.task import Task, count_places, nets_of
from dnnp.core.mip.split.transfers import Transfers, transfers_of
from dnnp.core.model.run import PLAIN, Run


class Cut(NamedTuple):
    """What a solution taught about a set of items in one kind of place."""

    device: int
    replicas: int
    items: tuple[int, ...]
    loads: tuple[float, ...]
    """What exactly these items load the place with, seconds; inf: they do not fit."""
    grows: bool
    """Whether they do not fit together with others either."""


def entries(task: Task) -> int:
    """Numbers in the program of a task, roughly."""
    line = task.line
    per_place = 6 * line.n + 5 * len(line.pins)
    if task.ordered:
        per_place += 4 * len(line.tail)
    if task.cells is not None:
        per_place += 5 * len(task.cells.tail) + 3 * len(task.cells.node)
    return per_place * count_places(task)


def formulate(
    task: Task,
    reference: float,
    upper: float,
    cuts: Sequence[Cut] = (),
    run: Run = PLAIN,
) -> Draft:
    """Build the program whose solutions are splits with an objective of at most `upper`.

    Parameters
    ----------
    task
        Items, devices and options.
    reference
        The load that counts as 1, seconds.
    upper
        In units of the reference.
    cuts
        What earlier solutions taught.
    run
        Once it is to end, the program is left unfinished.
    """
    draft = Draft(task, reference, upper)
    budget_devices(draft)
    if task.ordered:
        keep_order(draft)
    else:
        number_places(draft)
    if task.cells is not None:
        keep_contiguous(draft, task.cells, run)
    nets = [nets_of(task, d) for d in range(len(task.devices))]
    for i, place in enumerate(draft.places):
        if run.stop():
            break
        device = task.devices[place.device]
        moved = transfers_of(draft, i, [] if device.is_cpu else nets[place.device])
        _loads(draft, i, moved)
        _memory(draft, i)
    for cut in cuts:
        _learn(draft, cut)
    return draft


def _loads(draft: Draft, i: int, moved: Transfers) -> None:
    """The formulas of `dnnp.core.cost.load`, for one place."""
    comm = draft.task.options.comm
    sync = _synchronisation(draft, i)
    streamed = _overflow(draft, i)
    for part, top in enumerate(draft.tops):
        work = draft.work(draft.places[i])[part]
        compute = [(row[i], float(work[v])) for v, row in enumerate(draft.x)]
        arriving, leaving = moved.arriving[part] + streamed, moved.leaving[part]
        extra = sync if part == len(draft.tops) - 1 else []
        if comm == "sum":
            draft.load(compute + arriving + leaving + extra, top)
            continue
        links = [arriving + leaving] if comm == "overlap" else [arriving, leaving]
        for terms in (compute, extra, *links):
            draft.load(terms, top)


def _memory(draft: Draft, i: int) -> None:
    """Constraint (3) of the 2020 paper: the items of a place fit its device."""
    storage = draft.task.storage
    capacity = draft.task.capacity(draft.places[i])
    if not np.isfinite(capacity) or capacity <= 0 or storage.fits(capacity):
        return
    held = _held(draft, i, capacity)
    draft.row([(held, 1.0)], "<", 1.0 + SLACK)
    for v, row in enumerate(draft.x):
        if storage.live[v] > 0:
            live = float(storage.live[v]) / capacity
            draft.row([(held, 1.0), (row[i], live)], "<", 1.0 + SLACK)


def _overflow(draft: Draft, i: int) -> list[Term]:
    """Time to stream what is above the capacity, at least (MTPP Eq. 2)."""
    task, place = draft.task, draft.places[i]
    device = task.devices[place.device]
    streamed = task.options.memory_mode == "overflow" and not device.is_cpu and task.passes == 1
    if not streamed or task.storage.fits(device.memory_bytes):
        return []
    price = draft.price(place, 1.0 / device.bandwidth_bytes_per_s)
    storage = task.storage
    # In units of what could be needed at most, so that the row's numbers are about 1.
    most, limit = storage.most, device.memory_bytes / storage.most
    if price * most <= 0:
        return []
    excess = draft.column(lambda at: max(storage.least(at == i) / most - limit, 0.0))
    held = _held(draft, i, most)
    draft.row([(excess, 1.0), (held, -1.0)], ">", -limit)
    for v, row in enumerate(draft.x):
        if storage.live[v] > 0:
            live = float(storage.live[v]) / most
            draft.row([(excess, 1.0), (held, -1.0), (row[i], -live)], ">", -limit)
    return [(excess, price * most)]


def _held(draft: Draft, i: int, unit: float) -> int:
    """Column: what the items of a place hold in any case, in units of `unit` bytes."""
    held = draft.task.storage.held
    column = draft.column(lambda at: held.of(at == i) / unit, upper=1.0 + 2 * SLACK)
    terms = [(c, -w / unit) for c, w in _bytes(draft, i, held)]
    draft.row([(column, 1.0), *terms], "=", 0.0)
    return column


def _synchronisation(draft: Draft, i: int) -> list[Term]:
    """Time that the replicas of a place take to agree on weights (2020 paper, Appendix C.2)."""
    place, weights = draft.places[i], draft.task.weights
    if place.replicas == 1 or weights is None:
        return []
    rate = draft.task.devices[place.device].bandwidth_bytes_per_s
    price = draft.price(place, (place.replicas - 1) / rate)
    return [(c, w * price) for c, w in _bytes(draft, i, weights)] if price > 0 else []


def _bytes(draft: Draft, i: int, held: Bytes) -> list[Term]:
    """Bytes of the items in a place; what several items share has a column."""
    terms = [(row[i], float(held.own[v])) for v, row in enumerate(draft.x) if held.own[v] > 0]
    for size, items in held.shared:
        members = list(items)
        there = draft.column(lambda at, members=members: float((at[members] == i).any()))  # type: ignore[misc]
        for v in members:
            if draft.x[v][i] >= 0:
                draft.row([(there, 1.0), (draft.x[v][i], -1.0)], ">", 0.0)
        terms.append((there, size))
    return terms


def _learn(draft: Draft, cut: Cut) -> None:
    """In every place of the cut's kind, its items load as much as they are known to do."""
    inside = set(cut.items)
    for i, place in enumerate(draft.places):
        if (place.device, place.replicas) != (cut.device, cut.replicas):
            continue
        missing = [(draft.x[v][i], -1.0) for v in cut.items]
        others = [(row[i], 1.0) for v, row in enumerate(draft.x) if v not in inside]
        if cut.grows:
            draft.row(missing, ">", 1.0 - len(inside))
            continue
        for top, load in zip(draft.tops, cut.loads, strict=True):
            share = load / draft.reference
            if share > draft.upper:
                draft.row(missing + others, ">", 1.0 - len(inside))
            else:
                apart = [(c, share * w) for c, w in missing + others]
                draft.row([(top, 1.0), *apart], ">", share * (1.0 - len(inside)))
