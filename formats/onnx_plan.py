"""Which plans can become a pipeline of ONNX models."""

from __future__ import annotations

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Plan


def check_runnable(plan: Plan, graph: Graph, remedy: str) -> None:
    """Refuse a plan whose stages cannot each be an ONNX model, run one after the other.

    `remedy` is what to do about stages that wait for each other.

    Raises
    ------
    FormatError
        The plan is for training, or not ordered.
    """
    refuse_training(graph)
    if plan.validity != "ordered":
        raise FormatError(
            f"the plan is {plan.validity}, not ordered: its stages wait for each other; {remedy}"
        )


def refuse_training(graph: Graph) -> None:
    """Raise a FormatError if the graph has a backward pass."""
    if graph.backward.any():
        raise FormatError(
            "the plan is for training: only plans of graphs without a backward pass "
            "are pipelines of ONNX models"
        )
