"""Shapes that are not stated: by symbolic inference, and by running the model once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from dnnp.core.model.processes import available_cores
from dnnp.core.runtime.inputs import random_inputs
from dnnp.core.runtime.limits import making_session, watched
from dnnp.core.runtime.session import SessionConfig, make_session
from dnnp.core.runtime.stages import CpuStage
from dnnp.core.runtime.values import to_numpy
from dnnp.formats.onnx_scope import reads, writes
from dnnp.formats.onnx_sizes import ValueType, bytes_of

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_RETRIES = 16
"""Operators that the inference may fail on; each is then left out, with all that follows it."""

MOST_ROUNDS = 100
"""Passes over the model; each follows up on dimensions that the one before found equal."""

_LARGEST = 2**31 - 1
"""Integers from here on mean "to the end" in `Slice`."""


def symbolic_shapes(
    model: onnx.ModelProto, known: Mapping[str, onnx.TypeProto], wanted: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, onnx.TypeProto]]:
    """The model, and types of values; those that depend on data keep free dimensions.

    Parameters
    ----------
    model
        Sorted, with fixed inputs and without local functions. Large weights may be inputs.
    known
        Types found so far. An operator that the inference does not know is replaced by what
        is known of its outputs.
    wanted
        Names of the values to find.
    """
    import logging

    from onnxruntime.tools import symbolic_shape_infer

    logger = logging.getLogger(symbolic_shape_infer.__name__)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    found: dict[str, onnx.TypeProto] = {}
    blind: set[str] = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(MOST_RETRIES):
                search = _search_class()()
                candidate = _reduced(model, known, wanted, blind, search.dispatcher_)
                stopped_at = search.infer(candidate)
                found.update(search.types())
                if stopped_at is None:
                    break
                blind.update(writes(stopped_at))
    finally:
        logger.setLevel(level)
    return model, found


def _search_class() -> Any:
    """The runtime's inference, with a note of the operator it is at."""
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    class ShapeSearch(SymbolicShapeInference):
        def __init__(self) -> None:
            super().__init__(_LARGEST, auto_merge=True, guess_output_rank=False, verbose=0)
            self.current: onnx.NodeProto | None = None

        def _onnx_infer_single_node(self, node: onnx.NodeProto) -> None:
            self.current = node
            super()._onnx_infer_single_node(node)

        def infer(self, model: onnx.ModelProto) -> onnx.NodeProto | None:
            """Run to the end, or to the operator that is returned."""
            finished = False
            try:
                self._preprocess(model)
                for _ in range(MOST_ROUNDS):
                    if not self.run_:
                        break
                    finished = self._infer_impl()
            except Exception:  # it raises Exception itself, and fails in many other ways
                finished = False
            return None if finished else self.current

        def types(self) -> dict[str, onnx.TypeProto]:
            """What it knows."""
            return {name: value.type for name, value in self.known_vi_.items()}

    return ShapeSearch


def _reduced(
    model: onnx.ModelProto,
    known: Mapping[str, onnx.TypeProto],
    wanted: Sequence[str],
    blind: set[str],
    handled: Mapping[str, object],
) -> onnx.ModelProto:
    """The part of a model that the inference can handle, with all wanted values as outputs.

    Operators that it does not know become inputs where their outputs have fixed types; where
    not, and for the outputs in `blind`, everything that follows is left out.
    """
    graph = model.graph
    reduced = onnx.ModelProto(ir_version=model.ir_version)
    reduced.opset_import.extend(model.opset_import)
    target = reduced.graph
    target.name = graph.name
    target.input.extend(graph.input)
    target.initializer.extend(graph.initializer)
    gone = set(blind)
    kept: set[str] = set()
    for node in graph.node:
        outputs = writes(node)
        familiar = node.op_type in handled or (
            node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type)
        )
        if not familiar and all(_fixed(known.get(name)) for name in outputs):
            for name in outputs:
                target.input.add(name=name).type.CopyFrom(known[name])
        elif not node.output or not familiar or not gone.isdisjoint((*reads(node), *outputs)):
            gone.update(outputs)
        else:
            target.node.append(node)
            kept.update(outputs)
    target.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name in kept)
    return reduced


def _fixed(proto: onnx.TypeProto | None) -> bool:
    """Whether a type is a tensor of fixed shape."""
    if proto is None or not proto.HasField("tensor_type"):
        return False
    tensor = proto.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


SEED = 0
"""Of the random inputs; shapes that depend on values depend on it."""

_ELEMENTS = {"float": "float32", "double": "float64"}


def shapes_by_running(
    model: ModelProto, folder: Path, wanted: Sequence[str]
) -> dict[str, ValueType]:
    """Run a model once on random inputs and look at the values called `wanted`.

    Parameters
    ----------
    model
        With fixed inputs. Gets more outputs for the time of the call.
    folder
        Where its external data are; they must exist.

    Raises
    ------
    InputFileError
        Weights are missing, or ONNX Runtime cannot load or run the model.
    UsageError
        An input of a type that cannot be drawn, such as a map.
    """
    outputs = model.graph.output
    before = len(outputs)
    present = {value.name for value in outputs}
    for name in wanted:
        if name not in present:
            outputs.add(name=name)
    try:
        threads = len(available_cores())
        config = SessionConfig(optimization="disable", threads=threads, pin=False)
        with making_session("the model"):
            session = make_session(model, folder, config, alone=True)
    finally:
        del outputs[before:]
    types = {value.name: value.type for value in session.get_outputs()}
    feeds = random_inputs(model, SEED)
    with watched("the run that shows the shapes"):
        values = CpuStage(session, tuple(wanted))(feeds)
    return {name: _type_of(types[name], value) for name, value in values.items()}


def _type_of(declared: str, value: Any) -> ValueType:
    """Type and size of a value; `declared` as in `tensor(float)` or `seq(tensor(int64))`."""
    kind, _, element = declared.removesuffix(")").partition("(")
    if kind in ("tensor", "sparse_tensor"):
        dtype = _ELEMENTS.get(element, element)
        shape = tuple(int(size) for size in to_numpy(value).shape)
        return ValueType(dtype, shape, bytes_of(dtype, prod(shape)))
    inner = element.removeprefix("tensor(").rstrip(")")
    dtype = _ELEMENTS.get(inner, inner)
    size = None
    if kind != "map" and "(" not in inner:
        items = value if isinstance(value, list) else [] if value is None else [value]
        size = bytes_of(dtype, sum(prod(to_numpy(item).shape) for item in items))
    names = {"seq": "sequence"}
    return ValueType(names.get(kind, kind), None, size)
