"""Shapes that are not stated: by symbolic inference, and by running the model once."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, helper

from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime.limits import making_session, unwatch, watched
from dnnp.core.runtime.model.inputs import blaming, random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import CpuStage, make_session, to_numpy
from dnnp.formats.onnx.guard import guarded, less_memory
from dnnp.formats.onnx.scope import domain_of, held_tensors, reads, writes
from dnnp.formats.onnx.shapes import Types, is_fixed, join
from dnnp.formats.onnx.value_types import ValueType, bytes_of, element_type
from dnnp.formats.onnx.weights import external_fields

MOST_ROUNDS = 100
"""Passes over the model; each follows up on dimensions that the one before found equal."""

_LARGEST = 2**31 - 1
"""Integers from here on mean "to the end" in `Slice`."""

_UNRUNNABLE = re.compile(
    r"(?:implementation for |[\w.]+:|No Op registered for )([\w.]+)(?:\(| with domain_version)"
)
"""The operator in ONNX Runtime's message about an unknown or unsupported one."""


def symbolic_shapes(
    model: onnx.ModelProto, known: Types, wanted: Sequence[str]
) -> tuple[onnx.ModelProto, Types]:
    """The model, and types of values; those that depend on data keep free dimensions.

    ONNX Runtime infers twice: when it loads a model, and in its symbolic tool for what is missing
    then. What it loads it also runs, so that its rank holds where another inference differs.

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
    types = dict(known)
    for name, proto in _loaded_types(model, known, wanted).items():
        ranks = {_rank(types[name]), _rank(proto)} - {None} if name in types else ()
        if len(ranks) == 2:
            del types[name]
        join(types, {name: proto})
    if not all(is_fixed(types.get(name)) for name in wanted):
        join(types, _symbolic_types(model, types, wanted))
    return model, types


def _rank(proto: onnx.TypeProto) -> int | None:
    tensor = proto.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _loaded_types(model: onnx.ModelProto, known: Types, wanted: Sequence[str]) -> Types:
    """Types that ONNX Runtime infers when it loads a model, for all its domains."""
    config = SessionConfig(optimization="disable", pin=False)
    local: set[str] = set()
    while True:
        part = _reduced(model, known, wanted, set(), lambda node: node.op_type not in local)
        try:
            session = make_session(part, Path(), config)
        except InputFileError as error:
            # Its operator may be one of other devices: what follows from it is left out.
            match = _UNRUNNABLE.search(str(error))
            if match is None or match[1] in local:
                return {}
            local.add(match[1])
            continue
        break
    found: Types = {}
    for value in session.get_outputs():
        kind, _, name = value.type.removesuffix(")").partition("(")
        element = element_type(_ELEMENTS.get(name, name))
        if kind == "tensor" and element:
            # No sizes stand for a scalar, and for an unknown rank.
            sizes = [n if isinstance(n, int) else None for n in value.shape] or None
            found[value.name] = helper.make_tensor_type_proto(element, sizes)
    return found


def _symbolic_types(model: onnx.ModelProto, known: Types, wanted: Sequence[str]) -> Types:
    """Types by the runtime's symbolic inference, around operators that it fails on."""
    import logging

    from onnxruntime.tools import symbolic_shape_infer

    logger = logging.getLogger(symbolic_shape_infer.__name__)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    found: Types = {}
    blind: set[str] = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while True:
                search = _search_class()()
                part = _reduced(model, known, wanted, blind, partial(_familiar, search.dispatcher_))
                stopped_at = search.infer(part)
                found.update(search.types())
                if stopped_at is None or blind.issuperset(writes(stopped_at)):
                    break
                blind.update(writes(stopped_at))
    finally:
        logger.setLevel(level)
    return found


_SHARED_NAMES = frozenset({"Attention", "Gelu", "GroupNormalization", "RotaryEmbedding"})
"""Operators of two domains, of which the symbolic inference knows that of ONNX Runtime alone."""


def _familiar(handled: Mapping[str, object], node: onnx.NodeProto) -> bool:
    """True if the symbolic inference knows an operator: its domain is part of its name."""
    if domain_of(node.domain) == "":
        return node.op_type not in _SHARED_NAMES and onnx.defs.has(node.op_type)
    return node.op_type in handled and node.domain == "com.microsoft"


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
            """All types found."""
            return {name: value.type for name, value in self.known_vi_.items()}

    return ShapeSearch


