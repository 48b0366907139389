"""Shapes of every value of an ONNX graph: declared, inferred, inferred symbolically, or run.

Follow the small integer values that models compute shapes with, node by node. ONNX inference
carries such values through few operators. Here every operator whose inputs are known is evaluated,
so that a shape computed from fixed inputs comes out exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference
from numpy.typing import NDArray

from dnnp.formats.onnx.dims import Dimensions
from dnnp.formats.onnx.guard import guarded
from dnnp.formats.onnx.read_graph import OnnxGraph
from dnnp.formats.onnx.scope import copy_fields, domain_of, leave_only, nested_nodes, reads, writes
from dnnp.formats.onnx.shape_rules import Site, rule_types
from dnnp.formats.onnx.value_types import (
    FAILURES,
    SMALL,
    UNKNOWN,
    TypeReader,
    ValueType,
    inlined,
    is_long_vector,
)

Types = dict[str, onnx.TypeProto]

LIMIT = 1024
"""Elements of the largest value that is followed."""

_EVALUATED = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Concat",
        "ConstantOfShape", "CumSum", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather",
        "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less",
        "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range",
        "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round",
        "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
        "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip
"""Operators that shapes are computed with; none makes much of little, but see `_explodes`."""


def fold(light: onnx.ModelProto, types: Types) -> None:
    """Evaluate what can be, and infer what is still missing with the values at hand.

    Parameters
    ----------
    light
        Sorted model without large weights. Evaluated operators become initializers.
    types
        Types found so far; gets more.
    """
    walk = _Walk(light, types)
    kept = [node for node in light.graph.node if not walk.visit(node)]
    del light.graph.node[:]
    light.graph.node.extend(kept)
    light.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in walk.folded.items()
    )


def is_fixed(proto: onnx.TypeProto | None) -> bool:
    """True if inference can add nothing to a type: no tensor, or one of fixed shape."""
    if proto is None or proto.WhichOneof("value") is None:
        return False
    if not proto.HasField("tensor_type"):
        return True
    tensor = proto.tensor_type
    return (
        bool(tensor.elem_type)
        and tensor.HasField("shape")
        and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    )


class _Walk:
    """Values and types known at one place of a model."""

    def __init__(self, light: onnx.ModelProto, types: Types) -> None:
        self._light = light
        self._types = types
        self._values: dict[str, NDArray[Any]] = {}
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._opsets = {domain_of(entry.domain): entry.version for entry in light.opset_import}
        self.folded: dict[str, NDArray[Any]] = {}
        for value in light.graph.input:
            types.setdefault(value.name, value.type)
        for tensor in light.graph.initializer:
            self._store(tensor.name, tensor)

    def _store(self, name: str, tensor: onnx.TensorProto) -> None:
        """Note a stored tensor: its type, and its value if it is small."""
        self._types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if tensor.data_location == tensor.EXTERNAL or prod(tensor.dims) > LIMIT:
            return
        try:
            value = onnx.numpy_helper.to_array(tensor)
        except FAILURES:
            return
        if value.dtype.kind in "biuf":
            self._values[name] = value

    def visit(self, node: onnx.NodeProto) -> bool:
        """Look at the next node; True if it was evaluated and can be replaced."""
        outputs = writes(node)
        if node.op_type == "Constant" and not domain_of(node.domain):
            for attribute in node.attribute:
                if attribute.name == "value" and outputs:
                    self._store(outputs[0], attribute.t)
                elif attribute.name in ("value_int", "value_ints") and outputs:
                    held = attribute.ints if attribute.name == "value_ints" else attribute.i
                    self._values[outputs[0]] = np.array(held, dtype=np.int64)
        elif not domain_of(node.domain):
            results = self._evaluate(node)
            if results is not None and len(results) == len(node.output):
                self._keep(node.output, results)
                return True
        if not all(is_fixed(self._types.get(name)) for name in outputs):
            join(self._types, rule_types(Site(node, self._types)))
        if not all(is_fixed(self._types.get(name)) for name in outputs):
            self._infer(node, outputs)
        return False

    def _keep(self, names: Sequence[str], results: list[NDArray[Any]]) -> None:
        for name, value in zip(names, results, strict=True):
            if name:
                self._values[name] = self.folded[name] = value
                element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                self._types[name] = onnx.helper.make_tensor_type_proto(element, value.shape)

    def _evaluate(self, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
        """Outputs of a node whose inputs are known; None if they are not, or not small."""
        if node.op_type in ("Shape", "Size"):
            return self._measure(node)
        if node.op_type not in _EVALUATED or not node.input:
            return None
        feeds = {name: self._values[name] for name in node.input if name in self._values}
        if len(feeds) < len({name for name in node.input if name}):
            return None
        try:
            if _explodes(node, feeds):
                return None
            from onnx.reference import ReferenceEvaluator

            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(node, opsets=self._opsets).run(None, feeds)
        except FAILURES:
            return None
        if not isinstance(results, list):
            return None
        small = all(
            isinstance(v, np.ndarray | np.generic) and v.size <= LIMIT and v.dtype.kind in "biuf"
            for v in results
        )
        return [np.asarray(v) for v in results] if small else None

    def _measure(self, node: onnx.NodeProto) -> list[NDArray[Any]] | None:
        """Shape and Size of a tensor of fixed shape."""
        proto = self._types.get(node.input[0]) if node.input else None
        if proto is None or not proto.HasField("tensor_type") or not is_fixed(proto):
            return None
        shape = [dim.dim_value for dim in proto.tensor_type.shape.dim]
        if node.op_type == "Size":
            size = prod(shape)
            return [np.array(size, dtype=np.int64)] if size < 2**63 else None
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        part = shape[ends.get("start", 0) : ends.get("end", len(shape))]
        return [np.array(part, dtype=np.int64)]

    def _infer(self, node: onnx.NodeProto, outputs: Sequence[str]) -> None:
        """Types of one node's outputs, by ONNX inference on it alone."""
        model = onnx.ModelProto(ir_version=self._light.ir_version)
        model.opset_import.extend(self._light.opset_import)
        model.functions.extend(self._light.functions)
        graph = model.graph
        graph.name = "node"
        graph.node.append(node)
        for name in reads(node):
            if name in self._values:
                graph.initializer.append(self._tensor(name))
            elif name in self._types:
                graph.input.add(name=name).type.CopyFrom(self._types[name])
        try:
            inferred = onnx.shape_inference.infer_shapes(model).graph
        except FAILURES:
            return
        join(self._types, {v.name: v.type for v in inferred.value_info if v.name in outputs})

    def _tensor(self, name: str) -> onnx.TensorProto:
        if name not in self._tensors:
            self._tensors[name] = onnx.numpy_helper.from_array(self._values[name], name)
        return self._tensors[name]


