"""A graph as plain lists; and whether it, its groups and splits are valid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from dnnp.core.check.violation import STRENGTH, Violation, shown
from dnnp.core.model.graph import ACTIVATION, CONSTANT, Clustering, Graph
from dnnp.core.model.plan import CostOptions


@dataclass(frozen=True)
class Tables:
    """Lists copied from a graph; nodes and tensors are positions."""

    ids: list[int]
    """Node ids in the stream."""
    reads: list[list[int]]
    """Tensors each node reads."""
    writes: list[list[int]]
    """Tensors each node writes."""
    kind: list[int]
    size: list[float]
    """Bytes of each tensor that move."""
    resident: list[float]
    """Bytes of each tensor in the memory of a device that holds it."""
    folded: list[bool]
    """True for nodes whose outputs are kept like constants."""
    transfer: list[float]
    """Transfer time of each tensor; nan: size over bandwidth."""
    output: list[bool]
    """True for outputs of the model."""
    writer: dict[int, int]
    """Tensor -> node that writes it."""
    users: dict[int, list[int]]
    """Tensor -> nodes that read it."""
    backward: list[bool]
    """True for nodes of the backward pass."""
    memory: list[float]
    """Memory of each node as the source gives it, bytes; nan: not given."""
    passes: float
    """Passes that times and sizes are sums over."""

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.ids)

    @cached_property
    def training(self) -> bool:
        """True if the graph has a backward pass."""
        return any(self.backward)

    @cached_property
    def in_memory(self) -> Tables:
        """The same as memory counts it: what folded nodes make is constant, and they read nothing.

        Sizes are those in memory.
        """
        if not any(self.folded):
            return replace(self, size=self.resident)
        made = {t for v in range(self.n) if self.folded[v] for t in self.writes[v]}
        kept = [[] if drop else row for row, drop in zip(self.reads, self.folded, strict=True)]
        users: dict[int, list[int]] = {}
        for node, row in enumerate(kept):
            for tensor in row:
                users.setdefault(tensor, []).append(node)
        return replace(
            self,
            reads=kept,
            writes=[[] if drop else r for r, drop in zip(self.writes, self.folded, strict=True)],
            kind=[CONSTANT if t in made else kind for t, kind in enumerate(self.kind)],
            size=self.resident,
            writer={t: v for t, v in self.writer.items() if t not in made},
            users=users,
        )

    def moving(self, tensor: int, bandwidth: float) -> float:
        """Time of a tensor over a link: what is stated, else its size over the bandwidth."""
        stated = self.transfer[tensor]
        return self.size[tensor] / bandwidth if math.isnan(stated) else stated

    @cached_property
    def _producers(self) -> list[list[int]]:
        made = self.writer
        found = [dict.fromkeys([made[t] for t in row if t in made]) for row in self.reads]
        return [[u for u in row if u != node] for node, row in enumerate(found)]

    def producers(self, node: int) -> list[int]:
        """Producers of the inputs of `node`, without repeats and itself."""
        return self._producers[node]


def tables_of(graph: Graph, options: CostOptions | None = None) -> Tables:
    """Copy `graph` into lists; the reverse maps are derived here, not copied.

    `options`: those of a plan, which say how many sequences hold state.
    """
    starts, tensors = graph.in_ptr.tolist(), graph.in_idx.tolist()
    reads = [tensors[starts[v] : starts[v + 1]] for v in range(graph.n)]
    starts, tensors = graph.out_ptr.tolist(), graph.out_idx.tolist()
    writes = [tensors[starts[v] : starts[v + 1]] for v in range(graph.n)]
    users: dict[int, list[int]] = {}
    for node, row in enumerate(reads):
        for tensor in row:
            users.setdefault(tensor, []).append(node)
    resident = graph.tensor_memory.tolist()
    for row in state_rows(graph):
        resident[row.before], resident[row.after] = row.resident(options or CostOptions()), 0.0
    return Tables(
        ids=graph.node_ids.tolist(),
        reads=reads,
        writes=writes,
        kind=graph.tensor_kind.tolist(),
        size=graph.tensor_bytes.tolist(),
        resident=resident,
        folded=graph.folded.tolist(),
        transfer=graph.transfer_s.tolist(),
        output=graph.is_output.tolist(),
        writer={tensor: node for node, row in enumerate(writes) for tensor in row},
        users=users,
        backward=graph.backward.tolist(),
        memory=graph.node_bytes.tolist(),
        passes=graph.passes,
    )


class StateRow(NamedTuple):
    """A state: tensors are positions."""

    before: int
    after: int
    rows: int
    sequence_bytes: float
    token_bytes: float
    tokens: float
    shared: bool
    pass_bytes: float

    def resident(self, options: CostOptions) -> float:
        """Bytes on the device that holds it: a buffer a sequence, two for those in a pass."""
        if options.in_flight is None and options.max_length is None:
            return self.pass_bytes
        length = self.tokens if options.max_length is None else options.max_length
        rows = max(self.rows, options.workload.rows if options.workload else 1)
        buffers = self.rows if options.in_flight is None else options.in_flight
        buffers += 0 if self.shared else rows
        return buffers * (self.sequence_bytes + length * self.token_bytes)


def state_rows(graph: Graph) -> list[StateRow]:
    """The states of a graph."""
    states = graph.states
    if states is None:
        return []
    columns = (
        states.input, states.output, states.rows, states.sequence_bytes, states.token_bytes,
        states.tokens, states.shared, states.pass_bytes,
    )  # fmt: skip
    return [StateRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def on_a_cycle(vertices: Iterable[int], after: Callable[[int], Iterable[int]]) -> list[int]:
    """Return one cycle of a directed graph, first vertex repeated at the end, or [].

    Depth-first search with an explicit stack; linear time.
    """
    state: dict[int, int] = {}
    for root in vertices:
        if root in state:
            continue
        path = [root]
        pending = [iter(after(root))]
        state[root] = 1
        while path:
            child = next(pending[-1], None)
            if child is None:
                state[path.pop()] = 2
                pending.pop()
            elif state.get(child) == 1:
                return [*path[path.index(child) :], child]
            elif child not in state:
                state[child] = 1
                path.append(child)
                pending.append(iter(after(child)))
    return []


def check_graph(graph: Graph) -> Iterator[Violation]:
    """Return what is wrong with `graph`: ids, producers, sizes, times, cycles."""
    tables = tables_of(graph)
    yield from _ids("node", tables.ids)
    yield from _ids("tensor", graph.tensor_ids.tolist())
    yield from _tensors(graph, tables)
    for name, times in graph.times.items():
        for node, time in enumerate(times.tolist()):
            if not time >= 0:
                message = f"time {time} on '{name}' is not a number >= 0"
                yield Violation("graph", f"node {tables.ids[node]}", message, ">= 0", time)
    for node in range(tables.n):
        if not set(tables.writes[node]).isdisjoint(tables.reads[node]):
            subject = f"node {tables.ids[node]}"
            yield Violation("graph", subject, "the node reads what it writes")
    cycle = on_a_cycle(range(tables.n), tables.producers)[::-1]
    if cycle:
        message = f"nodes {shown([tables.ids[v] for v in cycle])} form a cycle"
        yield Violation("graph", "graph", message)


def _ids(what: str, ids: list[int]) -> Iterator[Violation]:
    """Check that ids are non-negative and distinct."""
    yield from (
        Violation("graph", f"{what} {i}", "the id is negative", ">= 0", i) for i in ids if i < 0
    )
    for i, count in Counter(ids).items():
        if count > 1:
            yield Violation("graph", f"{what} {i}", f"the id occurs {count} times", 1, count)


def _tensors(graph: Graph, tables: Tables) -> Iterator[Violation]:
    """Check that activations have one producer, others none, and sizes are >= 0."""
    written = Counter(chain.from_iterable(tables.writes))
    for tensor, tensor_id in enumerate(graph.tensor_ids.tolist()):
        expected = 1 if tables.kind[tensor] == ACTIVATION else 0
        got = written[tensor]
        subject = f"tensor {tensor_id}"
        if got != expected:
            message = f"{got} nodes write it, expected {expected}"
            yield Violation("graph", subject, message, expected, got)
        size, transfer = tables.size[tensor], tables.transfer[tensor]
        if not 0 <= size < float("inf"):
            yield Violation("graph", subject, f"size {size} is not >= 0", ">= 0", size)
        if transfer < 0:
            message = f"transfer time {transfer} is not >= 0"
            yield Violation("graph", subject, message, ">= 0", transfer)


def check_clustering(graph: Graph, clustering: Clustering) -> Iterator[Violation]:
    """Return what is wrong with the groups: every node in one, members in topological order."""
    tables = tables_of(graph)
    member_of: dict[int, int] = {}
    starts, members = clustering.member_ptr.tolist(), clustering.member_idx.tolist()
    for group, group_id in enumerate(clustering.group_ids.tolist()):
        subject = f"group {group_id}"
        seen: set[int] = set()
        inside = set(members[starts[group] : starts[group + 1]])
        if not inside:
            yield Violation("group", subject, "the group is empty")
        for node in members[starts[group] : starts[group + 1]]:
            if node in member_of:
                other = int(clustering.group_ids[member_of[node]])
                message = f"node {tables.ids[node]} is already in group {other}"
                yield Violation("group", subject, message)
            member_of[node] = group
            late = [u for u in tables.producers(node) if u in inside and u not in seen]
            if late:
                message = (
                    f"node {tables.ids[node]} stands before its producer {tables.ids[late[0]]}"
                )
                yield Violation("group", subject, message)
            seen.add(node)
    missing = [tables.ids[v] for v in range(tables.n) if v not in member_of]
    if missing:
        message = f"nodes {shown(missing)} are in no group"
        yield Violation("group", "groups", message, 0, len(missing))


AT_A_TIME = 4096
"""Blocks in one bit mask."""


def validity_of(tables: Tables, blocks: Sequence[Sequence[int]]) -> tuple[str, dict[str, str]]:
    """Return the strongest validity of blocks of nodes and why stronger ones do not hold.

    `ordered`: the blocks can be lined up so that every forward edge points the same way, and
    every backward edge points the other way, or every one of them that way too. Edges from one
    pass into the other do not matter. `convex`: no path inside a pass leaves a block and comes
    back (Definition 3.1 and Section 5.3 of the 2020 paper).
    """
    reasons: dict[str, str] = {}
    block_of = {node: b for b, block in enumerate(blocks) for node in block}
    quotients = []
    for name, wanted in (("forward", False), ("backward", True)):
        part = [v for v in range(tables.n) if tables.backward[v] is wanted]
        where = f" of the {name} part" if tables.training else ""
        before = {v: [u for u in tables.producers(v) if tables.backward[u] is wanted] for v in part}
        quotients.append(_quotient(before, block_of))
        cycle = _cycle(quotients[-1])
        if not cycle:
            continue
        reasons.setdefault("ordered", f"stages {shown(cycle)}{where} form a cycle")
        number = _first_left(before, block_of, len(blocks))
        if number is not None:
            pair = _leaves_and_returns(blocks[number], before)
            if pair is not None:
                u, v = (tables.ids[node] for node in pair)
                reason = f"a path from node {u} to node {v} leaves stage {number}{where}"
                reasons.setdefault("convex", reason)
    if not reasons:
        against = _cycle([*quotients[0], *((b, a) for a, b in quotients[1])])
        along = _cycle([*quotients[0], *quotients[1]])
        if against and along:
            reasons["ordered"] = (
                f"no order suits both passes: stages {shown(against)} form a cycle if the "
                f"backward part runs against the forward part, stages {shown(along)} if along it"
            )
    if "convex" in reasons:
        return "free", reasons
    return ("convex" if reasons else "ordered"), reasons


def _quotient(
    before: Mapping[int, Sequence[int]], block_of: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Distinct pairs of blocks with an edge from the first to the second, sorted."""
    pairs = {
        (block_of[u], block_of[v])
        for v, producers in before.items()
        for u in producers
        if u in block_of and v in block_of
    }
    return sorted((a, b) for a, b in pairs if a != b)


