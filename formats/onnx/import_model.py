"""Any ONNX model as a stream: tensors, operators, sizes, work.

Sizes of free dimensions that do not fit the operators are refused (`misfit`): shape inference omits
contradictory shapes without an error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import onnx

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import attribute_bytes
from dnnp.core.model.text import called, counted, scope_of_name
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.header import new_header
from dnnp.formats.onnx import value_types
from dnnp.formats.onnx.dims import MAX_DIMENSION, Dimensions, Sizes, bind_inputs, by_axis, shapes_of
from dnnp.formats.onnx.fixed_inputs import fix_inputs, keep_outputs
from dnnp.formats.onnx.guard import guarded
from dnnp.formats.onnx.load_model import load_with_hash
from dnnp.formats.onnx.padding import may_pad
from dnnp.formats.onnx.phases import cache_sizes, parse_phases, sizes_at
from dnnp.formats.onnx.read_graph import OnnxGraph, Operator, read_graph
from dnnp.formats.onnx.scope import Functions, domain_of, inner_nodes, stored_tensors, subgraphs
from dnnp.formats.onnx.shapes import (
    MOST_INLINED,
    STEPS,
    SearchStep,
    Shapes,
    find_shapes,
    inlined_size,
    light_model,
)
from dnnp.formats.onnx.states import axis_names, find_states
from dnnp.formats.onnx.value_types import (
    CONTAINERS,
    SUB_BYTE,
    UNKNOWN,
    ValueType,
    element_type,
    tensor_type,
)
from dnnp.formats.phases import check_positions, phase_record
from dnnp.formats.records import WITH_STATE
from dnnp.formats.stream import Record, Stream


class Work(NamedTuple):
    """Work of one execution of an operator, as the stream holds it."""

    flop: float | None
    """None: unknown."""
    bytes: float
    partial: bool = False
    """True if work is left out: operators of unknown work in bodies, trips of unknown number."""


class NodeCost(Protocol):
    """The price of a node."""

    @property
    def flop(self) -> float:
        """Floating-point operations."""

    @property
    def bytes(self) -> float:
        """Bytes read and written."""

    @property
    def known(self) -> bool:
        """True if `flop` means anything."""


ShapeOf = Callable[[str], "tuple[int, ...] | None"]
Price = Callable[[onnx.NodeProto, ShapeOf, Callable[[str], float], Callable[[str], int]], NodeCost]
"""(node, shape of a name, bytes of a name, element type of a name) -> cost."""
Pricer = Callable[[onnx.ModelProto], Price]
"""Defined by a module, since it is called in another process too."""


def price_operators(
    model: onnx.ModelProto,
    graph: OnnxGraph,
    dimensions: Dimensions,
    found: Shapes,
    pricer: Pricer,
) -> dict[int, Work]:
    """Work by node index; of operators that are alike, the first one's.

    Operators with bodies and local functions need shape inference for what is inside, which
    may crash; so they are priced in another process, all at once. If that fails they have
    unknown work.
    """
    types, alike = found.types, found.alike
    functions = {(domain_of(f.domain), f.name) for f in model.functions}
    composite = {
        operator.index
        for operator in graph.operators
        if operator.has_bodies
        or (functions and (domain_of(operator.proto.domain), operator.proto.op_type) in functions)
    }
    first = {i for i in alike.values() if i not in composite}
    plain = [operator for operator in graph.operators if operator.index in first]
    priced = _price_all(pricer(model), [operator.proto for operator in plain], types)
    works = {operator.index: work for operator, work in zip(plain, priced, strict=True)}
    works = {index: works[like] for index, like in alike.items() if like in works}
    if composite and inlined_size(model) <= MOST_INLINED:
        others = [operator for operator in graph.operators if operator.index in composite]
        light = light_model(model, replace(graph, operators=others), dimensions)
        used = {name for operator in others for name in (*operator.reads, *operator.writes)}
        near = {name: kind for name, kind in types.items() if name in used}
        apart = guarded(price_apart, pricer, light.SerializeToString(), len(others), near)
        for operator, work in zip(others, apart or [], strict=False):
            works[operator.index] = work
    return works


def price_apart(
    pricer: Pricer, data: bytes, count: int, types: Mapping[str, ValueType]
) -> list[Work]:
    """Price the last `count` nodes of a serialised model."""
    model = onnx.ModelProto.FromString(data)
    return _price_all(pricer(model), model.graph.node[-count:], types)


def _price_all(
    price: Price, nodes: Sequence[onnx.NodeProto], types: Mapping[str, ValueType]
) -> list[Work]:
    shapes = {name: kind.shape for name, kind in types.items()}
    sizes = {name: kind.size_bytes or 0 for name, kind in types.items()}

    def bytes_of(name: str) -> float:
        return sizes.get(name, 0)

    def dtype_of(name: str) -> int:
        return element_type(types.get(name, UNKNOWN).dtype)

    work: list[Work] = []
    for node in nodes:
        cost = price(node, shapes.get, bytes_of, dtype_of)
        told = cost.known or cost.flop > 0
        flop = _number(cost.flop) if told else None
        work.append(Work(flop, _number(cost.bytes), told and not cost.known))
    return work


def _number(value: float) -> float:
    """A count as the stream holds it: an integer where it is exact, never above its limit."""
    if not isfinite(value) or value > MAX_NUMBER:
        return MAX_NUMBER
    return int(value) if value <= MAX_DIMENSION and value == int(value) else float(value)


OLDEST_OPSET, NEWEST_OPSET = 7, 26
"""Operator sets of the default domain that ONNX Runtime runs and shape inference covers."""

_MAKES_SEQUENCE = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap",
     "SplitToSequence"}
)  # fmt: skip


HELD = 1024
"""Bytes of lists and tensors in a node's attributes from which on they count as weights."""
ATTRIBUTES = ":attributes"
"""Suffix of the names of such weights."""