def join(types: Types, more: Types) -> None:
    """Let `more` fill in what `types` leaves open; what contradicts it in rank or type is dropped.

    The types in `types` are not changed in place.
    """
    for name, proto in more.items():
        old = types.get(name)
        if old is None or old.WhichOneof("value") is None:
            types[name] = proto
            continue
        a, b = old.tensor_type, proto.tensor_type
        if is_fixed(old) or not (old.HasField("tensor_type") and proto.HasField("tensor_type")):
            continue
        if a.elem_type and b.elem_type and a.elem_type != b.elem_type:
            continue
        both = onnx.TypeProto()
        both.CopyFrom(old)
        both.tensor_type.elem_type = a.elem_type or b.elem_type
        if not a.HasField("shape"):
            if b.HasField("shape"):
                both.tensor_type.shape.CopyFrom(b.shape)
        elif b.HasField("shape") and len(a.shape.dim) == len(b.shape.dim):
            for ours, theirs in zip(both.tensor_type.shape.dim, b.shape.dim, strict=True):
                if not ours.HasField("dim_value") and theirs.HasField("dim_value"):
                    ours.dim_value = theirs.dim_value
        types[name] = both


def _explodes(node: onnx.NodeProto, feeds: dict[str, NDArray[Any]]) -> bool:
    """True if small inputs make a large output."""
    match node.op_type:
        case "ConstantOfShape":
            size = prod(int(n) for n in feeds[node.input[0]])
        case "Expand" | "Tile":
            size = feeds[node.input[0]].size * prod(int(n) for n in feeds[node.input[1]])
        case "Range":
            start, limit, delta = (float(feeds[name]) for name in node.input)
            size = int(abs((limit - start) / delta))
        case _:
            return False
    return not 0 <= size <= LIMIT


