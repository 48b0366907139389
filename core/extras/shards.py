"""Times of nodes on several devices at once, for `dnnp-profile --tensor-parallel`.

A device's part of a node takes the time of the node times the ratio of their rooflines. The layout
is the cheapest; in training it is chosen along the forward pass at the price of both passes: a
backward node runs as its forward node does, see `dnnp.core.tensor_parallel.layout`. A sum may also
be left split along an axis, by a reduce-scatter; its gradient is gathered then, so both passes move
the bytes of two all-reduces (Korthikanti et al. 2023, "Reducing activation recomputation in large
transformer models"). An output of the model with a loss stays as it was made, since only the loss
reads it. A loss over split scores exchanges three numbers a row: the largest score, the sum of
powers, the score of the target (Shoeybi et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, product
from typing import Any

import numpy as np

from dnnp.core.cost.layouts import is_sized
from dnnp.core.cost.load_formula import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, collective_time
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import CONSTANT, PARAMETER, Clustering, Graph, totals
from dnnp.core.model.phases import passes_of, sequences_of, usual_lengths
from dnnp.core.model.shards import WHOLE, axis_of, blocks_of
from dnnp.core.profile.work import Work, compute_times, roofline, work_of
from dnnp.core.tensor_parallel.layout import ADDENDS, Backward, Layout, choose
from dnnp.core.tensor_parallel.rules import (
    ADDED,
    LONG,
    ON_ALL,
    OWNED,
    Mixtures,
    Operator,
    Rule,
    more_rules,
    part,
    rules,
    share_of,
    with_blocks,
)
from dnnp.core.training import LOSS, gradients_of, is_trainable, rule_of
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.inputs.devices import DeviceSpec
from dnnp.formats.phases import priced_view
from dnnp.formats.stream import Record, Stream


@dataclass(frozen=True, eq=False)
class ShardTimes:
    """Nodes on `t` devices of some classes."""

    nodes: Sequence[dict[str, Any]]
    """Their records."""
    devices: Sequence[DeviceSpec]
    arithmetic: Sequence[Sequence[float]]
    """Of each class and node the seconds of its arithmetic alone."""
    traffic: Sequence[float]
    """Bytes that nodes move."""
    factor: Sequence[float]
    """Time of the group of each node over that of its nodes, on the first class: the layout is
    chosen by times of groups."""
    t: int

    @classmethod
    def of(
        cls,
        nodes: Sequence[dict[str, Any]],
        units: Clustering,
        work: Work,
        devices: Sequence[DeviceSpec],
        t: int,
    ) -> ShardTimes:
        """From the groups and the work of all nodes."""
        arithmetic = [compute_times(work, device).tolist() for device in devices]
        factor = _factors(nodes, units, devices[0].name)
        return cls(nodes, devices, arithmetic, work.bytes.tolist(), factor, t)

    def whole(self, v: int) -> list[float]:
        """Seconds of a node that each device runs, by class."""
        return [float(self.nodes[v]["time_s"][device.name]) for device in self.devices]

    def shared(self, v: int, moved: float, share: float | None = None) -> list[float]:
        """Seconds of a node that devices share, by class.

        `moved` is the share of the bytes of its tensors that each moves, `share` that of the
        arithmetic; None: 1 / t.
        """
        mine = 1 / self.t if share is None else share
        found = []
        for whole, device, compute in zip(
            self.whole(v), self.devices, self.arithmetic, strict=True
        ):
            before = _roofline(compute[v], self.traffic[v], device)
            after = _roofline(compute[v] * mine, self.traffic[v] * moved, device)
            found.append(whole * after / before if before else whole)
        return found


def ends_of(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Tensors that each node reads, and that it writes."""
    sides = []
    for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
        at = ptr.tolist()
        sides.append([idx[a:b].tolist() for a, b in pairwise(at)])
    return sides[0], sides[1]


def moved_share(ends: Iterable[tuple[float, int]], t: int) -> float:
    """Share of the bytes of tensors that each of `t` devices moves.

    `ends`: size and state of each tensor.
    """
    return weighted((size, part(state, t)) for size, state in ends)