def _reduced(
    model: onnx.ModelProto,
    known: Types,
    wanted: Sequence[str],
    blind: set[str],
    familiar: Callable[[onnx.NodeProto], bool],
) -> onnx.ModelProto:
    """Part of a model that an inference supports, with all wanted values as outputs.

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
    gone: set[str] = set()
    kept: set[str] = set()
    for node in graph.node:
        outputs = writes(node)
        able = bool(node.output) and familiar(node) and blind.isdisjoint(outputs)
        if able and gone.isdisjoint(reads(node)):
            target.node.append(node)
            kept.update(outputs)
            continue
        for name in outputs:
            if is_fixed(known.get(name)) and known[name].HasField("tensor_type"):
                target.input.add(name=name).type.CopyFrom(known[name])
            else:
                gone.add(name)
    target.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name in kept)
    return reduced


SEED = 0
"""Seed of the random inputs; data-dependent shapes depend on it."""

_ELEMENTS = {"float": "float32", "double": "float64"}


MOST_BYTES = 256 << 20
"""Largest weights of a model that is run by default, bytes."""
MOST_SECONDS = 20.0
MOST_MEMORY = 1 << 30
"""Most memory of such a run, bytes."""


def shapes_by_running(
    model: ModelProto,
    wanted: Sequence[str],
    known: Mapping[str, Sequence[int]],
    folder: Path,
    sample: Mapping[str, Any] | None = None,
) -> tuple[dict[str, ValueType], str]:
    """Run a model once and look at the values called `wanted`.

    Parameters
    ----------
    model
        With fixed inputs. Gets more outputs for the time of the call.
    known
        Shapes of other values, which say what inputs may be.
    folder
        Where its external data are; they must exist.
    sample
        Its inputs; None: random ones.

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
        config = SessionConfig("cpu", "disable", threads, pin=False, alone=True)
        with making_session("the model"):
            session = make_session(model, folder, config)
    finally:
        del outputs[before:]
    types = {value.name: value.type for value in session.get_outputs()}
    feeds = random_inputs(model, SEED, shapes=known) if sample is None else sample
    with watched("the run that shows the shapes"), blaming(feeds):
        values = CpuStage(session, tuple(wanted))(feeds)
    return {name: _type_of(types[name], value) for name, value in values.items()}, ""


def shapes_if_small(
    model: ModelProto,
    wanted: Sequence[str],
    known: Mapping[str, Sequence[int]],
    folder: Path,
    sample: Mapping[str, Any] | None = None,
) -> tuple[dict[str, ValueType], str]:
    """`shapes_by_running` in a process with limits, of a small model; else the reason why not."""
    held = 0.0
    for tensor in held_tensors(model):
        held += tensor.ByteSize()
        place = external_fields(tensor)
        if "location" in place:
            with suppress(OSError, ValueError):
                held += int(place.get("length") or os.path.getsize(folder / place["location"]))
    if held > MOST_BYTES:
        return {}, f"its weights take {shown_bytes(held)}, over {shown_bytes(MOST_BYTES)}"
    data = model.SerializeToString()
    found = guarded(run_apart, data, wanted, known, folder, sample, seconds=MOST_SECONDS)
    limits = f"{MOST_SECONDS:g} s, {shown_bytes(MOST_MEMORY)}"
    return ({}, f"it failed, or took more than is allowed ({limits})") if found is None else found


def run_apart(
    data: bytes,
    wanted: Sequence[str],
    known: Mapping[str, Sequence[int]],
    folder: Path,
    sample: Mapping[str, Any] | None,
) -> tuple[dict[str, ValueType], str]:
    """`shapes_by_running` for a process that may crash; the reason where it fails."""
    unwatch()
    model = onnx.ModelProto.FromString(data)
    try:
        with less_memory(MOST_MEMORY):
            return shapes_by_running(model, wanted, known, folder, sample)
    except (DnnpError, MemoryError) as error:
        return {}, str(error) or "too little memory"


def _type_of(declared: str, value: Any) -> ValueType:
    """Type and size of a value; `declared` as in `tensor(float)` or `seq(tensor(int64))`."""
    kind, _, element = declared.removesuffix(")").partition("(")
    if kind in ("tensor", "sparse_tensor"):
        dtype = _ELEMENTS.get(element, element)
        shape = tuple(int(size) for size in to_numpy(value).shape)
        return ValueType(dtype, shape, bytes_of(dtype, prod(shape)))
    inner = element.removeprefix("tensor(").rstrip(")")
    dtype = _ELEMENTS.get(inner, inner)
    size: float | None = None
    if element.startswith("map(") and isinstance(value, list):
        held = element.removeprefix("map(").removesuffix("))").replace(",tensor(", " ").split(" ")
        each = sum(bytes_of(_ELEMENTS.get(name, name), 1) for name in held)
        size = each * sum(map(len, value))
    elif kind != "map" and "(" not in inner:
        items = value if isinstance(value, list) else [] if value is None else [value]
        size = bytes_of(dtype, sum(prod(to_numpy(item).shape) for item in items))
    names = {"seq": "sequence"}
    return ValueType(names.get(kind, kind), None, size)
