"""Search for splits that heed links: which stage holds an item, and which device runs a stage.

The pipeline has a slot for each device that may be of use; a slot without items costs nothing.
Moves are: some items at the end of a slot to the next one, from its begin to the one before, or
into an empty slot that is put beside it; one item to any slot that its neighbours in the graph
allow; two slots, or a slot and a device that is left, exchange devices; where stages may be
replicated, a slot gets the device before or after its own, or gives one up. Annealing of a high
norm of the loads comes first, then descent until no move of these, of up to `REACH` items, is
better. Splits that have no order keep their stages: only devices change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

import numpy as np

from dnnp.core.cost.items import Items
from dnnp.core.cost.linked_loads import Home, LinkedLoads
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Floats, Ints, csr, place_of, row_of
from dnnp.core.model.plan import Block, Stage
from dnnp.core.model.search_context import PLAIN, SearchContext

STEPS = 3000
"""Moves that annealing tries, at effort 1, where the graph is small."""

WORK = 60_000_000
"""Pins that they may look at together: where there are many, fewer moves are tried."""

MOST_SLOTS = 64
"""Slots of the pipeline."""

NORM = 12
"""The norm of the loads that is annealed: near the largest, but it feels the others."""

HOT, COLD = 0.1, 0.0005
"""Temperature at the begin and at the end, of the norm."""

REACH = 3
"""Items that descent moves together."""

PASSES = 20
"""Rounds of descent over all moves."""


@dataclass(frozen=True, eq=False)
class _Pipe:
    """A split in the search: the slot of every item, and what runs each slot."""

    slot: Ints
    homes: tuple[Home, ...]
    spare: tuple[Home, ...]
    """Devices that are left."""


def heed_links(
    problem: SplitProblem, blocks: Sequence[Block], run: SearchContext = PLAIN
) -> list[Block]:
    """A split that costs no more than `blocks` over the links of the problem, of their validity.

    The blocks, of a split that fits, come in the order in which the devices of a class are
    numbered where they state no numbers.
    """
    plan = problem.plan(list(blocks))
    start = _with_numbers(problem, blocks, plan.stages)
    kept = problem.kept_items(start) if plan.validity == "ordered" else None
    ordered = kept is not None
    items = kept[0] if kept is not None else _stages_as_items(problem, start)
    search = _Search(problem, items, start, run, ordered=ordered)
    found = search.blocks(search.best())
    try:
        better = problem.value(found) < plan.value * (1 - ROUNDING)
    except InfeasibleError:  # memory as it is added up in another order
        better = False
    return found if better else start


def _with_numbers(
    problem: SplitProblem, blocks: Sequence[Block], stages: Sequence[Stage]
) -> list[Block]:
    """The blocks in the order of the stages of their plan, each with its number."""
    of_node = {}
    for block in blocks:
        for v in np.asarray(block.nodes).tolist():
            of_node[int(problem.graph.node_ids[v])] = block
    return [
        of_node[stage.nodes[0]]._replace(number=int(stage.device.rpartition("/")[2]))
        for stage in stages
    ]


def _stages_as_items(problem: SplitProblem, blocks: Sequence[Block]) -> Items:
    """Every block an item of its own, without precedence."""
    label = row_of((one.nodes for one in blocks), problem.graph.n)
    none = np.zeros(0, dtype=np.int64)
    return Items(label=label, count=len(blocks), tail=none, head=none)


Move = Callable[[_Pipe], _Pipe | None]
"""From a split to a neighbour; None: it is none."""


class _Search:
    """Moves items and devices."""

    def __init__(
        self,
        problem: SplitProblem,
        items: Items,
        start: Sequence[Block],
        run: SearchContext,
        *,
        ordered: bool,
    ) -> None:
        self.problem, self.items, self.ordered, self.run = problem, items, ordered, run
        self.loads = LinkedLoads(problem, items)
        self.given = {frozenset(b.nodes.tolist()): b for b in start}
        self.rng = np.random.default_rng(run.seed)
        self.before = _rows(items.head, items.tail, items.count)
        self.after = _rows(items.tail, items.head, items.count)
        slot = row_of((items.label[block.nodes] for block in start), items.count)
        self.order = place_of(items.order)
        """Place of each item in a topological order."""
        names = [d.name for d in problem.devices]
        used = [Home(names.index(b.device.name), b.number, b.replicas) for b in start]
        taken = {(h.device, h.number + i) for h in used for i in range(h.replicas)}
        spare = [
            Home(c, i, 1)
            for c, device in enumerate(problem.devices)
            for i in range(device.count)
            if (c, i) not in taken
        ]
        # Devices that are left get slots without items, as far as they may be of use.
        more = max(min(MOST_SLOTS, items.count) - len(used), 0) if ordered else 0
        self.start = _Pipe(slot, (*used, *spare[:more]), tuple(spare[more:]))

    def best(self) -> _Pipe:
        """The best split that annealing and descent find."""
        steps = min(STEPS, WORK // (self.loads.pins + self.items.count + 1))
        found = self._annealed(self.start, max(int(steps * self.run.effort), 1))
        return min((self._descended(p) for p in (found, self.start)), key=self._value)

    def blocks(self, pipe: _Pipe) -> list[Block]:
        """The split as blocks; a stage that is as it was keeps the order of its nodes."""
        rank = place_of(self.loads.sequence)
        found = []
        for s, home in enumerate(pipe.homes):
            nodes = np.flatnonzero(pipe.slot[self.items.label] == s)
            if not len(nodes):
                continue
            device = self.problem.devices[home.device]
            old = self.given.get(frozenset(nodes.tolist()))
            if old is not None:
                found.append(
                    old._replace(device=device, replicas=home.replicas, number=home.number)
                )
                continue
            nodes = nodes[np.argsort(rank[nodes], kind="stable")]
            found.append(Block(nodes, device, home.replicas, home.number))
        return found

    def _value(self, pipe: _Pipe) -> tuple[float, float]:
        """Objective of a split, and the norm of its loads."""
        loads = self.loads.of(pipe.slot, pipe.homes)
        return float(loads.max(axis=1, initial=0.0).sum()), self._norm(loads)

    @staticmethod
    def _norm(loads: Floats) -> float:
        """Norm of the loads of each pass, added up."""
        most = loads.max(axis=1, initial=0.0)
        if not np.isfinite(most).all():
            return float("inf")
        scaled = loads / np.maximum(most, 1e-300)[:, None]
        return float((most * (scaled**NORM).sum(axis=1) ** (1 / NORM)).sum())

    def _annealed(self, pipe: _Pipe, steps: int) -> _Pipe:
        """Anneal; the best split on the way."""
        energy = self._norm(self.loads.of(pipe.slot, pipe.homes))
        best = self._value(pipe), pipe
        for step in range(steps):
            if step % 64 == 0:
                self.run.report_progress("heeding links", share=step / steps, value=best[0][0])
                if self.run.stop():
                    break
            moved = self._random(pipe)
            if moved is None:
                continue
            loads = self.loads.of(moved.slot, moved.homes)
            other = self._norm(loads)
            heat = energy * HOT * (COLD / HOT) ** (step / steps)
            if other <= energy or self.rng.random() < np.exp(-(other - energy) / max(heat, 1e-300)):
                pipe, energy = moved, other
                value = float(loads.max(axis=1, initial=0.0).sum()), other
                if value < best[0]:
                    best = value, pipe
        return best[1]

    def _random(self, pipe: _Pipe) -> _Pipe | None:
        """A neighbour of a split; None: the move that was drawn is none."""
        if self.problem.options.max_replicas > 1 and self.rng.random() < 0.2:
            more, ahead = self.rng.random(2) < 0.5
            s = int(self.rng.integers(len(pipe.homes)))
            return (self._widened if more else self._narrowed)(pipe, s, ahead=bool(ahead))
        kind = self.rng.random()
        if not self.ordered or kind < 0.3:
            return self._exchanged(pipe)
        s = int(self.rng.integers(len(pipe.homes)))
        ahead = bool(self.rng.random() < 0.5)
        most = max(self.items.count // (2 * len(pipe.homes)), 1)
        count = min(int(self.rng.geometric(0.35)), most) if kind < 0.9 else most
        if kind < 0.4:
            return self._opened(
                pipe, int(self.rng.integers(len(pipe.homes))), s, count, ahead=ahead
            )
        if kind < 0.65:
            item = int(self.rng.integers(self.items.count))
            low, high = self._range(pipe, item)
            target = int(self.rng.integers(low, high + 1))
            return self._placed(pipe, np.array([item]), target)
        return self._shifted(pipe, s, count, ahead=ahead)

    def _exchanged(self, pipe: _Pipe) -> _Pipe | None:
        """Two slots, or a slot and a device that is left, exchange devices."""
        a = int(self.rng.integers(len(pipe.homes)))
        b = int(self.rng.integers(len(pipe.homes) + len(pipe.spare)))
        return _swapped(pipe, a, b) if a != b else None

    def _widened(self, pipe: _Pipe, s: int, *, ahead: bool) -> _Pipe | None:
        """A slot gets the next device of its class, or the one before, if nothing runs there."""
        if s >= len(pipe.homes):
            return None
        home = pipe.homes[s]
        free = Home(home.device, home.number + home.replicas if ahead else home.number - 1, 1)
        if home.replicas == self.problem.options.max_replicas or not (pipe.slot == s).any():
            return None
        wide = Home(home.device, min(home.number, free.number), home.replicas + 1)
        if free in pipe.spare:
            spare = tuple(h for h in pipe.spare if h != free)
            return replace(pipe, homes=(*pipe.homes[:s], wide, *pipe.homes[s + 1 :]), spare=spare)
        if free not in pipe.homes or (pipe.slot == (gone := pipe.homes.index(free))).any():
            return None
        homes = [wide if i == s else h for i, h in enumerate(pipe.homes) if i != gone]
        return replace(pipe, slot=pipe.slot - (pipe.slot > gone), homes=tuple(homes))

    def _narrowed(self, pipe: _Pipe, s: int, *, ahead: bool) -> _Pipe | None:
        """A slot gives up its last device, or its first one, which gets a slot without items."""
        home = pipe.homes[s]
        if home.replicas == 1:
            return None
        free = Home(home.device, home.number + home.replicas - 1 if ahead else home.number, 1)
        rest = Home(home.device, home.number + (not ahead), home.replicas - 1)
        homes = (*pipe.homes[:s], rest, *pipe.homes[s + 1 :])
        if self.ordered and len(homes) < min(MOST_SLOTS, self.items.count):
            return replace(pipe, homes=(*homes, free))
        return replace(pipe, homes=homes, spare=(*pipe.spare, free))

    def _range(self, pipe: _Pipe, item: int) -> tuple[int, int]:
        """First and last slot that an item may be in while the others stay."""
        before, after = self.before[item], self.after[item]
        low = int(pipe.slot[before].max()) if len(before) else 0
        high = int(pipe.slot[after].min()) if len(after) else len(pipe.homes) - 1
        return low, high

    def _placed(self, pipe: _Pipe, items: Ints, target: int) -> _Pipe | None:
        if (pipe.slot[items] == target).all():
            return None
        slot = pipe.slot.copy()
        slot[items] = target
        return replace(pipe, slot=slot)

    def _shifted(self, pipe: _Pipe, s: int, count: int, *, ahead: bool) -> _Pipe | None:
        """The last items of a slot go to the next one, or its first items to the one before."""
        target = s + 1 if ahead else s - 1
        if not 0 <= target < len(pipe.homes):
            return None
        mine = np.flatnonzero(pipe.slot == s)
        if not len(mine):
            return None
        mine = mine[np.argsort(self.order[mine])]
        return self._placed(pipe, mine[-count:] if ahead else mine[:count], target)

    def _opened(self, pipe: _Pipe, a: int, s: int, count: int, *, ahead: bool) -> _Pipe | None:
        """An empty slot is put beside another, and gets some of its items."""
        if a == s or (pipe.slot == a).any():
            return None
        rest = [x for x in range(len(pipe.homes)) if x != a]
        rest.insert(rest.index(s) + ahead, a)
        place = place_of(rest)
        moved = replace(pipe, slot=place[pipe.slot], homes=tuple(pipe.homes[x] for x in rest))
        return self._shifted(moved, int(place[s]), count, ahead=ahead)

    def _descended(self, pipe: _Pipe) -> _Pipe:
        """Take better neighbours until there is none."""
        value = self._value(pipe)
        for _ in range(PASSES):
            improved = False
            for move in self._moves(pipe):
                if self.run.stop():
                    return pipe
                moved = move(pipe)
                if moved is None:
                    continue
                other = self._value(moved)
                if other[0] < value[0] * (1 - ROUNDING) or (
                    other[0] <= value[0] and other[1] < value[1] * (1 - ROUNDING)
                ):
                    pipe, value, improved = moved, other, True
            if not improved:
                break
        return pipe

    def _moves(self, pipe: _Pipe) -> Iterator[Move]:
        """All moves of descent; few where the graph is large.

        Those that may take a slot away come last.
        """
        yield from self._kept_slots(pipe)
        if self.problem.options.max_replicas > 1:
            for s, ahead in product(range(len(pipe.homes)), (True, False)):
                yield partial(self._widened, s=s, ahead=ahead)

    def _kept_slots(self, pipe: _Pipe) -> Iterator[Move]:
        """Moves after which there are as many slots."""
        slots, all_ = len(pipe.homes), len(pipe.homes) + len(pipe.spare)
        budget = WORK // (20 * (self.loads.pins + self.items.count + 1))
        pairs = [(a, b) for a, b in combinations(range(all_), 2) if a < slots][:budget]
        for a, b in pairs:
            yield partial(_swapped, a=a, b=b)
        if not self.ordered:
            return
        for s in range(slots):
            for count in range(1, REACH + 1):
                for ahead in (True, False):
                    yield partial(self._shifted, s=s, count=count, ahead=ahead)
        empty = np.setdiff1d(np.arange(slots), pipe.slot).tolist()
        for a, s, ahead in product(empty, range(slots), (True, False)):
            for count in range(1, REACH + 1):
                yield partial(self._opened, a=a, s=s, count=count, ahead=ahead)
        if self.items.count * 2 > budget:
            return
        for item in range(self.items.count):
            low, high = self._range(pipe, item)
            for target in range(low, high + 1):
                yield partial(self._if_allowed, item=item, target=target)

    def _if_allowed(self, pipe: _Pipe, item: int, target: int) -> _Pipe | None:
        low, high = self._range(pipe, item)
        return self._placed(pipe, np.array([item]), target) if low <= target <= high else None


def _swapped(pipe: _Pipe, a: int, b: int) -> _Pipe:
    """Exchange the devices of slots a and b, or a spare device where b is beyond."""
    both = [*pipe.homes, *pipe.spare]
    both[a], both[b] = both[b], both[a]
    count = len(pipe.homes)
    return replace(pipe, homes=tuple(both[:count]), spare=tuple(both[count:]))


def _rows(rows: Ints, values: Ints, count: int) -> list[Ints]:
    """The values of each row."""
    ptr, idx = csr(rows, values, count)
    return [idx[ptr[i] : ptr[i + 1]] for i in range(count)]