def weighted(ends: Iterable[tuple[float, float]]) -> float:
    """Mean share of tensors, by their size: `ends` are size and share of each."""
    known = list(ends)
    whole = sum(size for size, _ in known)
    return sum(size * share for size, share in known) / whole if whole else 1.0


def _factors(nodes: Sequence[dict[str, Any]], units: Clustering, name: str) -> list[float]:
    """Time of the group of each node over that of its nodes; 1 if unknown."""
    own = np.array([record["time_s"][name] for record in nodes], dtype=np.float64)
    summed = totals(units.label, own, units.g)
    stated = units.times.get(name, summed)
    usable = (summed > 0) & np.isfinite(stated)
    factor = np.divide(stated, summed, out=np.ones(units.g), where=usable)
    return [float(f) for f in factor[units.label]]


def _roofline(compute_s: float, bytes_: float, device: DeviceSpec) -> float:
    return float(roofline(np.array([compute_s]), np.array([bytes_]), device)[0])


NUMBERS_A_ROW = 3
"""Numbers that a loss over split scores exchanges for each row of them."""


@dataclass(frozen=True, eq=False)
class Passes:
    """Both passes of a graph, by positions of nodes and tensors."""

    order: tuple[int, ...]
    """The forward nodes in topological order, then the losses, which begin the backward pass."""
    losses: frozenset[int]
    twin: dict[int, int]
    """Forward node -> its backward node; a loss is its own."""
    forward: dict[int, int]
    """The other way round."""
    through: dict[int, tuple[int, ...]]
    """Forward node or loss -> tensors with gradients by its backward node."""
    trained: frozenset[int]
    """Parameters that have a gradient."""
    of: dict[int, int]
    """Gradient -> the tensor that it is one of."""


def paired(stream: Stream, graph: Graph) -> Passes:
    """Pair each node with its backward node, and find what that makes.

    Raises UsageError: the backward pass was not made by `dnnp-import --training`.
    """
    nodes, tensors = stream.get("node"), stream.get("tensor")
    node_at = {record["id"]: v for v, record in enumerate(nodes)}
    tensor_at = {record["id"]: x for x, record in enumerate(tensors)}
    late = graph.backward.tolist()
    found = gradients_of(tensors, [record for record in nodes if not record.get("backward")])
    order = [v for v in graph.order.tolist() if not late[v]]
    losses: set[int] = set()
    twin: dict[int, int] = {}
    of: dict[int, int] = {}
    through: dict[int, tuple[int, ...]] = {}
    for w, record in enumerate(nodes):
        if not late[w]:
            continue
        v = node_at.get(record.get("of", -1), w)
        reached = found.get(nodes[v]["id"], ())
        if v == w and record["op"] == LOSS:
            losses.add(w)
            reached = tuple(record["inputs"])
        passed = [x for x in reached if v == w or not is_trainable(tensors[tensor_at[x]])]
        if not reached or v in twin or len(passed) != len(record["outputs"]):
            raise UsageError(
                f"--tensor-parallel: node {record['id']} of the backward pass is none that "
                "dnnp-import --training makes"
            )
        twin[v], through[v] = w, tuple(tensor_at[x] for x in reached)
        of |= {tensor_at[g]: tensor_at[x] for g, x in zip(record["outputs"], passed, strict=True)}
    trained = {x for x in chain.from_iterable(through.values()) if is_trainable(tensors[x])}
    order += [w for w in graph.order.tolist() if w in losses]
    forward = {w: v for v, w in twin.items()}
    return Passes(tuple(order), frozenset(losses), twin, forward, through, frozenset(trained), of)


