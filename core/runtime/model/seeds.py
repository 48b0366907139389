"""Random operators: the nodes of a model that draw numbers, and seeds for its sessions.

A node without a seed draws by the seed of the process and its own number, in ONNX Runtime: each new
session of a process draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.core.runtime.model.session import SessionConfig, open_session

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

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
    config: SessionConfig,
    model: ModelProto,
    number: int,
    replica: int = 0,
    base: Callable[[], int] = lambda: 0,
) -> tuple[SessionConfig, ModelProto]:
    """Have session `number` of several draw numbers of its own; `base` makes the seed of the first.

    In the model of a replica after the first one the seeds that nodes have are changed too.
    """
    if not drawing_nodes(model):
        return config, model
    own = type(model)()
    own.CopyFrom(model)
    seeds = [a for node in drawing_nodes(own) for a in node.attribute if a.name == "seed"]
    for seed in seeds:
        kind = "i" if seed.type == seed.INT else "f"
        setattr(seed, kind, getattr(seed, kind) + replica * SPACING)
    config = replace(config, seed=base() + number * SPACING)
    return config, own if replica and seeds else model


def own_seed() -> int:
    """Draw a seed by that of the process: `onnxruntime.set_seed` or else the clock decides."""
    from onnx import parser

    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> seed () => (double[1] y)'
        "{ y = RandomUniform <dtype: int = 11, high: float = 2147483648.0, shape: ints = [1]> () }"
    )
    session = open_session(model.SerializeToString(), Path(), SessionConfig())
    return int(session.run(None, {})[0][0])
