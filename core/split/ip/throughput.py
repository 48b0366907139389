"""The integer program of the largest load (2020 paper, Fig. 6, Lemma 4.1 and section 5.3).

Everything is divided by a reference load, so that the objective is about 1.

Columns for tensors that cross the border of a place (2020 paper, constraints (4) and (5)). For a
tensor with source s and a place p,

    in[p] >= x[r, p] - x[s, p],    out[p] >= x[s, p] - x[r, p]    for every reader r,

so a tensor is paid once, however many readers it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.problem import spread
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver.program import SLACK, Program, fails_empty
from dnnp.core.split.ip.task import (
    Bytes,
    Cells,
    Net,
    Place,
    Task,
    alike,
    count_places,
    nets_of,
    places_of,
    reaching,
    without_shortcuts,
)

NEGLIGIBLE = 1e-13
"""Coefficients below this are dropped: loads get smaller, so that bounds stay valid."""

Term = tuple[int, float]
"""A column and its weight."""

Rule = Callable[[Ints], float]
"""Value of a column, given the place of every item."""

Rules = Callable[[Ints], Iterable[float]]
"""Values of several columns."""


class Draft:
    """The columns x[v, p], 1 if item v is in place p, and one or two for the largest loads.

    Parameters
    ----------
    task
        Items, devices and options.
    reference
        The load that counts as 1; solutions with a larger objective are of no interest.
    """

    def __init__(self, task: Task, reference: float) -> None:
        self.task, self.reference = task, reference
        self.upper = 1 + SLACK
        self.program = Program()
        self.hopeless = False
        """A constraint without columns cannot hold."""
        self.places = places_of(task)
        self._rules: list[tuple[list[int], Rules]] = []
        self._loads: list[tuple[list[Term], int]] = []
        self._works: dict[tuple[int, int], list[Floats]] = {}
        self.tops = [
            self.program.column(self.upper, lower=min(low, self.upper), cost=1.0)
            for low in self._least_loads()
        ]
        """Columns of the largest loads; their sum is minimised."""
        if len(self.tops) > 1:
            self.row([(top, 1.0) for top in self.tops], "<", self.upper)
        alone = task.storage.alone()
        self.x = [
            [self._item_column(v, p, float(alone[v])) for p in self.places]
            for v in range(task.line.n)
        ]
        """Column of item v in place p; -1: never there."""
        for row in self.x:
            self.row([(c, 1.0) for c in row], "=", 1.0)

    def work(self, place: Place) -> list[Floats]:
        """Shares of the reference load that items compute in a place, for each load."""
        key = place.device, place.replicas
        if key not in self._works:
            line = self.task.line
            scale = place.replicas * self.reference
            work = line.work[place.device] / scale
            if self.task.passes > 1:
                late = line.backward_work[place.device] / scale
                self._works[key] = [work - late, late]
            else:
                self._works[key] = [work]
        return self._works[key]

    def price(self, place: Place, seconds: float) -> float:
        """Share of the reference load that a time makes in a place."""
        return seconds / (place.replicas * self.reference)

    def row(self, terms: Iterable[Term], sense: str, bound: float) -> None:
        """Add a constraint; columns -1 stand for 0."""
        kept = [(c, w) for c, w in terms if c >= 0]
        if kept:
            self.program.row([c for c, _ in kept], [w for _, w in kept], sense, bound)
        else:
            self.hopeless |= fails_empty(sense, bound)

    def column(self, rule: Rule, *, upper: float = 1.0, integer: bool = False) -> int:
        """Add a column from 0 to `upper` that depends on where the items are."""
        column = self.program.column(upper, integer=integer)
        self._rules.append(([column], lambda at: (rule(at),)))
        return column

    def columns(self, count: int, rules: Rules) -> list[int]:
        """Add several columns from 0 to 1."""
        columns = [self.program.column() for _ in range(count)]
        self._rules.append((columns, rules))
        return columns

    def load(self, terms: Iterable[Term], top: int) -> None:
        """Bound the largest load `top` from below by a sum."""
        kept = [(c, w) for c, w in terms if c >= 0 and w > NEGLIGIBLE]
        if kept:
            self.row([*kept, (top, -1.0)], "<", 0.0)
            self._loads.append((kept, top))

    def assignment(self, values: Sequence[float]) -> Ints:
        """Place of every item in a solution; i64[items]."""
        shares = [[values[c] if c >= 0 else -1.0 for c in row] for row in self.x]
        return np.array(shares).argmax(axis=1)

    def start(self, place: Ints) -> list[float] | None:
        """All columns for places of the items; None if the program rules them out."""
        values = [0.0] * len(self.program.objective)
        for v, p in enumerate(place.tolist()):
            if self.x[v][p] < 0 or self.program.upper[self.x[v][p]] < 1:
                return None
            values[self.x[v][p]] = 1.0
        for columns, rules in self._rules:
            for column, value in zip(columns, rules(place), strict=True):
                values[column] = float(value)
        for top in self.tops:
            values[top] = self.program.lower[top]
        for terms, top in self._loads:
            values[top] = max(values[top], sum(weight * values[c] for c, weight in terms))
        return values

    def _least_loads(self) -> Iterator[float]:
        """Lower bounds of the largest loads: single items, and the mean over devices."""
        works = [self.work(p) for p in self.places]
        counts = np.array([d.count for d in self.task.devices], dtype=np.float64)
        first = [self.work(Place(d, 1, -1)) for d in range(len(counts))]
        for part in range(self.task.passes):
            least = np.min([w[part] for w in works], axis=0)
            finite = least[np.isfinite(least)]
            mean = spread(np.stack([w[part] for w in first]), counts)[0]
            bounds = [float(finite.max(initial=0.0)), mean if np.isfinite(mean) else 0.0]
            yield max(bounds) * (1 - SLACK)

    def _item_column(self, v: int, place: Place, bytes_needed: float) -> int:
        work = sum(float(part[v]) for part in self.work(place))
        if not work <= self.upper or bytes_needed > self.task.capacity(place) * (1 + SLACK):
            return -1
        return self.program.column(integer=True)


class Cut(NamedTuple):
    """A constraint learned from a solution: the load of some items in one kind of place."""

    device: int
    replicas: int
    items: tuple[int, ...]
    loads: tuple[float, ...]
    """Exact loads of these items, seconds; inf: they do not fit."""
    grows: bool
    """They do not fit together with others either."""


def entries(task: Task) -> int:
    """Numbers in the program of a task, roughly."""
    line = task.line
    per_place = 6 * line.n + 5 * len(line.nets.pins)
    if task.ordered:
        per_place += 4 * len(line.tail)
    if task.cells is not None:
        per_place += 5 * len(task.cells.tail) + 3 * len(task.cells.node)
    return per_place * count_places(task)


def formulate(
    task: Task, reference: float, cuts: Sequence[Cut] = (), run: SearchContext = PLAIN
) -> Draft:
    """Build the program whose solutions are splits with an objective of at most `reference`.

    Parameters
    ----------
    task
        Items, devices and options.
    reference
        The load that counts as 1, seconds.
    cuts
        Constraints learned from earlier solutions.
    run
        When to stop: the program is then incomplete.
    """
    draft = Draft(task, reference)
    budget_devices(draft)
    if task.ordered:
        keep_order(draft)
    else:
        number_places(draft)
    if task.cells is not None:
        keep_contiguous(draft, task.cells, run)
    keep_rules(draft)
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
    """Bound the load of the items of a cut in every place of its kind by their known load."""
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


class Transfers(NamedTuple):
    """Transfer terms of a place, for each load that is optimised."""

    arriving: list[list[Term]]
    leaving: list[list[Term]]


def transfers_of(draft: Draft, i: int, nets: Sequence[Net]) -> Transfers:
    """Add the columns and rows of place `i`; return the terms of its loads."""
    found = Transfers([[] for _ in draft.tops], [[] for _ in draft.tops])
    both = draft.task.options.comm != "duplex"
    for net in nets:
        price = draft.price(draft.places[i], net.cost)
        if price <= NEGLIGIBLE:
            continue
        part = int(net.backward)
        if net.source >= 0 and net.always:
            found.leaving[part].append((draft.x[net.source][i], price))
        if not net.readers:
            continue
        if net.source >= 0 and not net.always:
            if price > draft.upper:  # all its items are in the place, or none
                for r in net.readers:
                    draft.row([(draft.x[net.source][i], 1.0), (draft.x[r][i], -1.0)], "=", 0.0)
                continue
            if both and len(net.readers) == 1:
                found.arriving[part].append((_parted(draft, i, net.source, net.readers[0]), price))
                continue
            found.leaving[part].append((_leaving(draft, i, net), price))
        found.arriving[part].append((_arriving(draft, i, net), price))
    return found


def _arriving(draft: Draft, i: int, net: Net) -> int:
    """Column: some reader is in the place, the source is not."""
    readers, source = list(net.readers), net.source
    column = draft.column(
        lambda at: float((at[readers] == i).any() and (source < 0 or at[source] != i))
    )
    for r in readers:
        _at_least(draft, column, draft.x[r][i], draft.x[source][i] if source >= 0 else -1)
    return column


def _leaving(draft: Draft, i: int, net: Net) -> int:
    """Column: the source is in the place, some reader is not."""
    readers, source = list(net.readers), net.source
    column = draft.column(lambda at: float(at[source] == i and (at[readers] != i).any()))
    for r in readers:
        _at_least(draft, column, draft.x[source][i], draft.x[r][i])
    return column


def _parted(draft: Draft, i: int, a: int, b: int) -> int:
    """Column: one of two items is in the place, the other is not."""
    column = draft.column(lambda at: float((at[a] == i) != (at[b] == i)))
    _at_least(draft, column, draft.x[a][i], draft.x[b][i])
    _at_least(draft, column, draft.x[b][i], draft.x[a][i])
    return column


def _at_least(draft: Draft, column: int, more: int, less: int) -> None:
    """column >= more - less."""
    if more >= 0:
        draft.row([(column, 1.0), (more, -1.0), (less, 1.0)], ">", 0.0)


def budget_devices(draft: Draft) -> None:
    """Count the devices of the places in use, if there are more places than devices."""
    devices = draft.task.devices
    wanted = [0] * len(devices)
    steps: dict[int, list[int]] = defaultdict(list)
    for i, p in enumerate(draft.places):
        wanted[p.device] += p.replicas
        if p.step >= 0:
            steps[p.step].append(i)
    scarce = any(w > d.count for w, d in zip(wanted, devices, strict=True))
    if not scarce and all(len(mine) == 1 for mine in steps.values()):
        return
    used = [
        draft.column(lambda at, i=i: float((at == i).any()), integer=True)  # type: ignore[misc]
        for i in range(len(draft.places))
    ]
    for i, q in enumerate(used):
        for row in draft.x:
            if row[i] >= 0:
                draft.row([(row[i], 1.0), (q, -1.0)], "<", 0.0)
        # A place that is used a little carries little.
        work = np.sum(draft.work(draft.places[i]), axis=0)
        carried = [(row[i], float(work[v])) for v, row in enumerate(draft.x)]
        draft.row([*carried, (q, -draft.upper)], "<", 0.0)
    for d, device in enumerate(devices):
        mine = [(used[i], float(p.replicas)) for i, p in enumerate(draft.places) if p.device == d]
        draft.row(mine, "<", float(device.count))
    for step, places in steps.items():
        draft.row([(used[i], 1.0) for i in places], "<", 1.0)
        if step > 0:  # empty steps come last
            before = [(used[i], 1.0) for i in steps[step - 1]]
            draft.row([*before, *((used[i], -1.0) for i in places)], ">", 0.0)


def keep_rules(draft: Draft) -> None:
    """One label a row in each place, and as many places with items as there are to be stages."""
    line, every = draft.task.line, range(draft.task.line.n)
    for labels in line.labels:
        for i in range(len(draft.places)):
            parts = [np.flatnonzero(labels == x).tolist() for x in range(1, labels.max() + 1)]
            draft.row([(_holds(draft, i, part), 1.0) for part in parts], "<", 1.0)
    if not line.exactly:
        return
    used = [_holds(draft, i, every) for i in range(len(draft.places))]
    for i, column in enumerate(used):
        draft.row([(column, -1.0), *((row[i], 1.0) for row in draft.x)], ">", 0.0)
    draft.row([(column, 1.0) for column in used], "=", float(line.exactly))


def _holds(draft: Draft, i: int, items: Sequence[int]) -> int:
    """Column: some of the items are in a place."""
    members = list(items)
    column = draft.column(lambda at: float((at[members] == i).any()))
    for v in members:
        _at_least(draft, column, draft.x[v][i], -1)
    return column


def keep_order(draft: Draft) -> None:
    """Precedence along the pipeline: y[v, s] says that item v is in step s or before."""
    line = draft.task.line
    steps: list[list[int]] = [[] for _ in range(max(p.step for p in draft.places) + 1)]
    for i, p in enumerate(draft.places):
        steps[p.step].append(i)
    step_of = np.array([p.step for p in draft.places])
    done: list[list[int]] = []
    for v in range(line.n):
        ys: list[int] = []
        for s, places in enumerate(steps[:-1]):
            y = draft.column(lambda at, v=v, s=s: float(step_of[at[v]] <= s), integer=True)  # type: ignore[misc]
            last = [(ys[-1], -1.0)] if ys else []
            draft.row([(y, 1.0), *last, *((draft.x[v][i], -1.0) for i in places)], "=", 0.0)
            ys.append(y)
        done.append(ys)
    tail, head = without_shortcuts(line.n, line.tail, line.head)
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        for first, second in zip(done[u], done[v], strict=True):
            draft.row([(second, 1.0), (first, -1.0)], "<", 0.0)


def number_places(draft: Draft) -> None:
    """Break the symmetry of identical places: number them by their first item, heavy items first.

    The i-th item is then in one of the first i of them.
    """
    order = by_work(draft)
    for mine in alike(draft.places):
        for i, v in enumerate(order[: len(mine)]):
            for p in mine[i + 1 :]:
                if draft.x[v][p] >= 0:
                    draft.program.upper[draft.x[v][p]] = 0.0


def by_work(draft: Draft) -> list[int]:
    """Items by falling work, at the class where each takes least."""
    works = np.min([np.sum(draft.work(p), axis=0) for p in draft.places], axis=0)
    order: list[int] = np.argsort(-works, kind="stable").tolist()
    return order


def keep_contiguous(draft: Draft, cells: Cells, run: SearchContext) -> None:
    """Constraints (11) to (13) of Lemma 4.1: z[c] = 1 if cell c reaches the block, itself included.

    Where an edge leaves the block z falls to 0, and it never rises along a path.
    """
    item, edges = draft.task.cell_item, (cells.tail, cells.head)
    for i in range(len(draft.places)):
        if run.stop():
            break
        z = draft.columns(len(item), lambda at, i=i: reaching(*edges, at[item] == i))  # type: ignore[misc]
        x = [draft.x[int(v)][i] for v in item]
        for c, column in enumerate(z):
            if x[c] >= 0:
                draft.row([(column, 1.0), (x[c], -1.0)], ">", 0.0)
        for u, v in zip(cells.tail.tolist(), cells.head.tolist(), strict=True):
            draft.row([(z[v], 1.0), (z[u], -1.0)], "<", 0.0)
            draft.row([(z[v], 1.0), (x[v], -1.0), (x[u], 1.0)], "<", 1.0)