RunStep = Callable[
    [onnx.ModelProto, Sequence[str], Mapping[str, Sequence[int]], Path, Mapping[str, Any] | None],
    tuple[dict[str, ValueType], str],
]
"""(model with fixed inputs, names wanted, shapes known, its folder, its inputs or None) -> types,
and why it did not run."""


class Helpers(NamedTuple):
    """Functions from outside this package: pricing, steps of the shape chain, inputs for a run."""

    pricer: Pricer | None = None
    symbolic: SearchStep | None = None
    run: RunStep | None = None
    read_inputs: Callable[[onnx.ModelProto], Mapping[str, Any]] | None = None
    lacking: Callable[[onnx.ModelProto, Mapping[str, ValueType]], list[str]] = lambda m, types: []
    """Lines on operators that cannot be run here."""
    told: Callable[[float], None] = lambda share: None
    """Told the share of the work that is done, by what it takes for a large model."""


NO_HELPERS = Helpers()


def import_onnx(
    path: str,
    dims: Sizes | None = None,
    shapes: str = "symbolic",
    name: str | None = None,
    helpers: Helpers = NO_HELPERS,
    values: Mapping[str, str] | None = None,
    outputs: Sequence[str] = (),
    states: Mapping[str, str] | None = MappingProxyType({}),
    phases: Sequence[str] = (),
) -> Stream:
    """Read an ONNX model. Its weights are never loaded and need not exist.

    Parameters
    ----------
    path
        The `.onnx` file.
    dims
        Sizes of free input dimensions, by name or as `INPUT:AXIS`, and shapes of inputs.
    shapes
        Last step of the shape chain that is allowed, one of `onnx_shapes.STEPS`; `auto`: a run
        too, by a helper that looks whether the model is small.
    name
        Model name for the header; the file's name without it.
    values
        Inputs that have a fixed value; branches that follow from it are inlined.
    outputs
        Those to keep, with what they need; none: all.
    states
        Input -> output that carry state from pass to pass, besides those that are recognised;
        None: nothing does.
    phases
        Passes over prompts and tokens to price, as `parse_phases` reads them.

    Returns
    -------
    Stream
        Its `warnings` are for the user.

    Raises
    ------
    InputFileError
        The file cannot be read, or, with `run`, ONNX Runtime cannot run the model.
    UsageError
        A free dimension without a size, a size for none, or one that does not fit the model.
    FormatError
        Not a valid ONNX model.
    """
    if shapes not in (*STEPS, "auto"):
        raise UsageError(f"no way to find shapes is called '{shapes}'")
    model, digest = load_with_hash(path)
    try:
        if values:
            fix_inputs(model, values)
        kept, dropped = keep_outputs(model, outputs) if outputs else ([], "")
        points = parse_phases(phases)
        sizes = {**cache_sizes(model.graph, path), **by_axis(model.graph, dims or {})}
        bound = [sizes_at(model.graph, point, {**sizes, **own}) for point, own in points]
        copies = [_copy(model) for _ in bound[1:]]
        first = bound[0] if bound else sizes
        more = {**sizes, **points[0][1]} if points else {}
        padded = bool(points) and guarded(may_pad, model, more, inherited=True)
        stream = _import(model, digest, path, first, shapes, name, helpers, states)
        for point, _ in points:
            check_positions(stream, point.past + point.seq, f"--phase {point.name}")
        if points:
            stream.header["version"] = WITH_STATE
            stream.records["phase"] = [phase_record(points[0][0], 0, None)]
            for state in stream.get("state") if padded else ():
                state["padded"] = True
        for i, (copy, sizes) in enumerate(zip(copies, bound[1:], strict=True), 1):
            part = _import(copy, digest, path, sizes, shapes, name, helpers, states)
            stream.get("phase").append(phase_record(points[i][0], i, part))
        if values:
            stream.header["source"]["set_inputs"] = dict(values)
        if kept:
            stream.header["source"]["keep_outputs"] = kept
            stream.warnings.append(f"kept {', '.join(kept)}; dropped {dropped}")
        return stream
    except FormatError as error:
        raise error if error.file else FormatError(error.reason, path, None, error.field) from None


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _import(
    model: onnx.ModelProto,
    digest: str,
    path: str,
    dims: Mapping[str, int],
    last: str,
    name: str | None,
    helpers: Helpers,
    given: Mapping[str, str] | None,
) -> Stream:
    if model.functions:
        Functions(model)  # refuses recursion
    graph = read_graph(model)
    helpers.told(0.15)
    axes = axis_names([*model.graph.input, *model.graph.output])
    sample = None if helpers.read_inputs is None else helpers.read_inputs(model)
    dimensions = bind_inputs(model.graph, dims, graph.parameters, shapes_of(sample or {}), path)
    step = helpers.run
    shapes = find_shapes(
        model,
        graph,
        dimensions,
        STEPS[-1] if last == "auto" else last,
        helpers.symbolic,
        None if step is None else lambda m, w, known: step(m, w, known, Path(path).parent, sample),
    )
    helpers.told(0.7)
    types = shapes.types
    if dims:
        _check_sizes(graph, shapes, dims)
    ids, tensors = _tensor_records(graph, types, frozenset(shapes.missing))
    works: dict[int, Work] = {}
    if helpers.pricer is not None:
        works = price_operators(model, graph, dimensions, shapes, helpers.pricer)
    colors = _colors(graph, types)
    states, doubts = find_states(graph, types, axes, given)
    for state in states:
        state |= {"input": ids[state["input"]], "output": ids[state["output"]]}
    header = new_header("onnx", path, digest, name, "s")
    if states:
        header["version"] = WITH_STATE
    if shapes.ran:
        header["source"]["ran"] = True
    stream = Stream(header=header, name=path)
    stream.warnings = _warnings(model, graph, shapes, last, path)
    stream.warnings += [f"{path}: {line}" for line in (*doubts, *helpers.lacking(model, types))]
    del shapes, types
    nodes = _node_records(graph, ids, colors, works, tensors)
    stream.records = {"tensor": tensors, "node": nodes}
    if states:
        stream.records["state"] = states
    return stream


