"""What a stage moves over links: the definition for the objectives throughput and gpipe.

A tensor that comes in takes the link from the device that makes it; one that goes out leaves once,
at the pace of the slowest link to a device that reads it, as it does between clusters. A transfer
takes the latency of the link and the bytes over its bandwidth, or, where the tensor states a
transfer time, that time; the sender and the receiver are both busy with it. A CPU is not, as
without links. Of replicas, which share the samples, the slowest pair counts: any of them may send
to any; they synchronise their weights over the slowest link among them. Model inputs and outputs
and what overflows come from the host, over the bandwidth of the class. Two devices without a link
have the widest path between them, see `dnnp.core.cost.machine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dnnp.core.cost.machine import Machine, device_numbers
from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.graph import Floats, Graph, Ints, csr_rows, distinct
from dnnp.core.model.plan import Block, CostOptions

if TYPE_CHECKING:
    from dnnp.core.cost.machine import Given


@dataclass(frozen=True, eq=False)
class Linked:
    """What joins one stage of a split to the others."""

    machine: Machine
    homes: Sequence[Ints]
    """Numbers in the machine of the devices of each stage."""
    stage: Ints
    """i64[n], stage of each node."""
    here: int
    """The stage that this is about."""

    @property
    def slowest_inside(self) -> float:
        """Seconds a byte over the slowest link between two devices of the stage."""
        mine = self.homes[self.here]
        return float(self.machine.rate[np.ix_(mine, mine)].max())

    def arriving(self, graph: Graph, tensors: Ints) -> Floats:
        """Time of each of these tensors from the stage that makes it; f64[tensors]."""
        time = np.zeros(len(tensors))
        source = self.stage[graph.producer[tensors]]
        for other in distinct(source).tolist():
            mine = source == other
            time[mine] = self.between(graph, tensors[mine], other, self.here)
        return time

    def leaving(self, graph: Graph, tensors: Ints) -> Floats:
        """Time of each of these tensors to the slowest of the other stages that read it."""
        time = np.zeros(len(tensors))
        ptr, readers = csr_rows(graph.use_ptr, graph.use_idx, tensors)
        owner = np.repeat(np.arange(len(tensors)), np.diff(ptr))
        target = self.stage[readers]
        for other in distinct(target[target != self.here]).tolist():
            mine = distinct(owner[target == other])
            there = self.between(graph, tensors[mine], self.here, other)
            time[mine] = np.maximum(time[mine], there)
        return time

    def between(self, graph: Graph, tensors: Ints, source: int, target: int) -> Floats:
        """Time of tensors from one stage to another, over the slowest pair of their devices."""
        pairs = np.ix_(self.homes[source], self.homes[target])
        rate, latency = self.machine.rate[pairs].ravel(), self.machine.latency[pairs].ravel()
        stated = graph.transfer_s[tensors][:, None]
        by_size = graph.tensor_bytes[tensors][:, None] * rate
        slowest: Floats = (latency + np.where(np.isnan(stated), by_size, stated)).max(axis=1)
        return slowest


def linked_stages(problem: Given, blocks: Sequence[Block]) -> list[Linked]:
    """What joins each of the (numbered) blocks of a split to the others."""
    machine = problem.machine
    stage = np.full(problem.graph.n, -1, dtype=np.int64)
    homes = []
    for b, block in enumerate(blocks):
        stage[block.nodes] = b
        first = int(device_numbers(machine, block.device.name)[0]) + block.number
        homes.append(np.arange(first, first + block.replicas))
    return [Linked(machine, homes, stage, b) for b in range(len(blocks))]


def at_best_links(
    devices: Sequence[DeviceClass], links: Sequence[Link], options: CostOptions
) -> tuple[DeviceClass, ...]:
    """Classes whose stages cost at most what they do with the links, wherever they stand.

    Every device of a class has the bandwidth of the best link that any of them has, in either
    direction: no path is wider than the links at its ends, and latencies only add. Where a load
    has parts that move over the bandwidth of the class, it is not below that. There are no
    clusters left.
    """
    best: dict[str, float] = {}
    for link in links:
        for end in (link.source, link.target):
            name = end.rpartition("/")[0]
            best[name] = max(best.get(name, 0.0), link.bandwidth_bytes_per_s)
    found = []
    for device in devices:
        band = best.get(device.name, device.bandwidth_bytes_per_s)
        if options.charge_io or options.memory_mode == "overflow":
            band = max(band, device.bandwidth_bytes_per_s)
        found.append(
            replace(
                device,
                bandwidth_bytes_per_s=band,
                cluster_size=0,
                inner_bandwidth_bytes_per_s=float("inf"),
                larger_clusters=(),
            )
        )
    return tuple(found)