def state_training(
    stream: Stream, graph: Graph, passes: Passes, seen: Sequence[Operator], clock: ShardTimes
) -> None:
    """Add the entries for `clock.t` devices to the records of a graph of training."""
    sharded = _Sharded(stream, graph, passes, clock)
    order, t = passes.order, clock.t
    reads = [sharded.reads[v] for v in order]
    writes = [() if v in passes.losses else sharded.writes[v] for v in order]
    named = [(sharded.nodes[v].get("scope", ""), seen[v]) for v in order]
    mixtures = Mixtures(named, reads, writes, t)
    known = [rules(seen[v], t) for v in order]
    ways = [(*own, *more_rules(seen[v], own, t)) for v, own in zip(order, known, strict=True)]
    ways = [
        tuple(replace(rule, outputs=()) for rule in own) if v in passes.losses else own
        for v, own in zip(order, ways, strict=True)
    ]
    backward = Backward(
        tuple(frozenset(passes.through.get(v, ())) for v in order),
        passes.trained,
        lambda x, what, whole: sharded.exchange_s(gradient_collective(what, whole=whole), x),
    )

    def search(offered: Sequence[Sequence[Rule]]) -> Layout:
        return choose(
            reads,
            writes,
            offered,
            lambda i, rule: sharded.price(order[i], rule),
            partial(sharded.exchange_s, ALL_GATHER),
            backward=backward,
        )

    layout = None
    if mixtures:
        more = [(*own, *mixtures.rules(i, len(writes[i]))) for i, own in enumerate(ways)]
        layout = search(more)
    if layout is None or not mixtures.balanced(layout.rules):
        layout = search(ways)
    _Entries(sharded, layout).write()


def gradient_collective(lacking: int, *, whole: bool) -> str:
    """Name what completes a gradient (`tensor_parallel.layout`); `whole`: on every device."""
    if lacking == ADDENDS:
        return ALL_REDUCE if whole else REDUCE_SCATTER
    return ALL_GATHER


class _Sharded:
    """Times of nodes by their rules."""

    def __init__(self, stream: Stream, graph: Graph, passes: Passes, clock: ShardTimes) -> None:
        self.nodes: list[Record] = stream.get("node")
        self.tensors: list[Record] = stream.get("tensor")
        self.graph, self.passes, self.clock, self.t = graph, passes, clock, clock.t
        self.size: list[float] = graph.tensor_bytes.tolist()
        self.reads, self.writes = ends_of(graph)
        self._band = clock.devices[0].link_bandwidth_bytes_per_s

    def exchange_s(self, kind: str, x: int) -> float:
        """Seconds of a collective with a tensor."""
        return collective_time(kind, self.size[x], self.t, self._band)

    def price(self, v: int, rule: Rule) -> float:
        """Seconds of both passes of a node, without what other nodes have a part in."""
        own = self.times(v, rule)[0] * self.clock.factor[v]
        if v in self.passes.losses:
            sizes = self.loss_exchange(v, rule)
            return own + sum(collective_time(ALL_REDUCE, s, self.t, self._band) for s in sizes)
        if v in self.passes.twin:
            own += self.backward_times(v, rule)[0] * self.clock.factor[self.passes.twin[v]]
        both = self.sums(v, rule)
        return own + sum(self.exchange_s(kind, x) for _, kind, x in both)

    def sums(self, v: int, rule: Rule) -> Iterator[tuple[int, str, int]]:
        """List exchanges of a rule that ends with a sum: node, kind and tensor."""
        for x, state in zip(self.writes[v], rule.outputs, strict=True) if rule.reduced else ():
            yield v, (ALL_REDUCE if state == WHOLE else REDUCE_SCATTER), x
            if state != WHOLE and v in self.passes.twin:
                yield self.passes.twin[v], ALL_GATHER, x

    def times(self, v: int, rule: Rule) -> list[float]:
        """Seconds of a node, by class of device."""
        if not rule.divided:
            return self.clock.whole(v)
        if self._is_expert(rule):
            return [seconds / self.t for seconds in self.clock.whole(v)]
        ends = list(zip(self.reads[v], rule.inputs, strict=True))
        if v in self.passes.losses:  # its gradient is split as the scores are
            ends += [(x, rule.inputs[0]) for x in self.writes[v]]
        else:
            ends += zip(self.writes[v], self._computed(rule), strict=True)
        return self.clock.shared(v, moved_share(((self.size[x], s) for x, s in ends), self.t))

    def backward_times(self, v: int, rule: Rule) -> list[float]:
        """The same of its backward node.

        Its inputs from the forward pass have their state there. A gradient has the state of its
        tensor; that of a parameter is read and written.
        """
        w = self.passes.twin[v]
        if not rule.divided:
            return self.clock.whole(w)
        if self._is_expert(rule):
            return [seconds / self.t for seconds in self.clock.whole(w)]
        state = dict(zip(self.reads[v], rule.inputs, strict=True))
        state |= zip(self.writes[v], self._computed(rule), strict=True)
        moved = [(self.size[x], state.get(self.passes.of.get(x, x), WHOLE)) for x in self.reads[w]]
        moved += [(self.size[x], state[self.passes.of[x]]) for x in self.writes[w]]
        known = rule_of(self.nodes[v]["op"])
        if known is None or not known.scatters:
            summed = (x for x in self.passes.through[v] if x in self.passes.trained)
            moved += [(2 * self.size[x], state[x]) for x in summed]
        return self.clock.shared(w, moved_share(moved, self.t))

    @staticmethod
    def _is_expert(rule: Rule) -> bool:
        """True if a node of an expert is on one device, while others run other experts."""
        return any(state in (ADDED, OWNED) for state in rule.outputs)

    @staticmethod
    def _computed(rule: Rule) -> tuple[int, ...]:
        """States of the outputs of a node before they are summed."""
        return (WHOLE,) * len(rule.outputs) if rule.reduced else rule.outputs

    def loss_exchange(self, v: int, rule: Rule) -> list[float]:
        """Bytes of each all-reduce of a loss."""
        shape = self.tensors[self.reads[v][0]].get("shape")
        if not rule.divided or not shape or rule.inputs[0] != len(shape) - 1:
            return []
        return [self.size[self.reads[v][0]] / shape[-1]] * NUMBERS_A_ROW