def _check_sizes(graph: OnnxGraph, found: Shapes, dims: Mapping[str, int]) -> None:
    """Refuse sizes of free dimensions with which the model cannot run, or has nothing to do.

    UsageError: an operator cannot take the shapes that follow, or all outputs are empty.
    """
    given = " ".join(f"--dim {name}={size}" for name, size in dims.items())
    types = found.types
    reason = misfit(graph, types, found.wrong)
    if reason is not None:
        raise UsageError(f"{given} does not fit the model: {reason}")
    shapes = [types.get(name, UNKNOWN).shape for name in graph.outputs]
    if 0 in dims.values() and all(shape is not None and 0 in shape for shape in shapes):
        raise UsageError(f"{given} leaves nothing to compute: every output is empty")


def _tensor_records(
    graph: OnnxGraph, types: Mapping[str, ValueType], unknown: frozenset[str]
) -> tuple[dict[str, int], list[Record]]:
    """Id of each name, and the records in order of id; `unknown`: names without a size."""
    kinds = dict.fromkeys(graph.inputs, "input")
    kinds.update(dict.fromkeys(graph.parameters, "parameter"))
    kinds.update(dict.fromkeys(graph.constants, "constant"))
    for operator in graph.operators:
        kinds.update(dict.fromkeys(operator.writes, "activation"))
    outputs = frozenset(graph.outputs)
    records: list[Record] = []
    for i, (name, kind) in enumerate(kinds.items()):
        dtype, shape, size = types.get(name, UNKNOWN)
        record: Record = {
            "type": "tensor",
            "id": i,
            "name": name,
            "kind": kind,
            "size_bytes": 0 if size is None else size,
        }
        if dtype is not None:
            record["dtype"] = dtype
        if shape is not None:
            record["shape"] = shape
        if name in unknown:
            record["size_unknown"] = True
        if name in outputs:
            record["output"] = True
        records.append(record)
    return {name: i for i, name in enumerate(kinds)}, records


