"""Shapes by one real run, with every value that is still unknown as an output."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnp.core.model.processors import available_cores
from dnnp.core.runtime.inputs import random_inputs
from dnnp.core.runtime.limits import making_session, watched
from dnnp.core.runtime.session import SessionConfig, make_session
from dnnp.core.runtime.stages import CpuStage
from dnnp.core.runtime.values import to_numpy
from dnnp.formats.onnx_sizes import ValueType, bytes_of

if TYPE_CHECKING:
    from onnx import ModelProto

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
