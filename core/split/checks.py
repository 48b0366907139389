"""Checks of options and methods of dnnp-partition, and of a given plan, which is recomputed."""

from __future__ import annotations

import numpy as np

from dnnp.core.baselines.blocks import unplaceable
from dnnp.core.cost.items import VALIDITIES
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.plan import Block, Plan

SAME = 1e-9
"""Relative difference up to which a stated value is the recomputed one."""


def resolved(method: str, validity: str) -> str:
    """The method that does the work, where a split of this validity is asked for."""
    if method != "auto":
        return method
    return "auto" if validity == "ordered" else "anneal"


def validity_asked(method: str, validity: str | None) -> str:
    """The validity that is asked for; by default the method's own.

    Raises
    ------
    UsageError
        The method makes no use of this validity.
    """
    found = SPLITS[method].kinds
    if validity is None or validity in found:
        return validity or found[0]
    others = ", ".join(name for name, other in SPLITS.items() if validity in other.kinds)
    raise UsageError(f"method {method} makes {found[0]} splits; {validity} ones come from {others}")


def method_asked(method: str, validity: str | None, *, clustered: bool) -> tuple[str, str]:
    """The method that does the work, and the validity that is asked for.

    Raises
    ------
    UsageError
        The method does not make such splits, or knows no clusters of devices.
    """
    validity = validity_asked(method, validity)
    method = resolved(method, validity)
    if clustered and method in ("anneal", "heuristic", "ip"):
        raise UsageError(
            f"method {method} knows no clusters of devices; splits for them come from auto and "
            "exact, and are ordered"
        )
    return method, validity


def check_options(problem: SplitProblem) -> None:
    """Refuse cost options that no method, and not the cost model itself, defines.

    Raises
    ------
    UsageError
        The options do not go together, or not with this graph.
    """
    options = problem.options
    training = bool(problem.graph.backward.any())
    if options.objective == "gpipe" and not training:
        raise UsageError("--objective gpipe needs a graph with a backward pass")
    limited = any(np.isfinite(d.memory_bytes) and not d.is_cpu for d in problem.devices)
    if options.objective == "gpipe" and options.memory_mode == "overflow" and limited:
        raise UsageError(
            "--objective gpipe is not defined with --memory-mode overflow: overflow belongs to "
            "neither pass"
        )
    if options.memory_model == "weights":
        raise UsageError("--memory-model weights is for --objective latency")
    if options.memory_model == "peak" and training:
        raise UsageError("--memory-model peak is not defined for a graph with a backward pass")


def check_links(problem: SplitProblem) -> None:
    """Refuse links that do not connect all devices.

    Raises
    ------
    FormatError
        Two devices are not connected, or a link names one that is not there.
    """
    if problem.links:
        _ = problem.machine


def unplaceable_part(problem: SplitProblem, validity: str) -> InfeasibleError | None:
    """The error for nodes that belong together and fit no device, if there are any."""
    choices = [problem.free_items]
    if validity == "ordered" and not problem.graph.backward.any():
        choices.append(problem.items)
    for items in choices:
        line = problem.line(items)
        reason = unplaceable(problem, line)
        if reason is not None:
            return reason
    return None


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
