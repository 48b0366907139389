"""The best split so far, judged by the cost model."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.plan import make_plan
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Block, CostOptions

VALIDITIES = ("free", "convex", "ordered")
"""What a split can promise, weakest first."""


class Best:
    """The best split of a graph, and the problem it is a split of."""

    def __init__(
        self,
        graph: Graph,
        units: Clustering,
        devices: tuple[DeviceClass, ...],
        options: CostOptions,
        validity: str,
    ) -> None:
        self.graph, self.units, self.devices = graph, units, devices
        self.options, self.validity = options, validity
        self.blocks: list[Block] | None = None
        self.value = np.inf

    def offer(self, blocks: list[Block]) -> float:
        """Take a split if it is valid and better; return its objective, inf if it is invalid."""
        try:
            plan = make_plan(
                self.graph, self.units, blocks, self.devices, self.options,
                method="ip", bound=0.0, digest="",
            )  # fmt: skip
        except (InfeasibleError, FormatError):
            return np.inf
        if VALIDITIES.index(plan.validity) < VALIDITIES.index(self.validity):
            return np.inf
        if plan.value < self.value:
            self.blocks, self.value = blocks, plan.value
        return plan.value
