"""What a split is made for, in parts: a graph, what stays whole, devices, and the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dnnp.core.cost.machine import Machine, machine_of
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph
from dnnp.core.model.link import Link
from dnnp.core.model.plan import CostOptions


@dataclass(frozen=True, eq=False)
class Given:
    """What is given; `SplitProblem` adds what follows from it."""

    graph: Graph
    units: Clustering
    """What a split keeps whole: groups of nodes, with what they cost."""
    devices: tuple[DeviceClass, ...]
    options: CostOptions
    links: tuple[Link, ...] = ()
    """Links between the devices; none: what their classes state."""

    @cached_property
    def machine(self) -> Machine:
        """The single devices, and what a transfer between two of them takes.

        Raises
        ------
        FormatError
            A link names a device that is not there, or two devices are not connected.
        """
        return machine_of(self.devices, self.links)