STEPS = ("value-info", "infer", "symbolic", "run")
"""Sources of shapes, in the order they are tried."""

MOST_INLINED = 1_000_000
"""Nodes after inlining local functions, above which inference is not tried."""

SearchStep = Callable[[onnx.ModelProto, Types, Sequence[str]], tuple[onnx.ModelProto, Types]]
"""(light model, types known, names wanted) -> (the model, simplified if possible; all types).
Defined by a module, since it is called in another process."""
RunStep = Callable[
    [onnx.ModelProto, Sequence[str], Mapping[str, Sequence[int]]], tuple[dict[str, ValueType], str]
]
"""(model with fixed inputs, names wanted, shapes known) -> types, and why it did not run."""

LARGEST_CHECKED = 20_000
"""Nodes above which what a model declares of all values is believed without inference."""


@dataclass
class Shapes:
    """Shapes and types known after the chain."""

    types: dict[str, ValueType]
    missing: list[str]
    """Names without a size."""
    crashes: list[str]
    """Steps that crashed: the model contradicts an operator's definition, or is too hard."""
    wrong: dict[str, ValueType]
    """Declared types of values for which inference finds another."""
    alike: dict[int, int]
    """Index of an operator -> that of the first one that is like it, as `alike` says."""
    ran: bool = False
    """True if some come from a run."""
    reason: str = ""
    """Reason that it did not run, if it was to."""


def find_shapes(
    model: onnx.ModelProto,
    graph: OnnxGraph,
    dimensions: Dimensions,
    last: str = "symbolic",
    symbolic: SearchStep | None = None,
    run: RunStep | None = None,
) -> Shapes:
    """Find types of all values of the main graph, with as few steps as will do.

    What the model declares is compared with what ONNX infers, which is right where they differ;
    where it declares everything, for the first of like operators alone. Then inferences take turns
    until none finds anything new.

    Parameters
    ----------
    model
        Its inputs are fixed already.
    last
        Last of `STEPS` that is allowed; those after it, and those not given, are left out.
    """
    reader = TypeReader(dimensions)
    declared = reader.read_all(model.graph.value_info)
    for name, kind in reader.read_all(model.graph.output).items():
        if not declared.get(name, UNKNOWN).settled:
            declared[name] = kind
    stale = {name: declared.pop(name) for name in doubtful_values(model, dimensions)}
    types = dict(declared)
    types.update(reader.read_all(model.graph.input))
    types.update(graph.constants)
    types.update((n, kind) for n, kind in graph.parameters.items() if kind.settled)
    names = _names_that_matter(graph)
    written = [name for operator in graph.operators for name in operator.writes]

    def open_names() -> list[str]:
        return [name for name in names if not types.get(name, UNKNOWN).settled]

    def fill(found: Types) -> None:
        for name in dict.fromkeys((*names, *written)):
            old = types.get(name, UNKNOWN)
            if not old.settled and name in found:
                new = reader.read_value(name, found[name])
                if new.settled or old.dtype is None:
                    types[name] = new

    allowed = STEPS[1 : STEPS.index(last) + 1]
    steps = {"infer": infer, "symbolic": symbolic}
    turns = deque((name, s) for name, s in steps.items() if s is not None and name in allowed)
    wrong: dict[str, ValueType] = {}
    crashes: list[str] = []
    light: onnx.ModelProto | None = None
    sized = all(types.get(n, UNKNOWN).size_bytes is not None for n in (*names, *written))
    first = alike(model, graph, types) if sized and not stale else {}
    if turns and (open_names() or len(graph.operators) <= LARGEST_CHECKED):
        if inlined_size(model) > MOST_INLINED:
            turns.clear()
        elif not (first and _is_confirmed(model, graph, dimensions, reader, types, first)):
            first = {}
            found, wrong = _infer_anew(model, graph, dimensions, declared, names)
            types.update(dict.fromkeys(wrong, UNKNOWN))
            fill(found)
            if open_names():
                light = light_model(model, graph, dimensions)
                del light.graph.value_info[:]
                for name, proto in found.items():
                    light.graph.value_info.add(name=name).type.CopyFrom(proto)
                for value in light.graph.output:
                    if value.name in wrong:
                        value.type.CopyFrom(found[value.name])
    idle, most = 0, 0 if light is None else _known(light, names)
    while light is not None and open_names() and idle < len(turns):
        name, step = turns.popleft()
        # Unread outputs are wanted as well: they are written and take memory all the same.
        wanted = dict.fromkeys((*open_names(), *written))
        still = [n for n in wanted if not types.get(n, UNKNOWN).settled]
        data = guarded(search_apart, step, light.SerializeToString(), still)
        if data is None:
            crashes.append(name)
            continue
        turns.append((name, step))
        light = onnx.ModelProto.FromString(data)
        says = _known(light, names)
        idle, most = (0, says) if says > most else (idle + 1, most)
        fill({value.name: value.type for value in light.graph.value_info})
    shapes = Shapes(types, [], crashes, wrong, {})
    _size_maps(graph, types)
    if "run" in allowed and run is not None:
        missing = [name for name in names if types.get(name, UNKNOWN).size_bytes is None]
        if missing:
            known = {n: kind.shape for n, kind in types.items() if kind.shape is not None}
            seen, shapes.reason = run(model, missing, known)
            types.update(seen)
            shapes.ran = bool(seen)
    for name, kind in stale.items():
        if not types.get(name, UNKNOWN).settled:
            types[name] = kind
    shapes.missing = [name for name in names if types.get(name, UNKNOWN).size_bytes is None]
    shapes.alike = first or alike(model, graph, types)
    return shapes