def _node_records(
    graph: OnnxGraph,
    ids: Mapping[str, int],
    colors: Mapping[int, int],
    works: Mapping[int, Work],
    tensors: list[Record],
) -> list[Record]:
    """Records of the operators, which leave `graph`: both at once would need much memory.

    Weights that their attributes hold, as those of tree ensembles and bodies, become parameters
    in `tensors`.
    """
    records: list[Record] = []
    operators = graph.operators[::-1]
    graph.operators.clear()
    while operators:
        operator = operators.pop()
        proto = operator.proto
        op, name, domain = sys.intern(proto.op_type), proto.name, domain_of(proto.domain)
        record: Record = {
            "type": "node",
            "id": operator.index,
            "name": called(op, name, operator.writes),
            "op": op,
        }
        if domain:
            record["domain"] = domain
        record["inputs"] = [ids[name] for name in operator.reads]
        record["outputs"] = [ids[name] for name in operator.writes]
        if operator.captures:
            record["captures"] = [ids[name] for name in operator.captures]
        if operator.index in works:
            flop, moved, partial = works[operator.index]
            if flop is not None:
                record["flop"] = flop
            record["bytes"] = moved
            if partial:
                record["partial"] = True
        if operator.index in colors:
            record["color"] = colors[operator.index]
        scope = node_scope(proto, name or next(iter(operator.writes), ""))
        if scope:
            record["scope"] = scope
        held = _held_bytes(operator) if operator.writes and proto.attribute else 0
        if held >= HELD:
            record["inputs"].append(len(tensors))
            weight: Record = {"type": "tensor", "id": len(tensors), "kind": "parameter"}
            weight |= {"name": operator.writes[0] + ATTRIBUTES, "size_bytes": held}
            tensors.append({**weight, "dtype": "uint8", "shape": (held,)})
        records.append(record)
    return records


def _held_bytes(operator: Operator) -> int:
    """Bytes of the weights in the attributes of an operator, and in those of its bodies."""
    if not operator.has_bodies:
        return attribute_bytes(operator.proto)
    bodies = (t for body in subgraphs(operator.proto) for t in stored_tensors(body))
    return sum(_stored_bytes(tensor) for tensor in bodies)


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a stored tensor by its type and shape; strings count nothing."""
    try:
        size = tensor_type(tensor.data_type, tuple(tensor.dims)).size_bytes
    except FormatError:
        return 0
    return int(size or 0)


def node_scope(node: onnx.NodeProto, name: str) -> str:
    """Name scope: from the metadata that PyTorch's exporter writes, else from the path of a name.

    `transformer.h.0` inside `transformer` reads `/transformer/h.0`.
    """
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            return _path_of(_listed(entry.value))
        if entry.key == "namespace":
            return _path_of([part.partition(":")[0].strip() for part in entry.value.split("/")])
    return scope_of_name(name)


def _listed(text: str) -> list[str]:
    """Names of a list as Python writes it; empty: it is none."""
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []


def _path_of(names: Sequence[str]) -> str:
    """Path from names of modules, outermost first; the node's own name comes last."""
    path, outer = "", ""
    for name in filter(None, names[:-1]):
        inside = outer and name.startswith(f"{outer}.")
        path += "/" + (name[len(outer) + 1 :] if inside else name)
        outer = name
    return path


