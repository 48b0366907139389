"""Loads of all stages of a split over links at once: for searches that try many splits.

The definition is `dnnp.core.cost.load`; a search is judged by it in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, execution_order, nets_of
from dnnp.core.cost.load import link_times, node_memory, stage_memory, weight_bytes
from dnnp.core.cost.load_formula import COMM, ROOM, combine_arrays
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import device_numbers
from dnnp.core.model.graph import Floats, Ints, place_of, totals

MOST_KEPT = 20_000
"""Stages whose memory is remembered."""


class Home(NamedTuple):
    """The devices that run a stage."""

    device: int
    """Position of its class among the devices of the problem."""
    number: int
    """Of its first device within the class."""
    replicas: int


class LinkedLoads:
    """The loads of splits of some items, by the slot of each item and what runs each slot."""

    def __init__(self, problem: SplitProblem, items: Items) -> None:
        graph, units, options = problem.graph, problem.units, problem.options
        self.problem, self.items = problem, items
        nets, tensor = nets_of(graph, items.label, items.count, options)
        self.source = nets.source
        net, made = nets.net_of_pin, nets.source >= 0
        read = nets.pins != self.source[net]
        self.net, self.reader = net[read], nets.pins[read]
        """The items that read each net, besides its source."""
        self.size, self.stated = graph.tensor_bytes[tensor], graph.transfer_s[tensor]
        self.free = np.isnan(self.stated)
        self.to_host = made & graph.is_output[tensor] & options.charge_io
        devices = problem.devices
        self.host = link_times(graph, devices, tensor)
        self.is_cpu = np.array([d.is_cpu for d in devices])
        first = units.member_idx[units.member_ptr[:-1]]
        late = totals(units.label, ~graph.backward, units.g) == 0
        late_net = made & graph.backward[graph.producer[tensor]]
        times = units.times_on(*(d.name for d in devices))
        both = options.objective == "gpipe"
        self.passes = []
        """For each pass that counts by itself: work of the items on each class, and its nets."""
        for unit_in, net_in in (
            ((~late, ~late_net), (late, late_net)) if both else ((late >= 0, made >= 0),)
        ):
            rows = [
                totals(items.label[first], np.where(unit_in, t, 0.0), items.count) for t in times
            ]
            self.passes.append((np.stack(rows), net_in))
        self.first_number = [int(device_numbers(problem.machine, d.name)[0]) for d in devices]
        self.memory = totals(items.label, node_memory(graph), items.count)
        self.limited = np.array([not d.is_cpu and np.isfinite(d.memory_bytes) for d in devices])
        self.training = bool(graph.backward.any())
        # With a backward pass an item holds nodes of both, which run far apart in time.
        self.sequence = (
            graph.order
            if self.training
            else execution_order(graph, units, place_of(self.items.order)[self.items.label])
        )
        """Nodes in the order in which a stage runs those that it holds."""
        self._joined: dict[tuple[Home, ...], tuple[Floats, Floats, Floats]] = {}
        self._held: dict[bytes, float] = {}

    @property
    def pins(self) -> int:
        """Size of the nets."""
        return len(self.net)

    def of(self, slot: Ints, homes: Sequence[Home]) -> Floats:
        """Load of each slot, in each pass that counts by itself; f64[passes, slots].

        inf: the stage does not fit, or some of it is not supported.
        """
        options, count = self.problem.options, len(homes)
        device = np.array([h.device for h in homes])
        replicas = np.array([float(h.replicas) for h in homes])
        rate, latency, inside = self._between(tuple(homes))
        net, target = np.divmod(self._crossing(slot, count), count)
        source = np.where(self.source[net] >= 0, slot[self.source[net]], -1)
        time = self.host[device[target], net]
        made = source >= 0
        pairs = source[made], target[made]
        own = np.where(
            self.free[net[made]], self.size[net[made]] * rate[:, *pairs], self.stated[net[made]]
        )
        time[made] = (latency[:, *pairs] + own).max(axis=0)
        time_out = np.zeros(len(self.source))
        np.maximum.at(time_out, net[made], time[made])
        sender = np.where(self.source >= 0, slot[self.source], 0)
        host = np.where(self.to_host, self.host[device[sender], np.arange(len(sender))], 0.0)
        time_out = np.where(self.source >= 0, np.maximum(time_out, host), 0.0)
        time = np.where(self.is_cpu[device[target]], 0.0, time)
        time_out = np.where(self.is_cpu[device[sender]], 0.0, time_out)
        overflow = self._overflow(slot, homes)
        found = []
        for number, (work, nets) in enumerate(self.passes):
            mine = nets[net]
            loads = combine_arrays(
                COMM[options.comm],
                totals(target[mine], time[mine], count),
                totals(slot, work[device[slot], np.arange(len(slot))], count),
                overflow,
                totals(sender[nets], time_out[nets], count),
            )
            loads = loads / replicas
            if self.training and number == len(self.passes) - 1 and (replicas > 1).any():
                sync = self._sync(slot, replicas, inside)
                loads = loads + sync if options.comm == "sum" else np.maximum(loads, sync)
            found.append(loads)
        return np.stack(found)

    def _crossing(self, slot: Ints, count: int) -> Ints:
        """net * count + slot for every slot that reads a net made elsewhere, ascending."""
        to = slot[self.reader]
        source = self.source[self.net]
        away = (source < 0) | (to != slot[source])
        keys = np.sort(self.net[away] * count + to[away])
        return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys

    def _between(self, homes: tuple[Home, ...]) -> tuple[Floats, Floats, Floats]:
        """Rates and latencies of each pair of devices of two slots, f64[pairs, slots, slots], the
        last pair again where there are fewer; the slowest rate within each slot, f64[slots]."""
        if homes not in self._joined:
            if len(self._joined) > 1000:
                self._joined.clear()
            machine = self.problem.machine
            ranges = [
                np.arange(
                    self.first_number[h.device] + h.number,
                    self.first_number[h.device] + h.number + h.replicas,
                )
                for h in homes
            ]
            most = max(h.replicas for h in homes)
            padded = np.array([[r[min(i, len(r) - 1)] for i in range(most)] for r in ranges])
            ends = [
                (padded[:, i, None], padded[None, :, j]) for i in range(most) for j in range(most)
            ]
            self._joined[homes] = (
                np.stack([machine.rate[a, b] for a, b in ends]),
                np.stack([machine.latency[a, b] for a, b in ends]),
                np.array([machine.rate[np.ix_(r, r)].max() for r in ranges]),
            )
        return self._joined[homes]

    def _overflow(self, slot: Ints, homes: Sequence[Home]) -> Floats:
        """Time of what overflows in each slot; inf where nothing may."""
        over = np.zeros(len(homes))
        hard = self.problem.options.memory_mode == "hard"
        if not self.limited.any():
            return over
        for s, home in enumerate(homes):
            if not self.limited[home.device]:
                continue
            device = self.problem.devices[home.device]
            memory = self._memory(np.flatnonzero(slot == s))
            if hard and memory > device.memory_bytes * ROOM:
                over[s] = np.inf
            elif not hard:
                over[s] = max(memory - device.memory_bytes, 0.0) / device.bandwidth_bytes_per_s
        return over

    def _memory(self, items: Ints) -> float:
        """Memory of a stage of these items, in the order in which a block of them runs."""
        if self.problem.options.memory_model == "sum" or not len(items):
            return float(self.memory[items].sum())
        key = items.tobytes()
        if key not in self._held:
            if len(self._held) > MOST_KEPT:
                self._held.clear()
            nodes, step = self._nodes(items)
            self._held[key] = stage_memory(self.problem.graph, nodes, step, self.problem.options)[0]
        return self._held[key]

    def _nodes(self, items: Ints) -> tuple[Ints, Ints]:
        """Nodes of some items in execution order, and the place of every node in it or -1."""
        mine = np.zeros(self.items.count, dtype=np.bool_)
        mine[items] = True
        nodes = self.sequence[mine[self.items.label[self.sequence]]]
        step = place_of(nodes, self.problem.graph.n)
        return nodes, step

    def _sync(self, slot: Ints, replicas: Floats, inside: Floats) -> Floats:
        """Time in which the replicas of each slot synchronise their weights."""
        found = np.zeros(len(replicas))
        for s in np.flatnonzero(replicas > 1).tolist():
            nodes = self._nodes(np.flatnonzero(slot == s))[0]
            share = (replicas[s] - 1) / replicas[s]
            found[s] = share * weight_bytes(self.problem.graph, nodes) * inside[s]
        return found
