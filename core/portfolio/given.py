"""A plan as a problem and a split again, after recomputing what it promises."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.mip.best import VALIDITIES
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Block, Plan
from dnnp.core.portfolio.methods import check_options

SAME = 1e-9
"""Relative difference up to which a stated value is the recomputed one."""


def given_plan(
    graph: Graph, units: Clustering, plan: Plan
) -> tuple[SplitProblem, list[Block], float]:
    """The problem that a plan solves, its blocks in pipeline order, and its value, recomputed.

    Raises
    ------
    FormatError
        The plan is not what it says: value, validity or objective. `field` names which.
    InfeasibleError
        It does not fit its devices.
    """
    problem = SplitProblem(graph, units, plan.devices, plan.options)
    try:
        check_options(graph, plan.devices, plan.options)
    except UsageError as error:
        raise FormatError(str(error), field="objective") from None
    position = {node: v for v, node in enumerate(graph.node_ids.tolist())}
    devices = {d.name: d for d in plan.devices}
    blocks = [
        Block(
            np.array([position[node] for node in stage.nodes], dtype=np.int64),
            devices[stage.device_class],
            stage.replicas,
            int(stage.device.rpartition("/")[2]),
            stage.peak_bound_bytes or 0.0,
        )
        for stage in plan.stages
    ]
    again = problem.plan(blocks)
    if abs(again.value - plan.value) > SAME * max(again.value, plan.value):
        reason = f"{plan.value!r} is stated, {again.value!r} is the value of these stages"
        raise FormatError(reason, field="value")
    if VALIDITIES.index(again.validity) < VALIDITIES.index(plan.validity):
        reason = f"{plan.validity} is stated, but the stages are only {again.validity}"
        raise FormatError(reason, field="validity")
    return problem, blocks, again.value