def alike(
    model: onnx.ModelProto, graph: OnnxGraph, types: Mapping[str, ValueType]
) -> dict[int, int]:
    """Index of each operator -> that of the first one of its type, attributes and tensor types.

    So the outputs of both have one type, and both have one price. They read the same small
    weights, if any; what has bodies, or reads a value twice, is like no other.
    """
    numbers: dict[ValueType, int] = {}
    objects = {id(kind): kind for kind in types.values()}  # a reader decodes equal types once
    number = {key: numbers.setdefault(kind, len(numbers)) for key, kind in objects.items()}
    kinds: dict[str, object] = {name: number[id(kind)] for name, kind in types.items()}
    small = [tensor.name for tensor in model.graph.initializer if _is_small(tensor)]
    small += [name for node in graph.weight_nodes for name in node.output]
    kinds.update(zip(small, small, strict=True))
    first: dict[tuple[object, ...], int] = {}
    found: dict[int, int] = {}
    for operator in graph.operators:
        node = operator.proto
        key: tuple[object, ...] = (operator.index,)
        reads, writes = operator.reads, operator.writes
        if (len(reads), len(writes)) == (len(node.input), len(node.output)):
            ends = map(kinds.get, (*reads, *writes))
            attributes = (attribute.SerializeToString() for attribute in node.attribute)
            key = (node.op_type, node.domain, node.overload, len(reads), *ends, *attributes)
        found[operator.index] = first.setdefault(key, operator.index)
    return found


def _is_confirmed(
    model: onnx.ModelProto,
    graph: OnnxGraph,
    dimensions: Dimensions,
    reader: TypeReader,
    types: Mapping[str, ValueType],
    first: Mapping[int, int],
) -> bool:
    """True if ONNX infers what operators write, of all alike the first, as it is declared."""
    chosen = [operator for operator in graph.operators if first[operator.index] == operator.index]
    light = light_model(model, replace(graph, operators=chosen), dimensions)
    made = dict.fromkeys(name for operator in chosen for name in operator.writes)
    leave_only(light.graph.value_info, lambda value: value.name not in made)
    for value in light.graph.output:
        value.ClearField("type")
    data = guarded(search_apart, infer, light.SerializeToString(), [*made])
    if data is None:
        return True
    found = {v.name: v.type for v in onnx.ModelProto.FromString(data).graph.value_info}
    return all(name in found and reader.read(found[name]) == types[name] for name in made)


def _known(light: onnx.ModelProto, names: Sequence[str]) -> int:
    """Knowledge in the types of values: element types, ranks and sizes, counted."""
    wanted, total = set(names), 0
    for value in light.graph.value_info:
        if value.name in wanted:
            tensor = value.type.tensor_type
            total += value.type.WhichOneof("value") is not None
            total += bool(tensor.elem_type) + tensor.HasField("shape")
            total += sum(dim.HasField("dim_value") for dim in tensor.shape.dim)
    return total