class _Entries:
    """Entries of a layout in the records of nodes and tensors."""

    def __init__(self, sharded: _Sharded, layout: Layout) -> None:
        self.all, self.passes, self.t = sharded, sharded.passes, sharded.t
        self.layout = layout
        self.rule = dict(zip(self.passes.order, layout.rules, strict=True))
        self.gathered = {x for some in layout.gathered for x in some}
        self.stored = self._stored()
        self.is_stored = (sharded.graph.tensor_kind >= PARAMETER).tolist()
        self.kept = {x for w in self.passes.forward for x in sharded.reads[w]}

    def write(self) -> None:
        """Add them."""
        entries: dict[int, Record] = {}
        for v, rule in self.rule.items():
            entries[v] = self._entry(self.all.times(v, rule))
            if v in self.passes.twin and v not in self.passes.losses:
                w = self.passes.twin[v]
                entries[w] = self._entry(self.all.backward_times(v, rule))
        self._state_memory(entries)
        for v, kind, size in self._collectives():
            entries[v].setdefault("collectives", []).append({"kind": kind, "bytes": size})
        for v, entry in sorted(entries.items()):
            self.all.nodes[v].setdefault("shards", []).append(entry)
        for x in self._split_at_borders():
            again = 2 if self.layout.state.get(x) == ADDED else 1  # summed up, then put together
            moved = again * self.all.size[x] * (self.t - 1) / self.t
            entry = {"devices": self.t, "out_bytes": moved}
            self.all.tensors[x].setdefault("shards", []).append(entry)

    def _entry(self, seconds: Sequence[float]) -> Record:
        names = [device.name for device in self.all.clock.devices]
        return {"devices": self.t, "time_s": dict(zip(names, seconds, strict=True))}

    def _stored(self) -> dict[int, int]:
        """States of stored parameters and constants: as all readers need them, else whole.

        Those of trained parameters are part of the layout.
        """
        found: dict[int, int] = {}
        for v, rule in self.rule.items():
            for x, need in zip(self.all.reads[v], rule.inputs, strict=True):
                found[x] = need if found.get(x, need) == need else WHOLE
        return found | {x: self.layout.state[x] for x in sorted(self.passes.trained & found.keys())}

    def _share(self, tensors: Sequence[int]) -> float:
        """Part of the bytes of tensors that each device has."""
        size, state = self.all.size, self.stored | self.layout.state
        whole = sum(size[x] for x in tensors)
        own = sum(
            size[x] if x in self.gathered else size[x] * share_of(state[x], self.t) for x in tensors
        )
        return own / whole if whole else 1.0

    def _state_memory(self, entries: dict[int, Record]) -> None:
        """State memory: each device's part of the memory of a node.

        As in `dnnp.core.training`, parameters count at their first reader, gradients and the
        optimiser's state at the first node that makes the gradient.
        """
        counted: set[int] = set()
        summed: set[int] = set()
        for v, record in enumerate(self.all.nodes):
            entry = entries[v]
            if record.get("backward"):
                through = self.passes.through[self.passes.forward[v]]
                own = [x for x in through if x in self.passes.trained and x not in summed]
                summed.update(own)
                if "memory_bytes" in record:
                    entry["memory_bytes"] = record["memory_bytes"] * self._share(own)
                continue
            own = [x for x in dict.fromkeys(self.all.reads[v]) if self.is_stored[x]]
            own = [x for x in own if x not in counted]
            counted.update(own)
            entry["weight_bytes"] = sum(
                self.all.size[x] * self._share([x])
                for x in own
                if self.all.tensors[x]["kind"] == "parameter"
            )
            if "memory_bytes" in record:
                held = record.get("held_bytes", 0.0)
                each = held * self._share([x for x in self.all.writes[v] if x in self.kept])
                fixed = max(record["memory_bytes"] - held, 0.0) * self._share(own)
                entry |= {"memory_bytes": fixed + each, "held_bytes": each}

    def _collectives(self) -> Iterator[tuple[int, str, float]]:
        """List what nodes exchange: node, kind and bytes of the whole tensor."""
        size, order = self.all.size, self.passes.order
        for (v, rule), gathered in zip(self.rule.items(), self.layout.gathered, strict=True):
            if v in self.passes.losses:
                yield from ((v, ALL_REDUCE, each) for each in self.all.loss_exchange(v, rule))
            else:
                yield from ((w, kind, size[x]) for w, kind, x in self.all.sums(v, rule))
            for x in gathered:
                maker = int(self.all.graph.producer[x])
                kind = ALL_REDUCE if self.layout.state[x] == ADDED else ALL_GATHER
                yield (v if maker < 0 else maker), kind, size[x]
        for x, (i, what) in self.layout.lacking.items():
            kind = gradient_collective(what, whole=self.layout.state[x] in ON_ALL)
            yield self.passes.twin[order[i]], kind, size[x]

    def _split_at_borders(self) -> list[int]:
        """Tensors that are put together when they leave a stage."""
        state = self.layout.state
        found = [x for x, s in state.items() if s != WHOLE and x not in self.gathered]
        found = [x for x in found if self.all.graph.producer[x] >= 0]
        for v, w in self.passes.twin.items():
            needs = dict(zip(self.all.reads[v], self.rule[v].inputs, strict=True))
            for g in self.all.writes[w]:
                x = self.passes.of[g]
                made_split = needs[x] != WHOLE or x in self.layout.lacking
                if state.get(x, WHOLE) not in ON_ALL and made_split:
                    found.append(g)
        return sorted(found)


