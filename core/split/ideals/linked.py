"""Ordered splits over links: a search over order ideals that knows the neighbours of each stage.

A state is an ideal I (what the stages so far hold), how many devices of each kind are in use, the
kind of the last one and that of the next. A stage A from I to J is charged what it computes, and
for every tensor that crosses its border

    into A       the link from the stage before, if the tensor is made by the one item of I that no
                 other of I follows, which that stage must hold; else the best link there is;
    out of A     the link to the stage after, if the one item outside J that none outside precedes
                 reads it; else the best link there is.

So no stage is charged more than it costs: the least that is found is a bound for all ordered
splits, and where only neighbours talk, as in a chain, it is the optimum. Memory that depends on the
order of nodes is not charged. Devices are of one kind if links and classes tell them not apart.
For the latency of one sequence charges are added up, and parameters are held. Without links each
class has its own bandwidth.
Where there are too many ideals, those of one topological order give a split, and no bound. So does
a search that is `straight`: it charges everything as if it came from the stage before and went to
the one after, which is nearer to what most splits cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.cost.items import nets_of
from dnnp.core.cost.load import link_times
from dnnp.core.cost.load_formula import COMM, ROOM, ROUNDING, combine_arrays
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import Machine, device_numbers, machine_of
from dnnp.core.model.graph import PARAMETER, Bools, Floats, Ints, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.split.ideals.lattice import make_lattice

MOST_IDEALS = 2_000
"""Ideals up to which all are searched; a topological order may have so many items."""

MOST_STATES = 6_000_000
"""States of all ideals."""

MOST_WORK = 2_000_000_000
"""Stages times states that are looked at, at most, before what prunes them."""


class LinkedAnswer(NamedTuple):
    """Result of the search."""

    blocks: list[Block] | None
    """The split that is charged least, if that is less than what was known."""
    bound: float
    """No ordered split costs less; 0: nothing is proven."""


def kinds_of(machine: Machine) -> list[Ints]:
    """Devices that links and classes do not tell apart, in order of the first of each kind."""
    kinds: list[list[int]] = []
    for d in range(machine.count):
        for kind in kinds:
            if machine.classes[kind[0]] == machine.classes[d] and _alike(machine, kind[0], d):
                kind.append(d)
                break
        else:
            kinds.append([d])
    return [np.array(kind, dtype=np.int64) for kind in kinds]


def _alike(machine: Machine, a: int, b: int) -> bool:
    """True if exchanging two devices changes nothing."""
    turned = np.arange(machine.count)
    turned[[a, b]] = b, a
    both = np.ix_(turned, turned)
    return all(np.array_equal(x, x[both]) for x in (machine.rate, machine.latency))


def linked_search(
    problem: SplitProblem, incumbent: float, run: SearchContext = PLAIN, *, straight: bool = False,
    refused: Sequence[tuple[Ints, float]] = (),
) -> LinkedAnswer:  # fmt: skip
    """The best ordered split below `incumbent` by what its stages are charged, and a bound.

    `refused`: items that are never together where there are no more than so many bytes.
    Nothing is found for graphs with a backward pass, replicas, or where this would take too long.
    """
    options = problem.options
    if problem.graph.backward.any() or options.max_replicas > 1:
        return LinkedAnswer(None, 0.0)
    if problem.unlinked.line().n >= MOST_IDEALS:  # there are more ideals than items
        return LinkedAnswer(None, 0.0)
    search = _Search(problem, straight=straight)
    search.refused = refused
    for proves in (True, False):
        ideals = search.ideals() if proves else search.prefixes()
        if ideals is None or search.too_large(len(ideals)):
            continue
        found = search.least(ideals, incumbent, run)
        if found is None:
            return LinkedAnswer(None, 0.0)
        value, stages = found
        blocks = search.blocks(stages) if stages else None
        bound = min(value, incumbent) * (1 - ROUNDING)
        return LinkedAnswer(blocks, bound if proves and not straight else 0.0)
    return LinkedAnswer(None, 0.0)


@dataclass(frozen=True)
class _Stage:
    """A stage that was found: items, and the kind of its device."""

    items: Ints
    kind: int


class _Search:
    """The items of a problem in a topological order, and what they cost on each kind of device."""

    def __init__(self, problem: SplitProblem, *, straight: bool) -> None:
        self.problem, graph = problem, problem.graph
        self.straight, self.total = straight, problem.options.objective == "sequence"
        self.refused: Sequence[tuple[Ints, float]] = ()
        self.line = line = problem.unlinked.line()
        self.n, self.memory = line.n, line.memory
        self.machine = machine = problem.machine if problem.links else machine_of(line.devices)
        alike = [device_numbers(machine, d.name) for d in line.devices if d.count]
        self.kinds = kinds_of(machine) if problem.links else alike
        names = [d.name for d in problem.devices]
        self.device = [problem.devices[names.index(machine.classes[k[0]])] for k in self.kinds]
        self.most = [min(len(kind), self.n) for kind in self.kinds]
        """Devices of each kind that may be of use."""
        self.stride = np.concatenate([[1], np.cumprod([m + 1 for m in self.most])])
        where = line.item_of_node
        if problem.options.memory_model != "sum":
            held = graph.in_memory  # a parameter counts where it is read first
            static = self.total & (held.tensor_kind >= PARAMETER) & (np.diff(held.use_ptr) > 0)
            read = np.flatnonzero(static)
            first = where[held.use_idx[held.use_ptr[read]]]
            self.memory = totals(first, held.tensor_bytes[read], line.n)
        nets, tensor = nets_of(graph, where, self.n, problem.options)
        self.source, made = nets.source, nets.source >= 0
        self.reads = np.zeros((self.n, len(tensor)), dtype=np.bool_)
        self.reads[nets.pins, nets.net_of_pin] = True
        self.reads[self.source[made], np.flatnonzero(made)] = False
        self.to_host = made & graph.is_output[tensor] & problem.options.charge_io
        size, stated = graph.tensor_bytes[tensor], graph.transfer_s[tensor]
        self.host = link_times(graph, self.device, tensor)
        count = len(self.kinds)
        self.over = np.full((count, count, len(tensor)), np.inf)
        """f64[from, to, nets]; inf within a kind of one device."""
        for a, one in enumerate(self.kinds):
            for b, other in enumerate(self.kinds):
                if a == b and len(one) == 1:
                    continue
                i, j = int(one[0]), int(other[1] if a == b else other[0])
                own = np.where(np.isnan(stated), size * machine.rate[i, j], stated)
                self.over[a, b] = machine.latency[i, j] + own
        work = np.stack([line.work[names.index(d.name)] for d in self.device])
        self.work, self.unable = np.where(np.isfinite(work), work, 0.0), ~np.isfinite(work)
        self.follows = np.zeros((self.n, self.n), dtype=np.float32)
        self.follows[line.tail, line.head] = 1

    def ideals(self) -> Bools | None:
        """All order ideals by size, bool[I, n]; None: too many."""
        lattice = make_lattice(self.n, self.line.tail, self.line.head, MOST_IDEALS)
        return None if lattice is None else lattice.sets(self.n)

    def prefixes(self) -> Bools | None:
        """The ideals of the order of the line alone; None: too many."""
        if self.n >= MOST_IDEALS:
            return None
        return np.tri(self.n + 1, self.n, -1, dtype=np.bool_)

    def too_large(self, ideals: int) -> bool:
        """True if this would take too long, or too much memory."""
        count, states = len(self.kinds), int(self.stride[-1])
        ends = (count + 1) ** 2
        work = ideals**2 / 2 * (states * ends * count / 8 + len(self.source))
        return ideals * states * ends > MOST_STATES or work > MOST_WORK

    def least(
        self, inside: Bools, incumbent: float, run: SearchContext
    ) -> tuple[float, list[_Stage]] | None:
        """The least largest charge along the ideals, and the stages, first to last.

        inf, without stages: none is below the incumbent. None: it was stopped.
        """
        sides, combined = _Sides(self, inside), np.add if self.total else np.maximum
        count, states = len(self.kinds), int(self.stride[-1])
        value = np.full((len(inside), states, count + 1, count + 1), np.inf)
        came = np.full((*value.shape, 2), -1, dtype=np.int32)
        value[0, 0, count, :count] = 0.0
        used = [np.arange(states) // self.stride[o] % (self.most[o] + 1) for o in range(count)]
        for i in range(len(inside) - 1):
            if run.stop():
                return None
            run.report_progress(share=i / len(inside))
            if not np.isfinite(value[i]).any():
                continue
            ends = np.flatnonzero((inside[i + 1 :] | ~inside[i]).all(axis=1)) + i + 1
            ends, loads = self._charges(sides, i, ends, incumbent)
            if not len(ends):
                continue
            for o in range(count):
                before = np.flatnonzero(used[o] < self.most[o])
                after = before + self.stride[o]
                for p in range(count + 1):
                    known = value[i, before, p, o]
                    if not np.isfinite(known).any():
                        continue
                    for q in range(count + 1):
                        # f64[ends, states]
                        most = combined(known, loads[o][:, p, q, None])
                        old = value[ends[:, None], after, o, q]
                        better = (most < old) & (most < incumbent)
                        at, state = np.nonzero(better)
                        value[ends[at], after[state], o, q] = most[at, state]
                        came[ends[at], after[state], o, q] = i, p
        last = value[-1, :, :, count]
        if not np.isfinite(last).any():
            return float("inf"), []
        at, end = divmod(int(np.argmin(last)), last.shape[1])
        return float(last.min()), self._traced(inside, came, at, end)

    def _traced(
        self, inside: Bools, came: NDArray[np.int32], state: int, kind: int
    ) -> list[_Stage]:
        """Stages that led to a state of the last ideal."""
        stages: list[_Stage] = []
        end, after = len(inside) - 1, len(self.kinds)
        while end:
            start, before = (int(x) for x in came[end, state, kind, after])
            stages.append(_Stage(np.flatnonzero(inside[end] & ~inside[start]), kind))
            state -= int(self.stride[kind])
            end, after, kind = start, kind, before
        return stages[::-1]

    def blocks(self, stages: list[_Stage]) -> list[Block]:
        """The split, on the first devices of each kind."""
        machine, line = self.machine, self.line
        free = [kind.tolist() for kind in self.kinds]
        found = []
        for stage in stages:
            number = self.device[stage.kind].number_of(machine.names[free[stage.kind].pop(0)])
            nodes = line.nodes_of(self.problem.graph, stage.items)
            found.append(Block(nodes, self.device[stage.kind], number=number))
        return found

    def _charges(
        self, sides: _Sides, i: int, ends: Ints, incumbent: float
    ) -> tuple[Ints, list[Floats]]:
        """Ends of stages from ideal i, and for each kind what they are charged there, f64[ends,
        before, after]; only ends at which some kind is below the incumbent."""
        inside = sides.inside
        part = inside[ends] & ~inside[i]
        compute = np.einsum("jv,ov->oj", part, self.work)
        compute[(part.astype(np.float32) @ self.unable.T.astype(np.float32)).T > 0] = np.inf
        overflow = self._overflow(part)
        kept = ((compute + overflow).min(axis=0) < incumbent) | (compute.min(axis=0) == 0)
        ends, part = ends[kept], part[kept]
        compute, overflow = compute[:, kept], overflow[:, kept]
        before = inside[i, np.maximum(self.source, 0)] | (self.source < 0)  # made there, or inputs
        arrives = (sides.readers[ends] > sides.readers[i]) & before
        leaves = np.zeros((len(ends), len(self.source)), dtype=np.bool_)
        made = self.source >= 0
        leaves[:, made] = part[:, self.source[made]]
        read = leaves & sides.read_outside[ends]
        host = leaves & ~read & self.to_host
        linked = bool(self.problem.links)
        to_next = read & (linked & (self.straight | sides.read_next[ends]))
        from_last = arrives & made & (linked & (self.straight | (self.source == sides.last[i])))
        fed, rest = arrives & ~made, arrives & made & ~from_last
        count, comm = len(self.kinds), COMM[self.problem.options.comm]
        loads = []
        for o in range(count):
            if self.device[o].is_cpu:
                zero = np.zeros(len(ends))
                load = combine_arrays(comm, zero, compute[o], zero, zero)
                loads.append(
                    np.broadcast_to(load[:, None, None], (len(ends), count + 1, count + 1))
                )
                continue
            nearest, furthest = self._best(o)
            always_in = _summed(fed, self.host[o]) + _summed(rest, nearest)
            always_out = _summed(read & ~to_next, furthest) + _summed(host, self.host[o])
            into = np.stack(
                [always_in + _summed(from_last, self.over[p, o]) for p in range(count)]
                + [always_in],
                axis=1,
            )
            out = np.stack(
                [always_out + _summed(to_next, self._out(o, q)) for q in range(count)]
                + [always_out],
                axis=1,
            )
            # Only the last stage has none after it.
            out[ends < len(inside) - 1, count] = np.inf
            out[ends == len(inside) - 1, :count] = np.inf
            loads.append(
                combine_arrays(
                    comm,
                    into[:, :, None],
                    compute[o][:, None, None],
                    overflow[o][:, None, None],
                    out[:, None, :],
                )
            )
        return ends, loads

    def _best(self, o: int) -> tuple[Floats, Floats]:
        """Least time of every net to kind `o` from any other device, and from it; f64[nets]."""
        if not self.problem.links:
            return self.host[o], self.host[o]
        nearest, furthest = self.over[:, o].min(axis=0), self.over[o].min(axis=0)
        none = np.zeros(len(self.source))  # there is one device: nothing crosses
        nearest = np.where(np.isfinite(nearest), nearest, none)
        furthest = np.where(np.isfinite(furthest), furthest, none)
        return nearest, np.where(self.to_host, np.maximum(furthest, self.host[o]), furthest)

    def _out(self, o: int, q: int) -> Floats:
        """Time of every net from kind `o` to kind `q`, and to the host where it goes there."""
        return np.where(self.to_host, np.maximum(self.over[o, q], self.host[o]), self.over[o, q])

    def _overflow(self, part: Bools) -> Floats:
        """Time of what overflows, f64[kinds, stages]; inf: it does not fit."""
        options, over = self.problem.options, np.zeros((len(self.kinds), len(part)))
        held = np.einsum("jv,v->j", part, self.memory)
        for o, device in enumerate(self.device):
            if device.is_cpu:
                continue
            if options.memory_mode == "hard":
                over[o, held > device.memory_bytes * ROOM] = np.inf
                for items in (items for items, room in self.refused if device.memory_bytes <= room):
                    over[o, part[:, items].all(axis=1)] = np.inf
            else:
                above = np.maximum(held - device.memory_bytes, 0.0)
                over[o] = above / device.bandwidth_bytes_per_s
        return over


class _Sides:
    """Items and nets on both sides of each ideal."""

    def __init__(self, search: _Search, inside: Bools) -> None:
        self.search, self.inside = search, inside
        outside = ~inside
        reading = search.reads.astype(np.float32)
        self.readers = inside.astype(np.float32) @ reading
        """f32[I, nets], items inside that read it."""
        self.read_outside = (outside.astype(np.float32) @ reading) > 0
        """bool[I, nets]: some item outside reads it."""
        final = inside & ((inside.astype(np.float32) @ search.follows.T) == 0)
        self.last = np.where(final.sum(axis=1) == 1, final.argmax(axis=1), -2)
        """i64[I], the one item inside that no other inside follows; -2: there are more."""
        first = outside & ((outside.astype(np.float32) @ search.follows) == 0)
        self.read_next = search.reads[first.argmax(axis=1)] & (first.sum(axis=1) == 1)[:, None]
        """bool[I, nets]: the one item outside that none outside precedes reads it."""


def _summed(chosen: Bools, cost: Floats) -> Floats:
    """Sum of the costs of the chosen nets of each row; inf where one is."""
    finite = np.where(np.isfinite(cost), cost, 0.0)
    total = np.einsum("jt,t->j", chosen, finite)
    return np.where((chosen & ~np.isfinite(cost)).any(axis=1), np.inf, total)
