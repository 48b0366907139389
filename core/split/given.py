"""A plan as a problem and a split again, after recomputing what it promises."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.validity import VALIDITIES
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.plan import Block, Plan
from dnnp.core.split.checks import check_options

SAME = 1e-9
"""Relative difference up to which a stated value is the recomputed one."""


def given_plan(problem: SplitProblem, plan: Plan) -> tuple[list[Block], float]:
    """The blocks of a plan for `problem`, in pipeline order, and its value, recomputed.

    Raises
    ------
    FormatError
        The plan is not what it says: value, validity or objective. `field` names which.
    InfeasibleError
        It does not fit its devices.
    """
    try:
        check_options(problem)
    except UsageError as error:
        raise FormatError(str(error), field="objective") from None
    position = {node: v for v, node in enumerate(problem.graph.node_ids.tolist())}
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
    return blocks, again.value
