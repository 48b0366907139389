"""Units: groups that grow by merging a unit into its only consumer.

Every rule and the series contraction are made of that one step, and that step cannot close a
cycle. Let all readers of unit u lie in unit v, and suppose that merging u into v made a cycle.
The cycle leaves {u, v} and returns. It cannot leave from u, whose readers are in v. So it
leaves from v, and returning to v or, through u, to v, it was a cycle before. By induction the
quotient graph stays acyclic, and every unit has one member, its exit, whose outputs are the
only ones that others may read. A unit is addressed by the position of its exit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dnnp.core.model.graph import CONSTANT, PARAMETER, Graph, Ints, csr_lists

NONE = -1

Shape = tuple[int, ...] | None
"""Dimensions of a tensor; None: not known."""


class Units:
    """A partition of the nodes of a graph that starts with singletons and grows by merging."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[str] = list(graph.ops)
        """Operator of each unit, by exit; change it with `rename`."""
        self.rules: list[str] = [""] * graph.n
        """Rule that formed each unit, by exit."""
        self.reads: list[list[int]] = csr_lists(graph.in_ptr, graph.in_idx)
        """Tensors each unit reads from outside, by exit, in the order of its operands."""
        self.writes: list[list[int]] = csr_lists(graph.out_ptr, graph.out_idx)
        self.readers: list[list[int]] = csr_lists(graph.use_ptr, graph.use_idx)
        self.constant: list[bool] = np.isin(graph.tensor_kind, (PARAMETER, CONSTANT)).tolist()
        """Tensors known before the model runs."""
        self.producer: list[int] = graph.producer.tolist()
        self.order: list[int] = graph.order.tolist()
        self.rank: list[int] = graph.rank.tolist()
        """Place of each node in the Kahn order."""
        self._having: dict[str, list[int]] = {}
        for node, op in enumerate(graph.ops):
            self._having.setdefault(op, []).append(node)
        self._parent = list(range(graph.n))
        self._kind = signatures(graph).tolist()
        self._color = lone_colors_freed(graph).tolist()
        survives = graph.survives.tolist()
        self._kept = [any(survives[t] for t in row) for row in self.writes]

    def rename(self, unit: int, op: str) -> None:
        """Give a unit another operator."""
        if self.ops[unit] != op:
            self.ops[unit] = op
            self._having.setdefault(op, []).append(unit)

    def having(self, ops: Iterable[str]) -> list[int]:
        """Units with one of the operators, in topological order."""
        found = {
            unit
            for op in ops
            for unit in self._having.get(op, ())
            if self.ops[unit] == op and self.find(unit) == unit
        }
        return sorted(found, key=self.rank.__getitem__)

    def readers_of(self, ops: Iterable[str]) -> list[int]:
        """Units that read what units with one of the operators write, in topological order."""
        found = {
            self.find(reader)
            for unit in self.having(ops)
            for tensor in self.writes[unit]
            for reader in self.readers[tensor]
        }
        return sorted(found, key=self.rank.__getitem__)

    def count(self, ops: Iterable[str]) -> int:
        """Upper bound on the number of units with one of the operators."""
        return sum(len(self._having.get(op, ())) for op in ops)

    def find(self, node: int) -> int:
        """Unit of a node."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def maker(self, tensor: int) -> int:
        """Unit that writes a tensor, or NONE."""
        node = self.producer[tensor]
        return NONE if node < 0 else self.find(node)

    def consumer(self, unit: int) -> int:
        """The only unit that reads what `unit` writes; NONE if there are none or several.

        An output of the model has one reader more: the caller.
        """
        if self._kept[unit]:
            return NONE
        found = NONE
        for tensor in self.writes[unit]:
            for reader in self.readers[tensor]:
                reader = self.find(reader)
                if reader != found:
                    if found != NONE:
                        return NONE
                    found = reader
        return found

    def read_only_in(self, unit: int, inside: set[int]) -> bool:
        """True if something reads `unit`, and all that does lies in the units `inside`."""
        if self._kept[unit]:
            return False
        used = False
        for tensor in self.writes[unit]:
            for reader in self.readers[tensor]:
                if self.find(reader) not in inside:
                    return False
                used = True
        return used

    def compatible(self, units: Sequence[int]) -> bool:
        """True if units run on the same classes, in the same pass, and no two colours meet."""
        kinds = {self._kind[u] for u in units}
        colors = {self._color[u] for u in units} - {NONE}
        return len(kinds) == 1 and len(colors) <= 1

    def merge(self, unit: int, consumer: int) -> bool:
        """Merge `unit` into its only consumer; False, and nothing done, if that may not be."""
        if self.consumer(unit) != consumer or not self.compatible((unit, consumer)):
            return False
        self._parent[unit] = consumer
        if self._color[consumer] == NONE:
            self._color[consumer] = self._color[unit]
        return True

    def label(self) -> Ints:
        """Exit of each node's unit; i64[n]."""
        return np.fromiter(map(self.find, range(self.graph.n)), np.int64, self.graph.n)


def signatures(graph: Graph) -> Ints:
    """Number of the combination (device classes that run it, forward or backward); i64[n]."""
    columns = [np.isfinite(graph.times[c]) for c in sorted(graph.times)]
    table = np.stack([*columns, graph.backward], axis=1)
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def lone_colors_freed(graph: Graph) -> Ints:
    """Colours, with -1 where only one node has the colour, which then binds no other; i64[n]."""
    _, inverse, counts = np.unique(graph.color, return_inverse=True, return_counts=True)
    return np.where(counts[inverse.reshape(-1)] > 1, graph.color, NONE)
