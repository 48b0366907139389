"""Times of the nodes of a graph of training on several devices at once.

The layout is chosen along the forward pass, at the price of both: a backward node runs as its
forward node does, see `dnnp.core.tensor_parallel.layout`. A sum may also be left split along an
axis, by a reduce-scatter; its gradient is gathered then, so both passes move what two all-reduces
move (Korthikanti et al. 2023, "Reducing activation recomputation in large transformer models").

An output of the model that is trained for stays as it was made, since only its loss reads it. A
loss over split scores exchanges three numbers a row: the largest score, the sum of powers, the
score of the target (Shoeybi et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from dnnp.core.cost.load_formula import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, collective_time
from dnnp.core.extras.shard_times import ShardTimes, ends_of, moved_share
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import PARAMETER, Graph
from dnnp.core.model.shards import WHOLE
from dnnp.core.tensor_parallel.layout import ADDENDS, Backward, Layout, choose
from dnnp.core.tensor_parallel.rules import (
    ADDED,
    ON_ALL,
    OWNED,
    Mixtures,
    Operator,
    Rule,
    more_rules,
    rules,
    share_of,
)
from dnnp.core.training.backward import LOSS, gradients_of, is_trainable
from dnnp.core.training.gradients import rule_of
from dnnp.formats.stream import Record, Stream

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
    """Forward node or loss -> tensors whose gradients its backward node makes."""
    trained: frozenset[int]
    """Parameters that have a gradient."""
    of: dict[int, int]
    """Gradient -> the tensor that it is one of."""


def paired(stream: Stream, graph: Graph) -> Passes:
    """Pair each node with its backward node, and find what that makes.

    Raises
    ------
    UsageError
        The backward pass was not made by `dnnp-import --training`.
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

        What that reads of the forward pass it has as that had it. A gradient is split as what it is
        one of; that of a parameter is read and written.
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
        """Tell whether a node is on one device, while others have nodes of other experts."""
        return any(state in (ADDED, OWNED) for state in rule.outputs)

    @staticmethod
    def _computed(rule: Rule) -> tuple[int, ...]:
        """States of what a node writes, before it is summed."""
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
        """Find how parameters and constants are stored: as all readers need them, else whole.

        The search says so of trained parameters.
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
        """State memory: what a node has on one device, of which each has its part.

        As in `dnnp.core.training.gradients`, parameters count where they are read first, and their
        gradients and the optimiser's numbers where these are made first.
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