def _infer_anew(
    model: onnx.ModelProto,
    graph: OnnxGraph,
    dimensions: Dimensions,
    declared: Mapping[str, ValueType],
    wanted: Sequence[str],
) -> tuple[Types, dict[str, ValueType]]:
    """Infer types as if the model declared none, and find what it declares otherwise.

    What is inferred takes the place of what is declared, which fills in the rest.
    """
    values = onnx.GraphProto(value_info=model.graph.value_info, output=model.graph.output)
    _fix_declared(values, model, dimensions)
    kept = {value.name: value.type for value in (*values.output, *values.value_info)}
    found: Types = {}
    data = guarded(infer_bare, model, graph, dimensions, wanted, inherited=True)
    if data is not None:
        protos = [*map(onnx.TypeProto.FromString, data[0])]
        found = {name: protos[i] for name, i in data[1].items()}
    wrong = {
        name: declared[name]
        for name, proto in found.items()
        if name in declared and _differ(proto, kept[name], declared[name])
    }
    join(found, {name: proto for name, proto in kept.items() if name not in wrong})
    return found, wrong


def infer_bare(
    model: onnx.ModelProto, graph: OnnxGraph, dimensions: Dimensions, wanted: Sequence[str]
) -> tuple[list[bytes], dict[str, int]]:
    """Types that ONNX infers if a model declares none: the different ones, and an index by name."""
    light = light_model(model, graph, dimensions)
    del light.graph.value_info[:]
    for value in light.graph.output:
        value.ClearField("type")
    _, types = infer(light, {value.name: value.type for value in light.graph.output}, wanted)
    numbers: dict[bytes, int] = {}
    index = {n: numbers.setdefault(t.SerializeToString(), len(numbers)) for n, t in types.items()}
    return [*numbers], index


def _differ(inferred: onnx.TypeProto, declared: onnx.TypeProto, read: ValueType) -> bool:
    """True if a declared type has another element type, rank or size than is inferred."""
    a, b = inferred.tensor_type, declared.tensor_type
    if not (inferred.HasField("tensor_type") and declared.HasField("tensor_type")):
        return False
    if a.elem_type and b.elem_type and a.elem_type != b.elem_type:
        return True
    if not (a.HasField("shape") and b.HasField("shape")):
        return False
    if len(a.shape.dim) != len(b.shape.dim):
        return True
    return read.shape is not None and any(
        dim.HasField("dim_value") and dim.dim_value != size
        for dim, size in zip(a.shape.dim, read.shape, strict=True)
    )


def _size_maps(graph: OnnxGraph, types: dict[str, ValueType]) -> None:
    """Size lists of maps, which hold the numbers of the tables that they are made of."""
    for operator in graph.operators:
        proto = operator.proto
        if proto.op_type == "ZipMap" and proto.domain == "ai.onnx.ml" and proto.output:
            size = types.get(proto.input[0], UNKNOWN).size_bytes
            if types.get(proto.output[0], UNKNOWN).size_bytes is None:
                types[proto.output[0]] = ValueType("sequence", None, size)


def _names_that_matter(graph: OnnxGraph) -> list[str]:
    """Names that are read, without outputs such as the mask of Dropout that are not."""
    used = {name for operator in graph.operators for name in operator.reads}
    used.update(graph.outputs)
    made = [n for operator in graph.operators for n in operator.writes if n in used]
    return [*graph.inputs, *graph.parameters, *graph.constants, *made]


def doubtful_values(model: onnx.ModelProto, dimensions: Dimensions) -> list[str]:
    """Values declared with numbers only, though an input had free dimensions.

    Such declarations go stale when a dimension is made free after they were written; they
    count only where inference finds nothing.
    """
    if not dimensions.any_free:
        return []
    return list(
        dict.fromkeys(
            value.name
            for value in (*model.graph.value_info, *model.graph.output)
            if value.type.tensor_type.shape.dim
            and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        )
    )


def search_apart(step: SearchStep, data: bytes, wanted: Sequence[str]) -> bytes:
    """Take one step on a serialised model; puts all types found into its value_info."""
    model = onnx.ModelProto.FromString(data)
    types: Types = {v.name: v.type for v in (*model.graph.output, *model.graph.value_info)}
    model, types = step(model, types, wanted)
    values = [onnx.ValueInfoProto(name=name, type=proto) for name, proto in types.items()]
    del model.graph.value_info[:]
    model.graph.value_info.extend(values)
    return model.SerializeToString()


