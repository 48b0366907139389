"""Known causes of small differences between a split model and the whole one.

The whole model runs once more with one thing as the split has it: where it then makes the same
bits, that was the cause. A tensor that goes through a sequence is cut as between stages: nothing is
fused across it, it is stored as it is declared, and only a declaration says its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from dnnp.core.model.errors import DnnpError
from dnnp.core.runtime.report.verify import Case, Tolerance, compare_values
from dnnp.core.runtime.values import Values, to_numpy

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    from dnnp.core.runtime.pipeline.steps import Call
    from dnnp.formats.onnx.stages import StageModel

_NAMED = 4
"""Tensors that a message names."""
_NORMALISING = ("LayerNormalization", "SimplifiedLayerNormalization", "ReduceMean")
"""Operators that read the sum before a layer normalisation, whole or in parts."""
_SUM = "a cut at the sum before LayerNormalization, which if fused adds in another order"
_HALF = "rounding to 16 bits where tensors cross stages, within which CPUs compute in 32"
_FUSED = "cuts through what ONNX Runtime fuses in the whole model"
_SIZES = "sizes that only stages, or only the whole model, know: they decide what becomes Gemm"


def cause_of(
    case: Case,
    model: ModelProto,
    parts: Sequence[StageModel],
    crossing: Values,
    opened: Callable[[ModelProto], Call],
) -> str:
    """Find what makes a sample's outputs other ones; empty: nothing that is known does.

    `crossing` are the sample's tensors between stages; `opened` makes a session for a model.
    """
    from onnx import helper

    inputs = {v.name: v.type for part in parts for v in part.model.graph.input}
    types = {n: inputs[n] for part in parts for n, i in part.sources.items() if i >= 0}
    sized = {
        n: helper.make_tensor_type_proto(kind.tensor_type.elem_type, crossing[n].shape)
        for n, kind in types.items()
    }

    def makes(variant: ModelProto, expected: Values) -> bool:
        """Test whether a model makes these bits."""
        with suppress(DnnpError):
            made, exact = opened(variant)(dict(case.sample)), Tolerance(0.0, 0.0)
            pairs = ((value, to_numpy(made[name])) for name, value in expected.items())
            return not any(compare_values(*pair, exact).fault for pair in pairs)
        return False

    def because_of(words: str, names: Collection[str]) -> str:
        """The cause in words, if cuts of these tensors alone make the same bits."""
        some = {name: kind for name, kind in types.items() if name in names}
        shown = ", ".join(f"'{name}'" for name in [*some][:_NAMED])
        dots = ", ..." * (len(some) > _NAMED)
        same = some and makes(_cut(model, parts, some), case.got)
        return f"{words} ({shown}{dots})" if same else ""

    normal = {n for v in model.graph.node if v.op_type in _NORMALISING for n in v.input[:1]}
    sums = {n for v in model.graph.node if v.op_type == "Add" for n in v.output} & normal
    halves = {n for n, kind in types.items() if kind.tensor_type.elem_type in (10, 16)}
    if cause := because_of(_SUM, sums) or because_of(_HALF, halves):
        return cause
    if makes(_cut(model, (), types), case.got):
        return _SIZES
    cause = because_of(_FUSED, types)
    return _SIZES if cause and makes(_cut(model, parts, sized), case.expected) else cause


def _cut(
    model: ModelProto, parts: Sequence[StageModel], types: Mapping[str, TypeProto]
) -> ModelProto:
    """Cut tensors on their way to stages, and declare their types; no stages: declare alone."""
    from onnx import helper

    from dnnp.formats.onnx.scope import nested_nodes

    result = type(model)()
    result.CopyFrom(model)
    graph = result.graph
    for part in parts:
        cut = {n: f"{n}~cut" for n, i in part.sources.items() if i >= 0 and n in types}
        for node in nested_nodes(graph.node[v] for v in part.nodes):
            node.input[:] = [cut.get(name, name) for name in node.input]
    stated = {value.name for value in (*graph.value_info, *graph.output)}
    for name, kind in types.items():
        if not parts and name not in stated:
            graph.value_info.add(name=name, type=kind)
        elif parts:
            empty, held, after = (f"{name}~{end}" for end in ("empty", "held", "cut"))
            graph.value_info.add(name=after, type=kind)
            dtype = kind.tensor_type.elem_type
            graph.node.append(helper.make_node("SequenceEmpty", [], [empty], dtype=dtype))
            graph.node.append(helper.make_node("SequenceInsert", [empty, name], [held]))
            graph.node.append(helper.make_node("SequenceAt", [held, "~0"], [after]))
    graph.initializer.append(helper.make_tensor("~0", 7, [], [0]))
    return result
