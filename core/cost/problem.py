"""What is split: a graph, what it is made of, the devices, and how a split is priced."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, free_items_of, item_choices
from dnnp.core.cost.linked import at_best_links
from dnnp.core.cost.machine import Given
from dnnp.core.cost.ordered_items import Line, make_line
from dnnp.core.cost.plan import make_plan
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph, Ints
from dnnp.core.model.plan import Block, CostOptions, Plan

LINES = 4
"""Lines that are remembered, the last ones used: one of 50,000 nodes takes some megabytes."""


class SplitProblem(Given):
    """A graph to be split over devices; what follows from it is derived once and remembered.

    Nobody may change the arrays that it hands out.
    """

    def plan(self, blocks: list[Block]) -> Plan:
        """Price a split; raises what `make_plan` does."""
        return make_plan(self, blocks)

    def value(self, blocks: list[Block]) -> float:
        """Objective of a split; raises what `make_plan` does."""
        return self.plan(blocks).value

    @property
    def clustered(self) -> bool:
        """Whether some devices form clusters, and no links say more."""
        return not self.links and any(d.cluster_size for d in self.devices)

    @cached_property
    def unlinked(self) -> SplitProblem:
        """The same problem without links, in which no split has a larger objective.

        It is what methods and bounds work on that know the bandwidths of classes only.
        """
        if not self.links:
            return self
        devices = at_best_links(self.devices, self.links, self.options)
        return self._variant(replace(self, devices=devices, links=()))

    @cached_property
    def searched(self) -> SplitProblem:
        """What methods and bounds work on: devices without a limit where capacities are ignored."""
        if self.options.memory_mode != "ignore":
            return self
        devices = tuple(replace(d, memory_bytes=math.inf) for d in self.devices)
        options = replace(self.options, memory_mode="hard")
        return self._variant(replace(self, devices=devices, options=options))

    def own(self, blocks: Sequence[Block]) -> list[Block]:
        """The same blocks, on the devices of this problem: by class, whatever else they state."""
        devices = {d.name: d for d in self.devices}
        return [b._replace(device=devices[b.device.name]) for b in blocks]

    @property
    def items(self) -> Items:
        """Items of an ordered split; with a backward pass, those of its finer direction."""
        return self.item_choices[0]

    @property
    def item_choices(self) -> tuple[Items, ...]:
        """Items for each direction of a backward pass, most items first."""
        return self._derived.item_choices

    def kept_items(self, blocks: Sequence[Block]) -> tuple[Items, Ints] | None:
        """The finest items that blocks keep whole and in order, and the block of each of them.

        None: the blocks cut some items of each choice, or are in no order of them.
        """
        block = np.empty(self.graph.n, dtype=np.int64)
        for b, one in enumerate(blocks):
            block[one.nodes] = b
        for items in self.item_choices:
            at = np.empty(items.count, dtype=np.int64)
            at[items.label] = block
            if (at[items.label] == block).all() and (at[items.tail] <= at[items.head]).all():
                return items, at
        return None

    @property
    def free_items(self) -> Items:
        """Items of a split without order."""
        return self._derived.free_items

    def line(self, items: Items | None = None, order: Ints | None = None) -> Line:
        """Lay items out (default: `items`) in a topological order (default: their Kahn order)."""
        items = self.items if items is None else items
        return self._derived.line(self, items, items.order if order is None else order)

    def with_options(self, options: CostOptions) -> SplitProblem:
        """The same graph and devices under other options."""
        return self._variant(replace(self, options=options))

    def with_devices(self, *devices: DeviceClass) -> SplitProblem:
        """The same graph and options on other devices."""
        return self._variant(replace(self, devices=devices))

    @cached_property
    def _derived(self) -> _Derived:
        return _Derived(self.graph, self.units)

    def _variant(self, other: SplitProblem) -> SplitProblem:
        """`other`, a problem of the same graph and units, with what is derived from these."""
        other.__dict__["_derived"] = self._derived
        return other


class _Laid(NamedTuple):
    """A line, and what it was made from."""

    items: Items
    order: Ints
    devices: tuple[DeviceClass, ...]
    options: CostOptions
    line: Line


class _Derived:
    """What follows from a graph and its units, for all devices and options."""

    def __init__(self, graph: Graph, units: Clustering) -> None:
        self.graph, self.units = graph, units
        self.own: set[Items] = set()
        self.laid: deque[_Laid] = deque(maxlen=LINES)
        self.lock = Lock()  # a search and what would be answered instead run beside each other

    @cached_property
    def item_choices(self) -> tuple[Items, ...]:
        choices = tuple(item_choices(self.graph, self.units))
        self.own.update(choices)
        return choices

    @cached_property
    def free_items(self) -> Items:
        items = free_items_of(self.graph, self.units)
        self.own.add(items)
        return items

    def line(self, problem: SplitProblem, items: Items, order: Ints) -> Line:
        """A line of `problem`, laid out if it is not among the last ones."""
        if items not in self.own:  # contracted further by whoever asks: nobody else has them
            return make_line(problem, items, order)
        with self.lock:
            for i, one in enumerate(self.laid):
                same = one.items is items and np.array_equal(one.order, order)
                if same and (one.devices, one.options) == (problem.devices, problem.options):
                    del self.laid[i]
                    self.laid.append(one)
                    return one.line
        line = make_line(problem, items, order)
        with self.lock:
            self.laid.append(_Laid(items, order, problem.devices, problem.options, line))
        return line