def light_model(
    model: onnx.ModelProto, graph: OnnxGraph, dimensions: Dimensions
) -> onnx.ModelProto:
    """A copy for inference: sorted, without large weights, with named dimensions filled in.

    Large weights become inputs, so the copy is small however large the model is. What no operator
    of `graph` reads or writes is left out.
    """
    near = {name for o in graph.operators for name in (*o.reads, *o.writes)} | {*graph.outputs}
    near |= {name for node in graph.weight_nodes for name in (*node.input, *node.output)}
    light = onnx.ModelProto()
    copy_fields(model, light, without=("graph", "training_info", "metadata_props"))
    # From IR version 4 on, initializers need not be inputs as well.
    light.ir_version = max(model.ir_version, 4)
    target = light.graph
    target.name = "graph"
    target.input.extend(v for v in model.graph.input if v.name not in graph.parameters)
    for tensor in model.graph.initializer:
        if tensor.name in near and _is_small(tensor):
            target.initializer.append(tensor)
        elif tensor.name in near:
            _declare(target, tensor.name, tensor.data_type, tensor.dims)
    for sparse in model.graph.sparse_initializer:
        _declare(target, sparse.values.name, sparse.values.data_type, sparse.dims)
    for node in graph.weight_nodes:
        held = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and held is not None and held.ByteSize() > SMALL:
            _declare(target, node.output[0], held.data_type, held.dims)
        else:
            target.node.append(node)
    for operator in graph.operators:
        target.node.append(operator.proto)
        if operator.proto.output and not operator.proto.output[0]:
            target.node[-1].output[0] = f"absent output of node {operator.index}"
    target.value_info.extend(v for v in model.graph.value_info if v.name in near)
    target.output.extend(model.graph.output)
    _fix_declared(target, model, dimensions)
    return light


def _fix_declared(values: onnx.GraphProto, model: onnx.ModelProto, dimensions: Dimensions) -> None:
    """Fill in named dimensions of declared types; what may be out of date loses its shape."""
    doubtful = set(doubtful_values(model, dimensions))
    for value in (*values.value_info, *values.output):
        if value.name in doubtful:
            value.type.tensor_type.ClearField("shape")
        elif value.type.tensor_type.HasField("shape"):
            dimensions.fix(value.type.tensor_type.shape)


def _is_small(tensor: onnx.TensorProto) -> bool:
    """True if inference is given the values of a weight."""
    return tensor.data_location != tensor.EXTERNAL and tensor.ByteSize() <= SMALL


def infer(
    light: onnx.ModelProto, types: Types, wanted: Sequence[str]
) -> tuple[onnx.ModelProto, Types]:
    """Types by ONNX shape inference; what it leaves open among `wanted`, by following values.

    Local functions are inlined first. Operators whose values come out are replaced by
    initializers.
    """
    light = inlined(light)
    types = dict(types)
    for with_values in (False, True):
        if with_values and any(is_long_vector(proto) for proto in types.values()):
            break
        try:
            graph = onnx.shape_inference.infer_shapes(light, data_prop=with_values).graph
        except FAILURES:
            break  # it gives up as a whole; single operators may still go well
        join(types, {v.name: v.type for v in (*graph.input, *graph.output, *graph.value_info)})
        if all(is_fixed(types.get(name)) for name in wanted):
            return light, types
    fold(light, types)
    return light, types


def inlined_size(model: onnx.ModelProto) -> float:
    """Number of nodes after inlining every call; functions must not call themselves."""
    functions = {(domain_of(f.domain), f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], float] = {}

    def size(nodes: Sequence[onnx.NodeProto]) -> float:
        total = 0.0
        for node in nested_nodes(nodes):
            key = (domain_of(node.domain), node.op_type, node.overload)
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node)
            total += sizes.get(key, 1)
        return total

    try:
        return size(model.graph.node) if functions else len(model.graph.node)
    except RecursionError:
        return float("inf")


def _declare(graph: onnx.GraphProto, name: str, elem_type: int, dims: Sequence[int]) -> None:
    graph.input.append(onnx.helper.make_tensor_value_info(name, elem_type, dims))
