"""Placements of networks of layers, put together from placements of their segments.

Between two waists (see `core.latency.operators.bound`) everything runs after the end of the one and
before the start of the other, so that the times of segments add up. Segments of one kind are
annealed once for each pair of devices of their waists that may be on a best path, and chosen along
the waists by a program: a path through (waist, device), of least time, that fits the memory. Where
memory is scarce, tasks also pay its dual prices, and kinds are annealed again with them.
Tasks outside of all segments are scheduled last, by insertion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import TRIES, LatencyProblem, Placement
from dnnp.core.cost.load_formula import SAFE_ROOM
from dnnp.core.latency.lists.net import net_of
from dnnp.core.latency.lists.schedule import inserted
from dnnp.core.latency.operators.anneal import Listed, anneal_operators, listed_of, placed
from dnnp.core.latency.operators.bound import earliest_ends, kind_of, line_of, part_of
from dnnp.core.model.errors import LimitError
from dnnp.core.model.graph import Bools, Floats, Ints, place_of, totals
from dnnp.core.model.plan import CLOSED
from dnnp.core.model.search_context import SearchContext
from dnnp.core.solver.program import SparseProgram
from dnnp.core.solver.slices import ask_sparse

LEAST, ALIKE = 8, 3
"""Segments that there are at least, and of one kind on average."""

LONGEST = 3000
"""Tasks of a segment, at most, where waists are far apart."""

ROUNDS = 8
"""Choices, with annealing between them, at most."""

EFFORT = 0.05
"""Effort for a segment at first sight, times the root of the share of the segments of its kind;
`MORE` times that for those of a chosen path."""

MORE = 4.0

KEPT = 6
"""Patterns of a kind for each pair of devices, at most."""

NODES, NEAR, PATIENCE_S = 200, 3e-3, 600.0
"""Nodes of the branch and bound that chooses, at most, its relative gap, and seconds after which
its process is ended."""

SPREAD = 0.02
"""Part of the least cost by which paths may be more that are looked at, where memory is scarce."""

WIDER = (SPREAD, 0.1, 0.5)
"""Those where nothing that was chosen fits, one after the other."""

PENALTY = 4.0
"""First `penalty` of `choose`; twice as much each time that nothing fits."""


class Pattern(NamedTuple):
    """Placement of a segment; its ends take no time and no memory here."""

    ends: tuple[int, int]
    """Devices of the first and the last task."""
    time: float
    """From the end of the first task to the start of the last."""
    memory: Floats
    """f64[D], bytes."""
    listed: Listed

    def cost(self, price: Floats) -> float:
        """Time, and payments for memory."""
        return self.time + float(self.memory @ price)


class Kind:
    """Segments that are alike, and their patterns so far."""

    def __init__(self, part: LatencyProblem, usable: Bools, share: float) -> None:
        memory = part.tasks.memory.copy()
        memory[[0, -1]] = 0.0
        time = np.where(usable.T, part.tasks.time, np.inf)
        self.part = replace(part, tasks=replace(part.tasks, time=time, memory=memory))
        self.share, self.gap = share, _shortest(self.part)
        self.patterns: dict[tuple[int, int], list[Pattern]] = {}
        self.effort: dict[tuple[int, int], tuple[float, Floats]] = {}
        """Effort spent on a pair of devices at which prices."""

    def at(self, ends: tuple[int, int]) -> LatencyProblem:
        """The problem of a segment whose ends are on these devices."""
        time = self.part.tasks.time.copy()
        for v, d in zip((0, -1), ends, strict=True):
            time[:, v] = np.inf
            time[d, v] = 0.0
        return replace(self.part, tasks=replace(self.part.tasks, time=time))

    def add(self, ends: tuple[int, int], listed: Listed, price: Floats) -> None:
        """Add a pattern if none is as good, and drop the worst of too many."""
        problem = self.at(ends)
        used = totals(listed.device, problem.tasks.memory, len(price))
        pattern = Pattern(ends, problem.time(placed(net_of(problem), listed)), used, listed)
        known = self.patterns.setdefault(ends, [])
        if all(p.time > pattern.time or (p.memory > used).any() for p in known):
            known.append(pattern)
            known.sort(key=lambda pattern: pattern.cost(price))
            del known[KEPT:]

    def anneal(
        self, ends: tuple[int, int], price: Floats, effort: float, run: SearchContext
    ) -> None:
        """Anneal for a pair of devices from the best pattern, unless that was done as well."""
        spent, before = self.effort.get(ends, (0.0, price))
        if run.stop() or (spent >= effort and np.allclose(price, before, rtol=0.2, atol=0)):
            return
        self.effort[ends] = effort, price
        problem = self.at(ends)
        time = problem.tasks.time + price[:, None] * problem.tasks.memory
        paid = replace(problem, tasks=replace(problem.tasks, time=time))
        known = self.patterns.get(ends, [])
        best = min(known, key=lambda pattern: pattern.cost(price), default=None)
        start = None if best is None else placed(net_of(paid), best.listed)
        own = replace(run.alone(), effort=effort * run.effort * self.share**0.5)
        try:
            found = anneal_operators(paid, start=start, run=own)
        except LimitError:
            return
        self.add(ends, listed_of(found), price)

    def hoped(self, price: Floats) -> Floats:
        """Least costs for each pair of devices, by bounds where there is no pattern; f64[D, D]."""
        known = [(p.time, self.gap[ends]) for ends, x in self.patterns.items() for p in x]
        ratio = min((time / gap for time, gap in known if gap > 0), default=1.0)
        memory = self.part.tasks.memory[:, None]
        able = np.isfinite(self.part.tasks.time.T)
        pays = np.where(able, memory * price, np.inf).min(axis=1).sum()
        cost: Floats = self.gap * ratio + pays
        for ends, found in self.patterns.items():
            cost[ends] = min((p.cost(price) for p in found), default=np.inf)
        return cost


def _shortest(part: LatencyProblem) -> Floats:
    """Least time between the ends of a segment by paths, by their devices; f64[D, D]."""
    net = net_of(part)
    usable = net.allowed[net.together]
    gap = np.full((len(usable[0]),) * 2, np.inf)
    for a in np.flatnonzero(usable[0]).tolist():
        first = usable.copy()
        first[0] = np.arange(len(gap)) == a
        head = earliest_ends(net, first)
        gap[a] = np.where(usable[-1], head[-1] - net.time[-1], np.inf) - net.time[0, a]
    return gap


class Chain(NamedTuple):
    """Waists, and the kinds of the segments between them."""

    problem: LatencyProblem
    waists: Ints
    """i64[m + 1]."""
    inner: list[Ints]
    """Tasks of each segment with its ends."""
    kinds: list[Kind]
    """Kind of each segment."""
    start: Floats
    end: Floats
    """f64[D], least time to the end of the first waist, and from the end of the last."""
    aside: Bools
    """bool[n], tasks outside of all segments."""

    @property
    def patterns(self) -> list[tuple[int, Pattern]]:
        """Segments and their patterns so far."""
        kinds = enumerate(self.kinds)
        return [(i, p) for i, kind in kinds for x in kind.patterns.values() for p in x]


class Choice(NamedTuple):
    """Segments and their patterns, and dual prices of memory (f64[D], time per byte)."""

    patterns: list[tuple[int, Pattern]]
    price: Floats
    fits: bool


def chain_of(problem: LatencyProblem) -> Chain | None:
    """The segments of a problem; None: they are few, of too many kinds, or share colours."""
    net, n = net_of(problem, tails=True), problem.tasks.n
    usable = net.allowed[net.together]
    if n == 0 or not usable.any(axis=1).all():
        return None
    head = earliest_ends(net, usable)
    inner = list(line_of(problem, np.where(usable, head, np.inf).min(axis=1), LONGEST))
    if len(inner) < LEAST:
        return None
    number, where = np.full(n, -1, dtype=np.int64), np.full(n, -1)
    for i, mine in enumerate(inner):
        where[mine[1:-1]] = i
    spread = np.full(len(net.bytes), -1)
    spread[net.together] = where
    shared = np.bincount(net.together)[net.together] > 1
    if ((where < 0) | (spread[net.together] != where))[shared].any():
        return None
    parts = [part_of(problem, mine, usable, number) for mine in inner]
    keys = [kind_of(part) for part in parts]
    counts = Counter(keys)
    if len(counts) * ALIKE > len(keys):
        return None
    kinds: dict[tuple[bytes, ...], Kind] = {}
    for key, part, mine in zip(keys, parts, inner, strict=True):
        if key not in kinds:
            kinds[key] = Kind(part, usable[mine], counts[key] / max(counts.values()))
    waists = np.array([mine[0] for mine in inner] + [inner[-1][-1]])
    aside = where < 0
    aside[waists] = False
    start = np.where(usable[waists[0]], head[waists[0]], np.inf)
    return Chain(
        problem, waists, inner, [kinds[x] for x in keys], start, net.tail[waists[-1]], aside
    )


def _near(chain: Chain, price: Floats, spread: float) -> Iterator[tuple[Kind, tuple[int, int]]]:
    """Kinds and pairs of devices on a path of the least cost that may be hoped for, or more by
    this part."""
    tasks, to = chain.problem.tasks, [chain.start]
    costs = {kind: kind.hoped(price) for kind in dict.fromkeys(chain.kinds)}
    waist = (tasks.time + price[:, None] * tasks.memory).T[chain.waists]
    for kind, own in zip(chain.kinds, waist[1:], strict=True):
        to.append((to[-1][:, None] + costs[kind]).min(axis=0) + own)
    off = chain.end
    most = float((to[-1] + off).min()) * (1 + spread + CLOSED)
    for i in range(len(chain.kinds) - 1, -1, -1):
        on = costs[chain.kinds[i]] + (waist[i + 1] + off)
        for a, b in np.argwhere(to[i][:, None] + on <= most).tolist():
            yield chain.kinds[i], (a, b)
        off = on.min(axis=1)


def _explore(chain: Chain, price: Floats, spread: float, run: SearchContext) -> None:
    """Anneal what may be on the best path, or on one close to it, until all of it is known."""
    while not run.stop():
        path = dict.fromkeys(_near(chain, price, spread))
        new = [(kind, ends) for kind, ends in path if ends not in kind.patterns]
        for kind, ends in new:
            kind.anneal(ends, price, EFFORT, run)
            kind.patterns.setdefault(ends, [])
        if not new:
            break


def choose(
    chain: Chain,
    capacity: Floats,
    run: SearchContext,
    *,
    whole: bool,
    penalty: float = PENALTY,
) -> Choice | None:
    """Choose patterns of least time within capacities; None: there is no path of patterns.

    Not `whole`: prices alone, by the relaxation, and patterns that it uses. `penalty`: price of
    missing memory, in times of the path for the memory of all tasks.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, csr_array, vstack

    tasks, count = chain.problem.tasks, chain.problem.machine.count
    edges = chain.patterns
    each, total = np.eye(count), max(float(tasks.memory.sum()), 1e-300)
    last, own = len(chain.waists) * count, tasks.memory[chain.waists, None, None] * each
    path = float(tasks.time[:, chain.waists].min(axis=0).sum())
    penalty *= path + sum(float(kind.gap.min()) for kind in chain.kinds)
    # Edges of patterns, from a source into the first waist, and out of the last into a sink.
    ways = [
        (i * count + a, (i + 1) * count + b, p.time + tasks.time[b, v], p.memory + own[i + 1, b])
        for (i, p), v in ((edge, chain.waists[edge[0] + 1]) for edge in edges)
        for a, b in (p.ends,)
    ]
    ways += [(last, d, chain.start[d], own[0, d]) for d in range(count)]
    ways += [(last - count + d, last + 1, chain.end[d], 0 * each[d]) for d in range(count)]
    tail, head, time, used = (np.array(x) for x in zip(*ways, strict=True))
    size, column = len(ways), np.arange(len(ways))
    cost = np.append(np.where(np.isfinite(time), time, 1e3 * penalty), np.full(count, penalty))
    places = np.concatenate([head, tail]), np.concatenate([column, column])
    equal = coo_array(
        (np.repeat([1.0, -1.0], size), places), shape=(last + 2, size + count)
    ).tocsr()
    right = np.repeat([0.0, -1.0, 1.0], [last, 1, 1])
    held = csr_array(np.hstack([used.T / total, -each]))
    beside = float(tasks.memory[chain.aside].sum())
    room = np.minimum(capacity, 2 * total)
    room = (room - room / max(float(room.sum()), 1e-300) * beside) / total
    done = linprog(cost, held, room, equal, right, bounds=(0, None), method="highs")
    if done.status != 0:
        return None
    price: Floats = np.maximum(-done.ineqlin.marginals, 0.0) / total
    x = done.x
    lacks, on_path = bool((x[size:] > 1e-9).any()), np.arange(len(cost)) < size
    if whole and (lacks or np.abs(x[:size] - np.round(x[:size])).max(initial=0.0) > 1e-6):
        entries = vstack([held, equal]).tocoo()
        program = SparseProgram(
            objective=cost,
            lower=np.zeros(len(cost)),
            upper=np.where(on_path, 1.0, 0.0),
            integer=on_path,
            row=entries.row,
            column=entries.col,
            weight=entries.data,
            low=np.concatenate([np.full(count, -np.inf), right]),
            high=np.concatenate([room, right]),
        )
        values = ask_sparse(
            program, patience=PATIENCE_S, run=run, node_limit=NODES, mip_rel_gap=NEAR
        ).values
        if values is None:
            return Choice([], price, False)
        x, lacks = np.array(values), False
    chosen = x[: len(edges)] > (0.5 if whole else 1e-6)
    patterns = [edges[e] for e in np.flatnonzero(chosen).tolist()]
    return Choice(patterns, price, not lacks)