def _colors(graph: OnnxGraph, types: Mapping[str, ValueType]) -> dict[int, int]:
    """Node index -> colour, for nodes joined by values that cannot pass between sessions.

    These are sequences, optionals, maps and elements of less than a byte, and weights made of
    these; colours count up in node order.
    """
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    boxed = {name for name, kind in types.items() if kind.dtype in CONTAINERS}
    fixed = {*graph.parameters, *graph.constants}
    for operator in graph.operators:
        small = [n for n in operator.writes if types.get(n, UNKNOWN).dtype in SUB_BYTE]
        boxed.update(small)
        if operator.reads and fixed.issuperset(operator.reads):
            # Weights that are computed need their reader beside them to be folded into it.
            fixed.update(operator.writes)
            boxed.update(operator.writes if not boxed.isdisjoint(operator.reads) else ())
    first: dict[str, int] = {}
    for operator in graph.operators:
        _spread(operator, types, boxed)
        for name in (*operator.reads, *operator.writes) if boxed else ():
            if name in boxed:
                parent.setdefault(operator.index, operator.index)
                ends = root(first.setdefault(name, operator.index)), root(operator.index)
                parent[max(ends)] = min(ends)
    numbers: dict[int, int] = {}
    return {i: numbers.setdefault(root(i), len(numbers)) for i in sorted(parent)}


def _spread(operator: Operator, types: Mapping[str, ValueType], boxed: set[str]) -> None:
    """Add to `boxed` what an operator makes a sequence or optional, where no type says it."""
    op = operator.proto.op_type
    if op in _MAKES_SEQUENCE or op == "Optional" or (op == "Identity" and boxed):
        if op == "Identity" and boxed.isdisjoint(operator.reads):
            return
        untyped = (None, *CONTAINERS)
        boxed.update(n for n in operator.writes if types.get(n, UNKNOWN).dtype in untyped)


def _warnings(
    model: onnx.ModelProto, graph: OnnxGraph, shapes: Shapes, last: str, path: str
) -> list[str]:
    found: list[str] = []
    opsets = [entry.version for entry in model.opset_import if domain_of(entry.domain) == ""]
    for version in opsets[:1] or ([1] if model.ir_version < 3 else []):
        if not OLDEST_OPSET <= version <= NEWEST_OPSET:
            limits = f"{OLDEST_OPSET} to {NEWEST_OPSET}"
            found.append(f"{path}: operator set {version}; ONNX Runtime runs {limits}")
    if not graph.sorted:
        found.append(f"{path}: the nodes are not in topological order; they are sorted here")
    found += [f"{path}: {reason}" for reason in _within(graph)]
    found += [f"{path}: the '{step}' step of finding shapes crashed" for step in shapes.crashes]
    if shapes.wrong:
        count, example = len(shapes.wrong), next(iter(shapes.wrong))
        found.append(
            f"{path}: {count} tensor{'s' * (count > 1)} of another shape or type than the model "
            f"declares, such as '{example}'; what is inferred counts"
        )
    sized, ranked = value_types.shaped_by_values(model) if shapes.ran else (set[str](), set[str]())
    if some := [name for name in shapes.types if name in (ranked or sized)]:
        what = "rank" if ranked else "shape"
        found.append(
            f"{path}: the {what} of {counted(len(some), 'tensor')} may depend on values of inputs, "
            f"such as that of '{some[0]}': counted as in one run"
        )
    if shapes.missing:
        count, example = len(shapes.missing), shapes.missing[0]
        advice = "" if last == "run" else "; --shapes run finds more, by running the model once"
        if shapes.reason:
            advice = f"; the model was not run: {shapes.reason}"
            if last == "auto":
                advice += "; --shapes run, --inputs or --dim may help"
        found.append(
            f"{path}: {count} tensor{'s' * (count > 1)} of unknown size, counted as 0 bytes, "
            f"such as '{example}'{advice}"
        )
    return found


MOST_WITHIN, LEAST_WITHIN = 0.5, 16
"""Least share and least number of all operators in the bodies of one for a warning about it."""


