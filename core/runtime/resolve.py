"""The graph that ONNX Runtime really runs, and which node of the model each of its nodes serves."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.providers import ort_errors
from dnnp.formats.unfinished import scratch_folder

if TYPE_CHECKING:
    from onnx import ModelProto

_SMALL_ELEMENTS = 256
"""Weights that the resolving session gets to see: they may be shapes."""


def resolved_model(model: ModelProto) -> ModelProto | None:
    """The model as ONNX Runtime runs it without optimisation; None if it cannot be had.

    Functions are inlined in it, operators without a kernel expanded, casts inserted. Weights
    are kept from the resolving session, as only the structure matters to it.
    """
    import onnx
    import onnxruntime

    light = onnx.ModelProto()
    light.CopyFrom(model)
    large = {t.name: t for t in model.graph.initializer if math.prod(t.dims) > _SMALL_ELEMENTS}
    small = [t for t in model.graph.initializer if t.name not in large]
    del light.graph.initializer[:]
    light.graph.initializer.extend(small)
    declared = {v.name for v in model.graph.input}
    for tensor in large.values():
        if tensor.name not in declared:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        with scratch_folder() as scratch:
            options.optimized_model_filepath = path = os.path.join(scratch, "resolved.onnx")
            with making_session("the model"):
                onnxruntime.InferenceSession(
                    light.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
            resolved = onnx.load(path, load_external_data=False)
    except ort_errors():
        return None
    except OSError:
        return None
    inputs = [v for v in resolved.graph.input if v.name in declared or v.name not in large]
    del resolved.graph.input[:]
    resolved.graph.input.extend(inputs)
    resolved.graph.initializer.extend(large.values())
    return resolved


def owners_of(resolved: ModelProto, model: ModelProto, known: Mapping[str, int]) -> list[int]:
    """For each node of a resolved model the index of the node in `model` it serves, or -1.

    Tensors of the model keep their names when ONNX Runtime inlines and inserts nodes: whatever
    leads to an output of a node, past tensors that the model does not have, belongs to it.
    """
    original = {name: known[n.name] for n in model.graph.node for name in n.output if name}
    original.update((v.name, -1) for v in model.graph.input)
    original.update((t.name, -1) for t in model.graph.initializer)
    wanted: dict[str, int] = {}
    owners: list[int] = []
    for node in reversed(resolved.graph.node):
        owner = known.get(node.name, -1)
        for name in node.output:
            if owner < 0:
                owner = original.get(name, wanted.get(name, -1))
        owners.append(owner)
        for name in node.input:
            if name not in original:
                wanted.setdefault(name, owner)
    return owners[::-1]