def put_together(
    chain: Chain, patterns: list[tuple[int, Pattern]], problem: LatencyProblem
) -> Placement | None:
    """The placement of patterns along the waists; None if the other tasks do not fit."""
    tasks = problem.tasks
    home, key = np.full(tasks.n, -1, dtype=np.int64), np.full(tasks.n, np.inf)
    for i, pattern in patterns:
        mine = chain.inner[i]
        home[mine] = pattern.listed.device
        key[mine[pattern.listed.order]] = i + np.linspace(0, 1, len(mine))
    make, read = tasks.edges
    rank, net = place_of(tasks.order), net_of(problem)
    for e in np.argsort(-rank[make], kind="stable").tolist():
        if chain.aside[make[e]]:  # as late as those that read it
            key[make[e]] = min(key[make[e]], key[read[e]])
    order = np.lexsort((rank, key))
    if (place_of(order)[make] >= place_of(order)[read]).any():
        return None
    found = inserted(net, order, home)
    if found is None or chain.aside.any():
        return None if found is None else found[1]
    return min(found[1], placed(net, Listed(order, home)), key=problem.time)


def _adopt(chain: Chain, known: Placement, price: Floats) -> None:
    """Add the patterns of a placement."""
    place = place_of(listed_of(known).order)
    for kind, mine in zip(chain.kinds, chain.inner, strict=True):
        device = known.device[mine]
        order = np.argsort(place[mine], kind="stable")
        kind.add((int(device[0]), int(device[-1])), Listed(order, device), price)