def _cycle(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """A cycle of the pairs, or []."""
    successors: dict[int, list[int]] = {}
    for a, b in pairs:
        successors.setdefault(a, []).append(b)
    return on_a_cycle(successors, lambda v: successors.get(v, ()))


def _first_left(
    before: Mapping[int, Sequence[int]], block_of: Mapping[int, int], count: int
) -> int | None:
    """The first block that a path leaves and comes back to.

    Along the edges each node learns, as a bit mask, which blocks the paths to it have left; for
    some blocks at a time, so that masks stay short.
    """
    order = _in_order(before)
    for base in range(0, count, AT_A_TIME):
        left: dict[int, int] = {}
        returned = 0
        for v in order:
            mine = block_of.get(v, -1) - base
            mask = 0
            for u in before[v]:
                mask |= left[u]
                b = block_of.get(u, -1) - base
                if b != mine and 0 <= b < AT_A_TIME:
                    mask |= 1 << b
            left[v] = mask
            if 0 <= mine < AT_A_TIME:
                returned |= mask & (1 << mine)
        if returned:
            return base + (returned & -returned).bit_length() - 1
    return None


def _in_order(before: Mapping[int, Sequence[int]]) -> list[int]:
    """Nodes after all of their producers; those on a cycle, and behind one, are left out."""
    after: dict[int, list[int]] = {v: [] for v in before}
    missing = {v: len(producers) for v, producers in before.items()}
    for v, producers in before.items():
        for u in producers:
            after[u].append(v)
    order = [v for v, count in missing.items() if not count]
    for v in order:
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                order.append(w)
    return order


def _leaves_and_returns(
    block: Sequence[int], before: Mapping[int, Sequence[int]]
) -> tuple[int, int] | None:
    """Ends of a path that leaves the block and returns to it, or None.

    Walks up from the producers outside the block through nodes outside it: meeting the block
    again is such a path. A node walked once need not be walked again; linear in the graph.
    """
    inside = {v for v in block if v in before}
    walked: set[int] = set()
    for target in sorted(inside):
        pending = [u for u in before[target] if u not in inside and u not in walked]
        walked.update(pending)
        while pending:
            for u in before[pending.pop()]:
                if u in inside:
                    return u, target
                if u not in walked:
                    walked.add(u)
                    pending.append(u)
    return None


def check_validity(
    tables: Tables, blocks: Sequence[Sequence[int]], claimed: str
) -> tuple[str, list[Violation]]:
    """Return the strongest validity, and a violation if it is weaker than claimed."""
    actual, reasons = validity_of(tables, blocks)
    if claimed in STRENGTH and STRENGTH[claimed] <= STRENGTH[actual]:
        return actual, []
    message = f"claims to be '{claimed}' but is '{actual}'"
    if claimed in reasons:
        message += f": {reasons[claimed]}"
    return actual, [Violation("validity", "plan", message, claimed, actual)]