MEETING_S = 20e-6
"""Cost of an exchange besides the time of its bytes when a layout is chosen, seconds: devices
wait for each other, which plans do not price."""


def price_shards(stream: Stream, devices: Sequence[DeviceSpec], most: int) -> None:
    """State `shards` of nodes and tensors for 2, 4, 8, ... up to `most` devices.

    The layout is the cheapest on the first of `devices`, by its link; over phases, of sequences of
    usual lengths. Without a backward pass each entry states the layout of its node, which dnnp-run
    and dnnp-export follow.

    Raises UsageError: nodes without times for a device, or a backward pass without references to
    forward nodes.
    """
    nodes, tensors = stream.get("node"), stream.get("tensor")
    views = [priced_view(stream, i) for i in range(max(1, len(stream.rows("phase"))))]
    for device, view in product(devices, views):
        if any(device.name not in record.get("time_s", {}) for record in view.get("node")):
            raise UsageError(f"--tensor-parallel: nodes have no times for {device.name}")
    for record in (*nodes, *tensors):
        record.pop("shards", None)
    graph, counts = graph_of(stream), [1.0]
    if graph.phases is not None:
        points = graph.phases.points
        passes = passes_of(points, sequences_of([usual_lengths(points)], points))
        counts = [count / point.rows for count, point in zip(passes, points, strict=True)]
    graphs = [graph, *map(graph_of, views[1:])]
    parts = list(zip(views, graphs, strict=True))
    works = [work_of(one, view.get("node"), view.get("tensor")) for view, one in parts]
    seen = [operators_of(view, graph) for view in views]
    both = paired(stream, graph) if graph.backward.any() else None
    t = 2
    while t <= most:
        clocks = [
            ShardTimes.of(view.get("node"), units_of(view, one), work, devices, t)
            for (view, one), work in zip(parts, works, strict=True)
        ]
        if both is None:
            sizes = [one.tensor_bytes.tolist() for one in graphs]
            _state(stream, graph, seen, list(zip(clocks, sizes, counts, strict=True)))
        else:
            state_training(stream, graph, both, seen[0], clocks[0])
        t *= 2


