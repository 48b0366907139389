"""Random operators: the nodes of a model that draw numbers, and a seed for each session.

ONNX Runtime draws for a node without a seed from a generator of the session, whose seed is that of
the process and the number of the node: each new session of a process draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.core.runtime.model.session import SessionConfig, open_session

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto

SPACING = 1_000_003
"""From the seed of one session to that of the next: more than there are nodes."""


def drawing_nodes(model: ModelProto) -> list[NodeProto]:
    """List the nodes that draw numbers, those of bodies and local functions too."""
    from onnx import numpy_helper

    from dnnp.formats.onnx.scope import UNREPEATABLE, all_nodes

    found = [node for node in all_nodes(model) if node.op_type in UNREPEATABLE]
    if not any(node.op_type == "Dropout" for node in found):
        return found
    stored = [(t.name, t) for t in model.graph.initializer if t.data_type == t.BOOL]
    for node in all_nodes(model):
        if node.op_type == "Constant":
            stored += [(node.output[0], a.t) for a in node.attribute if a.t.data_type == a.t.BOOL]
    training = {name for name, t in stored if numpy_helper.to_array(t).any()}
    off = {"", *(name for name, _ in stored)} - training
    # Without its third input, or where that is false, Dropout hands its input on.
    return [n for n in found if n.op_type != "Dropout" or not {*n.input[2:3]} <= off]


def named(nodes: Sequence[NodeProto]) -> list[str]:
    """Names of nodes for messages: `RandomNormal 'a'`."""
    return [f"{node.op_type} '{node.name or node.output[0]}'" for node in nodes]


def seeded(
    config: SessionConfig, model: ModelProto, number: int, base: Callable[[], int] = lambda: 0
) -> SessionConfig:
    """Configure session `number` of several: where its model draws, with a seed of its own.

    `base` makes the seed of session 0.
    """
    if not drawing_nodes(model):
        return config
    return replace(config, seed=base() + number * SPACING)


def of_replica(model: ModelProto, number: int) -> ModelProto:
    """Make the model of a replica: where nodes have seeds, it draws other numbers than replica 0.

    Returns the model itself where nothing is to be changed.
    """
    if not number or not any(_seeds(node) for node in drawing_nodes(model)):
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    for node in drawing_nodes(copy):
        for seed in _seeds(node):
            seed.f += number * SPACING
    return copy


def _seeds(node: NodeProto) -> list[AttributeProto]:
    return [a for a in node.attribute if a.name == "seed" and not a.ref_attr_name]


def own_seed() -> int:
    """Draw a seed by that of the process: `onnxruntime.set_seed` or else the clock decides."""
    from onnx import TensorProto, helper

    kind = TensorProto.DOUBLE
    node = helper.make_node("RandomUniform", [], ["y"], shape=[1], high=2.0**31, dtype=kind)
    out = [helper.make_tensor_value_info("y", kind, [1])]
    model = helper.make_model(
        helper.make_graph([node], "seed", [], out),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    session = open_session(model.SerializeToString(), Path(), SessionConfig())
    return int(session.run(None, {})[0][0])