def _within(graph: OnnxGraph) -> list[str]:
    """Operators with most of the model in their bodies, which is not split."""
    inner = {o.index: sum(1 for _ in inner_nodes(o.proto)) for o in graph.operators if o.has_bodies}
    whole = len(graph.operators) + sum(inner.values())
    found: list[str] = []
    for o in graph.operators:
        if inner.get(o.index, 0) >= max(LEAST_WITHIN, MOST_WITHIN * whole):
            found.append(f"{o} holds {inner[o.index]} of {whole} operators and is not split")
            if o.proto.op_type == "If" and o.proto.input[0] in graph.inputs:
                found[-1] += f"; --set-input {o.proto.input[0]}=true or =false takes one branch"
    return found


Shape = tuple[int, ...]
Found = Mapping[str, ValueType]

_BROADCAST = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Where", "Max", "Min", "Sum", "Mean",
)  # fmt: skip
_SAME_ELEMENTS = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators whose output holds no other values than their first input."""


def misfit(graph: OnnxGraph, types: Found, declared: Found) -> str | None:
    """The operator that cannot take the shapes that it is given, and why; None if none is known.

    `declared` has what the model says of values where inference finds otherwise.
    """
    made = {name: operator for operator in graph.operators for name in operator.writes}
    for operator in graph.operators:
        proto = operator.proto
        if domain_of(proto.domain) != "":
            continue
        check = _CHECKS.get(proto.op_type)
        shapes = [types.get(name, UNKNOWN).shape for name in proto.input]
        said = {**types, **declared} if proto.op_type == "Slice" else types
        reason = None if check is None else check(proto, shapes, said)
        if reason is None and proto.op_type == "Gather":
            reason = _gathered(operator, made, types)
        if reason is not None:
            return f"{operator} {reason}"
    return None


def _broadcast(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    known = [shape for shape in shapes if shape is not None]
    for axis in range(1, max(map(len, known), default=0) + 1):
        if len({s[-axis] for s in known if len(s) >= axis} - {1}) > 1:
            return "cannot join tensors of the shapes " + " and ".join(str(list(s)) for s in known)
    return None


def _concat(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    axis = next((a.i for a in proto.attribute if a.name == "axis"), 1)
    known = [s for s in shapes if s and 0 not in s and -len(s) <= axis < len(s)]
    if len({s[:axis] + s[axis:][1:] for s in known}) > 1:
        return "cannot join tensors of the shapes " + " and ".join(str(list(s)) for s in known)
    return None


def _matmul(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    a, b = shapes[:2]
    if a and b and a[-1] != b[max(len(b) - 2, 0)]:
        return f"cannot multiply matrices of the shapes {list(a)} and {list(b)}"
    return None


def _conv(proto: onnx.NodeProto, shapes: list[Shape | None], _: Found) -> str | None:
    x, w = shapes[:2]
    groups = next((a.i for a in proto.attribute if a.name == "group"), 1)
    if x and w and len(x) > 1 and len(w) > 1 and x[1] != w[1] * groups:
        return f"takes {w[1] * groups} channels, not the {x[1]} of the shape {list(x)}"
    return None


def _slice(proto: onnx.NodeProto, shapes: list[Shape | None], types: Found) -> str | None:
    # What is declared counts: by itself a slice takes what there is.
    whole, part = shapes[0], types.get(proto.output[0], UNKNOWN).shape
    if whole is not None and part is not None and len(whole) == len(part):
        for size, taken in zip(whole, part, strict=True):
            if taken > size:
                return f"cannot take {taken} of the {size} that the shape {list(whole)} holds"
    return None


def _gathered(operator: Operator, made: Mapping[str, Operator], types: Found) -> str | None:
    """A table that is read at consecutive positions, at more of them than it has rows."""
    table = types.get(operator.proto.input[0], UNKNOWN).shape
    axis = next((a.i for a in operator.proto.attribute if a.name == "axis"), 0)
    name = operator.proto.input[1]
    while name in made and made[name].proto.op_type in _SAME_ELEMENTS:
        name = made[name].proto.input[0]
    positions = types.get(name, UNKNOWN).shape
    if name not in made or made[name].proto.op_type != "Range" or not table or positions is None:
        return None
    if prod(positions) > table[axis]:
        return f"reads {prod(positions)} rows of a table that has {table[axis]}"
    return None


_CHECKS: dict[str, Callable[[onnx.NodeProto, list[Shape | None], Found], str | None]] = {
    **dict.fromkeys(_BROADCAST, _broadcast),
    "Concat": _concat,
    "MatMul": _matmul,
    "Conv": _conv,
    "Slice": _slice,
}
"""Operator -> what its inputs and outputs must fulfil."""
