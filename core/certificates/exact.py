"""Items, nets and loads that certificates speak of, in whole numbers, from graph and devices.

Times and transfers are divided by the quantum and rounded down, exactly; loads only shrink. Items
are sets of units that every split of a validity keeps whole:

* units that share a colour, through other units too;
* for `ordered` splits without a backward pass also the strongly connected components of the graph
  that this leaves: stages have an order, so that a cycle lies in one of them.

Fields of a certificate are read with suspicion, and what its verification takes is limited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dnnp.core.check.graph import Tables, tables_of
from dnnp.core.check.load import node_memory
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import ACTIVATION, INPUT, Clustering, Graph
from dnnp.core.model.plan import CostOptions

LONG = 1024
"""Bits from which a mask is not taken apart bit by bit."""


class Exact:
    """Items, nets and loads in whole numbers of a quantum."""

    def __init__(
        self,
        graph: Graph,
        clustering: Clustering | None,
        devices: Sequence[DeviceClass],
        options: CostOptions,
        validity: str,
        quantum: Fraction,
        budget: Budget,
    ) -> None:
        self.budget = budget
        budget.spend(graph.n + graph.m + len(graph.in_idx) + len(graph.out_idx))
        self.tables = tables_of(graph, options)
        self.options, self.validity, self.quantum = options, validity, quantum
        self.devices = {d.name: d for d in devices if d.count > 0}
        if not self.devices:
            raise UnprovenError("there are no devices")
        if options.max_replicas < 1:
            raise UnprovenError("no replica of a stage is allowed")
        self.tensor_ids: list[int] = graph.tensor_ids.tolist()
        n = self.tables.n
        if clustering is None:
            self.unit_of = list(range(n))
            self.unit_ids, times = list(self.tables.ids), graph.times
        else:
            self.unit_of = clustering.label.tolist()
            self.unit_ids, times = clustering.group_ids.tolist(), clustering.times
        g = len(self.unit_ids)
        budget.spend(len(self.devices) * g)
        self.unit_work = {
            name: [
                int(Fraction(t) // quantum) if math.isfinite(t) else None
                for t in times[name].tolist()
            ]
            if name in times
            else [None] * g
            for name in self.devices
        }
        self.late = [True] * g
        """True for each unit with all members in the backward pass."""
        for node, unit in enumerate(self.unit_of):
            self.late[unit] &= self.tables.backward[node]
        self.in_order = validity == "ordered" and not self.tables.training
        self._make_items(graph.color.tolist(), g)
        self._make_paths()
        self.nets = self._make_nets()
        self.costs: dict[tuple[str, int], int] = {}
        self._met: dict[tuple[int, bool], int] = {}
        self._held: dict[tuple[int, int], int] = {}
        self._memory: list[Fraction] = []
        """Bytes of each item, once they are asked for."""

    def _make_items(self, color: Sequence[int], g: int) -> None:
        """Join units by colour, then by cycles; number items by their first unit."""
        together = color_pairs(self.unit_of, color)
        label = components(g, together | (self._pairs(range(g)) if self.in_order else set()))
        number: dict[int, int] = {}
        for x in label:
            number.setdefault(x, len(number))
        self.item_of = [number[x] for x in label]
        """Item of each unit."""
        self.n = len(number)
        self.names: list[int] = [-1] * self.n
        for unit in reversed(range(g)):
            self.names[self.item_of[unit]] = self.unit_ids[unit]
        self.item = {name: i for i, name in enumerate(self.names)}
        self.edges = sorted((number[a], number[b]) for a, b in self._pairs(label))
        self.work = {name: added(self.item_of, row, self.n) for name, row in self.unit_work.items()}

    def _pairs(self, label: Sequence[int]) -> set[tuple[int, int]]:
        """Pairs of labels with an edge from the first to the second."""
        return edges_of(self.tables, [label[unit] for unit in self.unit_of], turned=None)

    def _make_paths(self) -> None:
        """Make the steps of paths between items: items in order, else nodes of one pass."""
        if self.in_order:
            self.label, edges = list(range(self.n)), self.edges
        else:
            self.label = [self.item_of[unit] for unit in self.unit_of]
            edges = sorted(edges_of(self.tables, range(self.tables.n), turned=False))
        self.things: list[list[int]] = [[] for _ in range(self.n)]
        for x, i in enumerate(self.label):
            self.things[i].append(x)
        self.onward: list[list[int]] = [[] for _ in self.label]
        self.back: list[list[int]] = [[] for _ in self.label]
        for u, v in edges:
            self.onward[u].append(v)
            self.back[v].append(u)

    def _make_nets(self) -> dict[int, tuple[frozenset[int], bool, int]]:
        """Tensor id -> items that make or read it, whether it is always paid, its position."""
        label = [self.item_of[unit] for unit in self.unit_of]
        nets = {}
        for t, kind in enumerate(self.tables.kind):
            pins = {label[v] for v in self.tables.users.get(t, ())}
            if t in self.tables.writer:
                pins.add(label[self.tables.writer[t]])
            moves = kind == INPUT or (kind == ACTIVATION and self.tables.output[t])
            always = self.options.charge_io and moves
            if (kind == ACTIVATION and len(pins) > 1) or (always and pins):
                nets[self.tensor_ids[t]] = (frozenset(pins), always, t)
        return nets

    def cost(self, name: str, tensor_id: int) -> int:
        """Quanta that a net costs on a class where it is paid; 0 on a CPU."""
        if (name, tensor_id) not in self.costs:
            time = self.transfer(self.devices[name], self.nets[tensor_id][2])
            self.costs[name, tensor_id] = int(time // self.quantum)
        return self.costs[name, tensor_id]

    def transfer(self, device: DeviceClass, tensor: int) -> Fraction:
        """The least that moving a tensor may take, within a cluster or not."""
        if device.is_cpu:
            return Fraction(0)
        links = [device.bandwidth_bytes_per_s]
        links += [level.bandwidth_bytes_per_s for level in device.levels]
        fastest = max(links)
        given = self.tables.transfer[tensor]
        if not math.isnan(given):
            if fastest == links[0]:
                return Fraction(given)
            return Fraction(given) * ratio(links[0], fastest)
        return ratio(self.tables.size[tensor], fastest)

    def named(self, name: object) -> int:
        """Number of the item with this name."""
        if isinstance(name, bool) or not isinstance(name, int) or name not in self.item:
            raise UnprovenError("it names an item that there is not")
        return self.item[name]

    def total(self, name: str) -> int:
        """Work of all items on a class; those that cannot run there do not count."""
        return sum(w for w in self.work[name] if w is not None)

    def met(self, item: int, onward: bool) -> int:
        """Things on paths from an item, or to it, itself included; a bit mask."""
        if (item, onward) not in self._met:
            steps = self.onward if onward else self.back
            self.budget.spend(len(steps) // WORD + 1)
            seen = bytearray(b"0" * len(steps))
            waiting = list(self.things[item])
            for x in waiting:
                seen[-1 - x] = ord("1")
            while waiting:
                after = steps[waiting.pop()]
                self.budget.spend(len(after) + 1)
                for y in after:
                    if seen[-1 - y] == ord("0"):
                        seen[-1 - y] = ord("1")
                        waiting.append(y)
            self._met[item, onward] = int(bytes(seen), 2)
        return self._met[item, onward]

    def between(self, u: int, v: int) -> int:
        """Items that are in a stage with items u and v if both are, as a bit mask; these too."""
        ends = 1 << u | 1 << v
        if self.validity == "free":
            return ends
        pair = (u, v) if u <= v else (v, u)
        if pair not in self._held:
            # Masks are kept: steps limit the memory, too.
            self.budget.spend(self.n // WORD + len(self.label) // WORD + 1)
            after = self.met(u, True) | self.met(v, True)
            things = after & (self.met(u, False) | self.met(v, False))
            if not self.in_order:
                self.budget.spend(things.bit_count())
                things = sum(1 << i for i in {self.label[x] for x in bits(things)})
            self._held[pair] = things | ends
        return self._held[pair]

    def memory(self, items: set[int]) -> Fraction:
        """Memory of some items, added up; bytes."""
        if not self._memory:
            self._memory = [Fraction(0)] * self.n
            for v, unit in enumerate(self.unit_of):
                self._memory[self.item_of[unit]] += Fraction(node_memory(self.tables, v))
        self.budget.spend(10 * len(items))  # Fractions are slow
        return sum((self._memory[i] for i in items), Fraction(0))


def bits(mask: int) -> Iterator[int]:
    """Numbers of the bits that are set, ascending; linear in the length of the mask."""
    if mask.bit_length() > LONG:
        text = bin(mask)[:1:-1]
        at = text.find("1")
        while at >= 0:
            yield at
            at = text.find("1", at + 1)
        return
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def ratio(a: float, b: float) -> Fraction:
    """An exact ratio; 0 over what is infinite."""
    return Fraction(0) if math.isinf(b) else Fraction(a) / Fraction(b)


def weights_of(exact: Exact, weights: Mapping[str, object]) -> dict[str, int]:
    """A weight >= 0 for every class that is offered; those not listed weigh nothing."""
    for name, y in weights.items():
        if name not in exact.devices:
            raise UnprovenError("it weighs a device class that is not offered")
        if isinstance(y, bool) or not isinstance(y, int) or y < 0:
            raise UnprovenError("a weight is not a whole number >= 0")
    found = {name: weights.get(name, 0) for name in exact.devices}
    if not any(found.values()):
        raise UnprovenError("all weights are 0")
    return found  # type: ignore[return-value]


def added(owner: Sequence[int], work: Sequence[int | None], n: int) -> list[int | None]:
    """Work of `n` owners from that of what each owns; None where one of it cannot run."""
    found: list[int | None] = [0] * n
    for x, more in zip(owner, work, strict=True):
        so_far = found[x]
        found[x] = None if so_far is None or more is None else so_far + more
    return found


def color_pairs(unit_of: Sequence[int], color: Iterable[int]) -> set[tuple[int, int]]:
    """Edges both ways between units with nodes of one colour and the first unit with it."""
    first: dict[int, int] = {}
    colored = ((c, unit) for c, unit in zip(color, unit_of, strict=True) if c >= 0)
    ends = {(first.setdefault(c, unit), unit) for c, unit in colored}
    return ends | {(b, a) for a, b in ends}


def edges_of(tables: Tables, label: Sequence[int], *, turned: bool | None) -> set[tuple[int, int]]:
    """Edges between labels of nodes of one pass, or `turned` in the backward one; None: all."""
    return {
        (label[v], label[u]) if turned and tables.backward[v] else (label[u], label[v])
        for v in range(tables.n)
        for u in tables.producers(v)
        if label[u] != label[v]
        if turned is None or tables.backward[u] == tables.backward[v]
    }


def ideals(before: Sequence[int], budget: Budget, most: float = math.inf) -> list[int]:
    """Sets that hold all before each of their items, as bit masks, smaller ones first.

    Raises UncheckedError: there are more than `most`.
    """
    found, layer = [0], [0]
    while layer:
        budget.spend(10 * len(layer) * len(before))
        layer = sorted(
            {
                ideal | 1 << i
                for ideal in layer
                for i, needed in enumerate(before)
                if not ideal >> i & 1 and not needed & ~ideal
            }
        )
        found += layer
        if len(found) > most:
            raise UncheckedError(f"there are more than {most} ideals to walk")
    return found


def components(n: int, edges: set[tuple[int, int]]) -> list[int]:
    """A vertex of each vertex's strongly connected component, the same for all of it.

    Kosaraju: vertices by the end of a depth-first search, then searches against the edges.
    """
    onward: list[list[int]] = [[] for _ in range(n)]
    back: list[list[int]] = [[] for _ in range(n)]
    for a, b in sorted(edges):
        onward[a].append(b)
        back[b].append(a)
    ended: list[int] = []
    seen = [False] * n
    for root in range(n):
        if seen[root]:
            continue
        seen[root] = True
        path = [(root, iter(onward[root]))]
        while path:
            vertex, rest = path[-1]
            child = next(rest, None)
            if child is None:
                ended.append(vertex)
                path.pop()
            elif not seen[child]:
                seen[child] = True
                path.append((child, iter(onward[child])))
    owner = [-1] * n
    for root in reversed(ended):
        if owner[root] < 0:
            owner[root] = root
            waiting = [root]
            while waiting:
                for y in back[waiting.pop()]:
                    if owner[y] < 0:
                        owner[y] = root
                        waiting.append(y)
    return owner


def gathered(owner: Sequence[int]) -> list[list[int]]:
    """All that have the same owner as each one; ascending."""
    members: dict[int, list[int]] = {}
    for unit, x in enumerate(owner):
        members.setdefault(x, []).append(unit)
    return [members[x] for x in owner]


class UnprovenError(Exception):
    """A reason why a certificate proves nothing, as one sentence without its subject."""


class UncheckedError(Exception):
    """A reason why a certificate is not looked at to the end, as a sentence without its subject."""


def field(row: object, name: str, kind: type) -> Any:
    """The field `name` of an object, of this type; whole numbers are not truth values."""
    if not isinstance(row, Mapping) or name not in row:
        raise UnprovenError(f"the field '{name}' is missing")
    return of_kind(row[name], kind, f"the field '{name}'")


def of_kind(value: object, kind: type, what: str) -> Any:
    """`value` if it has this type; large whole numbers stand as text."""
    if kind is int and isinstance(value, str) and re.fullmatch(r"-?[1-9][0-9]{15,99}", value):
        large = int(value)
        if abs(large) >= 2**53:
            return large
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = {int: "a whole number", list: "a list", dict: "an object", str: "text"}[kind]
        raise UnprovenError(f"{what} is not {wanted}")
    return value


def whole(value: object, what: str, least: int = 0) -> int:
    """A whole number of at least `least`."""
    number: int = of_kind(value, int, what)
    if number < least:
        raise UnprovenError(f"{what} is {short(number)}, expected at least {least}")
    return number


def rows(value: object, width: int, what: str) -> list[list[Any]]:
    """A list of lists of `width` entries each."""
    for row in of_kind(value, list, what):
        if len(of_kind(row, list, f"an entry of {what}")) != width:
            raise UnprovenError(f"an entry of {what} has {len(row)} parts, expected {width}")
    return value  # type: ignore[return-value]


def number(value: object, what: str) -> Fraction:
    """A finite number, exactly."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise UnprovenError(f"{what} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnprovenError(f"{what} is not finite")
    return Fraction(value)