def operators_of(stream: Stream, graph: Graph) -> list[Operator]:
    """The nodes as rules see them."""
    shapes = [tuple(r["shape"]) if "shape" in r else None for r in stream.get("tensor")]
    stored = (graph.tensor_kind >= PARAMETER).tolist()
    reads, writes = ends_of(graph)
    seen = [
        Operator(
            op,
            tuple(shapes[x] for x in inputs),
            tuple(shapes[x] for x in outputs),
            tuple(stored[x] for x in inputs),
            unequal=0 if graph.backward.any() or is_sized(graph) else LONG,
        )
        for op, inputs, outputs in zip(graph.ops, reads, writes, strict=True)
    ]
    order = graph.order.tolist()
    sides = [reads[v] for v in order], [writes[v] for v in order]
    informed = with_blocks([seen[v] for v in order], *sides)
    return [node for _, node in sorted(zip(order, informed, strict=True), key=lambda p: p[0])]


Pairs = Sequence[tuple[int, int]]


def _pairs(graph: Graph) -> Iterator[tuple[int, int]]:
    """Tensors of states that are cut alike, or not at all (-1), as others read them too."""
    states = graph.states
    for x, y in () if states is None else zip(states.input, states.output, strict=True):
        alone = len(graph.readers(x)) == 1 and not len(graph.readers(y))
        yield from [(int(x), int(y))] if alone else [(int(x), -1), (int(y), -1)]


def _common(
    graph: Graph, seen: Sequence[Sequence[Operator]], pairs: Pairs, v: int, t: int
) -> Iterator[Rule]:
    """Rules of a node that hold in passes of all sizes, and cut both ends of a state alike.

    None is along a first axis, nor one whose size differs: runs have other batches and lengths.
    """
    found, *others = (rules(nodes[v], t) for nodes in seen)
    ends = (*graph.reads(v).tolist(), *graph.writes(v).tolist())
    sizes = list(zip(*((*nodes[v].inputs, *nodes[v].outputs) for nodes in seen), strict=True))
    for rule in found:
        cut = dict(zip(ends, (*rule.inputs, *rule.outputs), strict=True))
        free = (
            not axis_of(state) or len({shape and shape[axis_of(state)] for shape in shapes}) > 1
            for x, state, shapes in zip(ends, cut.values(), sizes, strict=True)
            if state != WHOLE and graph.tensor_kind[x] not in (PARAMETER, CONSTANT)
        )
        apart = (cut.get(x, WHOLE) != cut.get(y, WHOLE) for x, y in pairs)
        if not (is_sized(graph) and (any(free) or any(apart))) and all(rule in o for o in others):
            yield rule