def layered(
    problem: LatencyProblem, known: Placement | None, run: SearchContext
) -> Placement | None:
    """Place a network of layers, by patterns of a known placement, too; None if it is none, or
    nothing was found that fits."""
    chain = chain_of(problem.relaxed)
    if chain is None:
        return None
    price, bare = np.zeros(problem.machine.count), problem.relaxed
    if known is not None:
        _adopt(chain, known, price)
    for _ in range(TRIES):
        capacity = bare.machine.capacity * SAFE_ROOM
        price = _improve(chain, capacity, price, run)
        choice = choose(chain, capacity, run, whole=True)
        for spread in WIDER:  # parts of several paths may fit where no path does
            if choice is None or choice.fits or run.stop():
                break
            _explore(chain, price, spread, run)
            choice = choose(chain, capacity, run, whole=True)
        if choice is None or not choice.fits:
            break
        split = put_together(chain, choice.patterns, bare)
        if split is None or problem.fits(split):
            return split
        if problem.live is None:  # full but for rounding
            break
        bare = problem.tightened(split, bare)
    return None


def _improve(chain: Chain, capacity: Floats, price: Floats, run: SearchContext) -> Floats:
    """Anneal kinds until neither patterns nor prices of memory change; the prices."""
    penalty = PENALTY
    for _ in range(ROUNDS):
        before = [id(p) for _, p in chain.patterns]
        _explore(chain, price, SPREAD if price.any() else 0.0, run)
        choice = choose(chain, capacity, run, whole=False, penalty=penalty)
        if choice is None or run.stop():
            break
        price = choice.price
        for kind, ends in dict.fromkeys((chain.kinds[i], p.ends) for i, p in choice.patterns):
            kind.anneal(ends, price, EFFORT * MORE, run)
        if not choice.fits:
            penalty *= 2
        elif before == [id(p) for _, p in chain.patterns]:
            break
    return price