def quantum_of(certificate: Mapping[str, Any]) -> Fraction:
    """The value of one unit of a certificate."""
    quantum = number(certificate.get("quantum"), "the quantum")
    if quantum <= 0:
        raise UnprovenError("the quantum is not above 0")
    return quantum


def short(number: int) -> str:
    """A number for a message."""
    return str(number) if abs(number) < 10**30 else "beyond 10^30"


MOST_STEPS = 30_000_000
"""Looks at an item, a pin or a word of a bit mask; seconds on a slow machine."""

WORD = 64
"""Bits of a mask that one step looks at."""


class Budget:
    """Steps that are left, for all certificates of a stream together."""

    def __init__(self) -> None:
        self.most = self.left = MOST_STEPS

    def spend(self, steps: int) -> None:
        """Take steps away before they are made.

        Raises UncheckedError: there are not so many left.
        """
        self.left -= steps
        if self.left < 0:
            raise UncheckedError(f"it takes more than {self.most} steps to verify")


def prices_of(exact: Exact, certificate: Mapping[str, Any]) -> list[int]:
    """Prices of all items, of which a certificate lists those above 0."""
    prices = [0] * exact.n
    listed = set()
    for named, price in rows(field(certificate, "prices", list), 2, "prices"):
        item = exact.named(named)
        if item in listed:
            raise UnprovenError(f"the price of item {exact.names[item]} is listed twice")
        listed.add(item)
        prices[item] = whole(price, "a price")
    if not any(prices):
        raise UnprovenError("all prices are 0")
    return prices
