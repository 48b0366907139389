"""Rows of different lengths in a pass over tokens where caches grow: padding at their left.

What follows from sizes, mask and positions alone is evaluated for a row with and without padding.
A row may be padded if all else reads the same values but for the columns of the padding, which
masks hide: positions follow from inputs then, and not from sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dnnp.core.model.phases import TOKEN, Point
from dnnp.formats.onnx.dims import Dimensions, bind_inputs
from dnnp.formats.onnx.phases import sizes_at
from dnnp.formats.onnx.read_graph import read_graph
from dnnp.formats.onnx.scope import reads
from dnnp.formats.onnx.shapes import infer, light_model

PAST, PADDING = 5, 2
"""Tokens before the pass that is evaluated, and columns of padding."""

HIDDEN = 1e4
"""A column whose score is so much less than another has no share after a softmax."""

_BY_COLUMN = frozenset({"Add", "Where", "Attention", "MultiHeadAttention"})
"""Operators that read a number of each column, in the last axis."""


def may_pad(model: onnx.ModelProto, more: Mapping[str, int]) -> bool:
    """True if rows may be padded; each pair of caches has a mask that hides it.

    `more`: sizes of dimensions that are neither batch nor lengths.
    """
    light = light_model(model, read_graph(model), Dimensions({}))
    del light.graph.value_info[:]
    plain, padded = (_folded(light, more, padding) for padding in (0, PADDING))
    known = [{t.name: t for t in each.graph.initializer} for each in (plain, padded)]
    masks = 0
    for node in padded.graph.node:
        for at, name in enumerate(reads(node)):
            ends = [numpy_helper.to_array(tensors[name]) for tensors in known if name in tensors]
            if node.op_type in ("Shape", "Size") or len(ends) == 1:
                return False  # what follows from it is not known
            shape = node.op_type in ("Expand", "Reshape") and at == 1
            if not ends or shape or np.array_equal(ends[0], ends[1]):
                continue
            padding, columns = np.split(np.atleast_1d(ends[1]), [PADDING], axis=-1)
            if node.op_type not in _BY_COLUMN or not np.array_equal(ends[0], columns):
                return False
            less = columns[..., -1:].astype(float) - padding  # a condition may say what is hidden
            masks += bool((less >= HIDDEN if padding.dtype.kind == "f" else less != 0).all())
    caches = sum(len(v.type.tensor_type.shape.dim) > 2 for v in model.graph.input)
    return 2 * masks >= caches


def _folded(light: onnx.ModelProto, more: Mapping[str, int], padding: int) -> onnx.ModelProto:
    """A model for one row, where all that follows from sizes, mask and positions is constant."""
    copy, total = onnx.ModelProto(), padding + PAST + 1
    copy.CopyFrom(light)
    graph = copy.graph
    bind_inputs(graph, sizes_at(graph, Point(TOKEN, 1, 1, total - 1), more), {})
    mask, positions = np.arange(total)[None, :] >= padding, np.array([[PAST]])
    values = {"attention_mask": mask, "position_ids": positions}
    for value in [v for v in graph.input if v.name in values]:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = values[value.name].astype(dtype)
        graph.initializer.append(numpy_helper.from_array(array, value.name))
        graph.input.remove(value)
    return infer(copy, {}, [""])[0]
