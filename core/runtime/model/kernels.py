"""Find operators without a CPU kernel in the installed ONNX Runtime, before a run.

An operator has a kernel if ONNX Runtime makes a session of a model that holds it alone, with its
types; so Casts and functions that replace operators count as in a run. Only operators that may lack
a kernel are tried; without any ONNX Runtime is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from onnx import ModelProto, NodeProto, defs, helper

from dnnp.core.model.text import operator_name
from dnnp.core.runtime.model.providers import CPU, ort_errors, ort_version
from dnnp.formats.onnx.import_model import NEWEST_OPSET
from dnnp.formats.onnx.scope import Functions, domain_of, inner_nodes, nested_nodes
from dnnp.formats.onnx.value_types import UNKNOWN, ValueType, element_type

RARE = frozenset((
    "Bernoulli", "BitCast", "GlobalLpPool", "ImageDecoder", "MaxRoiPool", "Multinomial",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "RoiAlign", "Swish",
))  # fmt: skip
"""Operators of ONNX that version 1.32 does not run in every known operator set."""
USUAL = ("float32", "float16", "int32", "int64", "int8", "uint8", "bool", "string", None)
"""Element types for which what takes them has kernels."""
DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
SMALL = 64
"""Elements of a constant up to which it is tried as such: shapes may depend on it."""


def lacking_kernels(model: ModelProto, types: Mapping[str, ValueType]) -> list[str]:
    """Describe operators without a kernel, in a line each that names a node.

    `types` are the known ones; of a `RARE` operator an unknown type is taken for float32, or int64.
    Inside of bodies and functions only these are tried.
    """
    own = {(domain_of(f.domain), f.name) for f in model.functions}
    sets = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    tried: dict[tuple[object, ...], bool] = {}
    found: dict[str, list[str]] = {}
    inside = [n for node in model.graph.node if node.attribute for n in inner_nodes(node)]
    inside += nested_nodes(n for f in Functions(model).needed_by(model.graph.node) for n in f.node)
    inside = [n for n in inside if n.op_type in RARE and not n.domain]
    newer = sets.get("", 0) > NEWEST_OPSET
    any_odd = newer or any(kind.dtype not in USUAL for kind in types.values())
    for node in chain(model.graph.node, inside):
        domain, op = domain_of(node.domain), node.op_type
        if not any_odd and op not in RARE and domain in DOMAINS:
            continue
        names = [name for name in (*node.input, *node.output) if name]
        kinds = [types.get(name, UNKNOWN).dtype for name in names]
        odd = [kind for kind in kinds if kind not in USUAL]
        rare = odd or op in RARE or domain not in DOMAINS or newer
        if not rare or (domain, op) in own:
            continue
        key = domain, op, *kinds
        if key not in tried:
            tried[key] = _runs(
                node, model, {**_guessed(node, sets), **types} if op in RARE else types
            )
        if not tried[key]:
            name = f"{operator_name(op, domain)} of operator set {sets.get(domain, 1)}"
            name += f" with {odd[0]}" if odd else ""
            found.setdefault(name, []).append(node.name or node.output[0])
    return [
        f"ONNX Runtime {ort_version()} has no kernel on CPUs for {name}: node '{nodes[0]}'"
        + (f" and {len(nodes) - 1} more" if nodes[1:] else "")
        for name, nodes in found.items()
    ]


def _guessed(node: NodeProto, sets: Mapping[str, int]) -> dict[str, ValueType]:
    """Types that an operator of ONNX may read and make, float32 where that is one."""
    if node.domain or not defs.has(node.op_type, sets.get("", 1), ""):
        return {}
    schema = defs.get_schema(node.op_type, sets.get("", 1), "")
    formal = dict(zip(node.input, schema.inputs, strict=False))
    formal |= dict(zip(node.output, schema.outputs, strict=False))
    kinds = {n: "float32" if "tensor(float)" in one.types else "int64" for n, one in formal.items()}
    return {name: ValueType(kind, None, None) for name, kind in kinds.items()}


def _runs(node: NodeProto, model: ModelProto, types: Mapping[str, ValueType]) -> bool:
    """True if a session of a node alone can be made, or fails for another reason."""
    import onnxruntime

    given = {
        t.name: t for t in model.graph.initializer if 0 < len(t.dims) < 2 and sum(t.dims) < SMALL
    }
    reads = [name for name in dict.fromkeys(node.input) if name and name not in given]
    if any(not element_type(types.get(name, UNKNOWN).dtype) for name in reads):
        return True
    known = {name: types.get(name, UNKNOWN) for name in (*reads, *filter(None, node.output))}
    ends = {
        name: helper.make_tensor_value_info(name, element_type(kind.dtype), kind.shape)
        for name, kind in known.items()
    }
    graph = helper.make_graph(
        [node],
        "node",
        [ends[name] for name in reads],
        [ends[name] for name in node.output if name],
        [given[name] for name in dict.fromkeys(node.input) if name in given],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        onnxruntime.InferenceSession(alone.SerializeToString(), options, providers=[CPU])
    except ort_errors() as error:
        return not any(
            why in str(error) for why in ("NOT_IMPLEMENTED", "not a registered function")
        )
    return True