def _state(
    stream: Stream,
    graph: Graph,
    seen: Sequence[Sequence[Operator]],
    points: Sequence[tuple[ShardTimes, list[float], float]],
) -> None:
    """Add the entries for so many devices to the records.

    `points`: for passes of each size the times, sizes of tensors and number of passes.
    """
    nodes, tensors = stream.get("node"), stream.get("tensor")
    shapes = [tuple(record["shape"]) if "shape" in record else None for record in tensors]
    leaves, (clock, size, _), pairs = graph.is_output.tolist(), points[0], [*_pairs(graph)]
    stored = (graph.tensor_kind >= PARAMETER).tolist()
    reads, writes = ends_of(graph)
    t, devices = clock.t, clock.devices
    band = devices[0].link_bandwidth_bytes_per_s

    def times(v: int, rule: Rule, clock: ShardTimes, size: list[float]) -> list[float]:
        if not rule.divided:
            return clock.whole(v)
        ends = [
            *zip(reads[v], rule.inputs, strict=True),
            *zip(writes[v], rule.outputs, strict=True),
        ]
        most = max((share(x, state) for x, state in ends if state != WHOLE), default=1.0)
        return clock.shared(v, weighted((size[x], share(x, state)) for x, state in ends), most)

    def share(x: int, state: int) -> float:
        return part(state, t, shapes[x])

    def exchange(kind: str, x: int) -> float:
        return sum(
            n * (MEETING_S + collective_time(kind, each[x], t, band)) for _, each, n in points
        )

    def price(v: int, rule: Rule) -> float:
        own = sum(n * times(v, rule, at, each)[0] * at.factor[v] for at, each, n in points)
        if rule.reduced:
            own += sum(exchange(ALL_REDUCE, x) for x in writes[v])
        for x, state in zip(writes[v], rule.outputs, strict=True):
            own += exchange(ALL_GATHER, x) if leaves[x] and state != WHOLE else 0.0
        return own

    order = graph.order.tolist()
    layout: Layout = choose(
        [reads[v] for v in order],
        [writes[v] for v in order],
        [tuple(_common(graph, seen, pairs, v, t)) for v in order],
        lambda i, rule: price(order[i], rule),
        lambda x: exchange(ALL_GATHER, x),
    )
    gathered = {x for made in layout.gathered for x in made}
    gathered |= {x for x, state in layout.state.items() if leaves[x] and state != WHOLE}
    counted: set[int] = set()
    for v, rule in zip(order, layout.rules, strict=True):
        weights = {
            x: size[x] * share(x, state)
            for x, state in zip(reads[v], rule.inputs, strict=True)
            if stored[x]
        }
        made = sum(
            size[x] if x in gathered else size[x] * share(x, state)
            for x, state in zip(writes[v], rule.outputs, strict=True)
        )
        seconds = times(v, rule, clock, size)
        entry = {
            "devices": t,
            "time_s": {device.name: s for device, s in zip(devices, seconds, strict=True)},
            "memory_bytes": sum(weights.values()) + made,
            "weight_bytes": sum(
                b
                for x, b in weights.items()
                if x not in counted and tensors[x]["kind"] == "parameter"
            ),
        }
        counted |= weights.keys()
        said = [{"kind": ALL_REDUCE, "bytes": size[x]} for x in writes[v] if rule.reduced]
        said += [{"kind": ALL_GATHER, "bytes": size[x]} for x in writes[v] if x in gathered]
        if said:
            entry["collectives"] = said
        entry["layout"] = layout_record(rule)
        nodes[v].setdefault("shards", []).append(entry)
    taken = [rule for _, rule in sorted(zip(order, layout.rules, strict=True), key=lambda p: p[0])]
    for record, (at, each, _) in zip(stream.get("phase")[1:], points[1:], strict=True):
        spent = [times(v, rule, at, each) for v, rule in enumerate(taken)]
        for device, column in zip(devices, zip(*spent, strict=True), strict=True):
            record.setdefault("shard_times", {}).setdefault(device.name, []).extend(column)
    for x, state in layout.state.items():
        if state != WHOLE and x not in gathered:
            moved = size[x] * (t - 1) / t
            tensors[x].setdefault("shards", []).append({"devices": t, "out_bytes": moved})


def layout_record(rule: Rule) -> dict[str, Any]:
    """Layout of a node, as its record states it."""
    made: dict[str, Any] = {}
    for name, states in (("input", rule.inputs), ("output", rule.outputs)):
        made[f"{name}s"] = [WHOLE if state == WHOLE else axis_of(state) for state in states]
        blocks = [1 if state == WHOLE else blocks_of(state) for state in states]
        if max(blocks, default=1) > 1:
            made[f"{name}_blocks"] = blocks
    return {**made, "reduced": True} if rule.reduced else made
