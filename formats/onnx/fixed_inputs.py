"""Models of which some inputs have a fixed value, or only some outputs are wanted.

What follows from a value is folded, branches are inlined; what no output needs is dropped.

What exporters merge, such as a decoder with and without a cache, is one `If` on an input, and so
one node. With a value for that input its branch takes the place of the `If`, and what is left is a
plain graph. Every command that opens the model again does the same, from the values in the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import counted, instead
from dnnp.formats.onnx.scope import (
    copy_fields,
    domain_of,
    leave_only,
    nested_nodes,
    reads,
    subgraphs,
)
from dnnp.formats.onnx.value_types import require_type

SMALL = 64
"""Elements of the largest value that is folded."""
RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")

Value = np.ndarray[Any, Any]
Names = Mapping[str, str]
Types = dict[str, onnx.TypeProto]


def fix_inputs(model: onnx.ModelProto, values: Mapping[str, str]) -> None:
    """Give inputs a value for good, and simplify the main graph, in place.

    Raises
    ------
    UsageError
        No such input, or a value that it cannot have.
    """
    graph = model.graph
    known: dict[str, Value] = {}
    for name, text in values.items():
        info = next((i for i in graph.input if i.name == name), None)
        if info is None:
            there = ", ".join(i.name for i in graph.input)
            raise UsageError(f"--set-input {name}: no input of that name; there are {there}")
        known[name] = _value(info, text)
        graph.input.remove(info)
        graph.initializer.append(numpy_helper.from_array(known[name], name))
    held = _small(graph)
    taken = {n for node in graph.node for n in (*reads(node), *node.output)}
    taken.update(t.name for t in graph.initializer)
    done: list[onnx.NodeProto] = []
    opsets = {domain_of(o.domain): o.version for o in model.opset_import}
    waiting = list(reversed(graph.node))
    while waiting:
        node = waiting.pop()
        chosen = known.get(node.input[0]) if node.op_type == "If" and node.input else None
        if chosen is not None and domain_of(node.domain) == "":
            branch = "then_branch" if chosen.reshape(-1)[0] else "else_branch"
            body = next(a.g for a in node.attribute if a.name == branch)
            waiting += reversed(_inlined(body, node, graph, taken))
            held |= _small(graph)
        elif not _folded(node, known, held, opsets, graph):
            done.append(node)
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                held[node.output[0]] = node.attribute[0].t
    _keep(graph, done)


def keep_outputs(model: onnx.ModelProto, texts: Sequence[str]) -> tuple[list[str], str]:
    """Drop outputs that are not named, and what only they need, in place.

    Gives the outputs that are left, and what else was dropped, in words; names may stand between
    commas. UsageError: no such output.
    """
    graph = model.graph
    there = [value.name for value in graph.output]
    asked = {n for text in texts for n in ([text] if text in there else text.split(","))}
    for name in sorted(asked.difference(there)):
        raise UsageError(f"--keep-outputs {name}: no output of that name{instead(name, there)}")
    stored = {t.name for t in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in stored]
    nodes = len(graph.node)
    leave_only(graph.output, lambda value: value.name in asked)
    needed = _keep(graph, graph.node)
    leave_only(graph.input, lambda value: value.name in needed)
    gone = [counted(nodes - len(graph.node), "node"), counted(len(stored - needed), "initializer")]
    gone += [f"input {name}" for name in inputs if name not in needed]
    return [name for name in there if name in asked], ", ".join(gone)


def part_model(
    model: onnx.ModelProto, nodes: Iterable[int], outputs: Sequence[str], types: Types
) -> onnx.ModelProto:
    """One model of what outputs need of some nodes; what else these read are its inputs.

    Weights come along, and what follows from them alone. FormatError: an input without a type.
    """
    part, chosen = onnx.ModelProto(), set(nodes)
    part.CopyFrom(model)
    graph = part.graph
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    known, fixed = {v.name: v.type for v in model.graph.input} | types, {*stored}
    for v, node in enumerate(graph.node):
        draws = any(inner.op_type.startswith(RANDOM) for inner in nested_nodes([node]))
        if v not in chosen and not draws and fixed.issuperset(reads(node)):
            fixed.update(node.output)
            chosen.add(v)
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name, type=types.get(name)) for name in outputs)
    needed = _keep(graph, [graph.node[v] for v in sorted(chosen)])
    made = stored.union(*(node.output for node in graph.node))
    leave_only(graph.input, lambda value: value.name in stored & needed)
    for name in sorted(needed - made):
        graph.input.add(name=name, type=require_type(known, name))
    leave_only(graph.value_info, lambda value: value.name in made.difference(outputs))
    return part


def _small(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Initializers that are small enough to be folded."""
    return {t.name: t for t in graph.initializer if prod(t.dims) <= SMALL}


def _value(info: onnx.ValueInfoProto, text: str) -> Value:
    """The value of an input of one element, whose free dimensions count as 1."""
    tensor = info.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 1 for d in tensor.shape.dim]
    if not info.type.HasField("tensor_type") or prod(shape) != 1:
        raise UsageError(f"--set-input {info.name}: only an input of one element has a value")
    words = {"true": 1, "false": 0}
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    try:
        number = words[text.lower()] if text.lower() in words else float(text)
        value = np.full(shape, number).astype(dtype)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"--set-input {info.name}: {text!r} is no number, true or false") from None
    if value.dtype.kind in "iub" and float(value.reshape(-1)[0]) != number:
        raise UsageError(f"--set-input {info.name}: {text} is no {value.dtype}")
    return value


def _folded(
    node: onnx.NodeProto,
    known: dict[str, Value],
    held: Mapping[str, onnx.TensorProto],
    opsets: Mapping[str, int],
    graph: onnx.GraphProto,
) -> bool:
    """True if a node follows from fixed inputs; its outputs are initializers then."""
    inputs = [name for name in node.input if name]
    if known.keys().isdisjoint(inputs) or domain_of(node.domain) or any(subgraphs(node)):
        return False
    if node.op_type.startswith(RANDOM) or not {*known, *held}.issuperset(inputs):
        return False
    from onnx.reference import ReferenceEvaluator

    given = {n: known[n] if n in known else numpy_helper.to_array(held[n]) for n in inputs}
    infos = [onnx.ValueInfoProto(name=n) for n in given]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    alone = onnx.GraphProto(name="fold", node=[node], input=infos, output=outputs)
    opset = [onnx.helper.make_opsetid("", opsets.get("", 1))]
    whole = onnx.helper.make_model(alone, opset_imports=opset)
    try:
        made = ReferenceEvaluator(whole).run(None, given)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError):
        return False
    values = [np.asarray(value) for value in made]
    if any(value.size > SMALL or value.dtype == object for value in values):
        return False
    for info, value in zip(outputs, values, strict=True):
        known[info.name] = value
        graph.initializer.append(numpy_helper.from_array(value, info.name))
    return True


def _inlined(
    body: onnx.GraphProto, node: onnx.NodeProto, graph: onnx.GraphProto, taken: set[str]
) -> list[onnx.NodeProto]:
    """The nodes of a branch, whose results have the names of the node's; weights go to `graph`."""
    own = [t.name for t in body.initializer]
    own += [n for inner in body.node for n in inner.output if n]
    made = {n for inner in body.node for n in inner.output}
    names: dict[str, str] = {}
    copies: list[onnx.NodeProto] = []
    for inner, outer in zip(body.output, node.output, strict=True):
        if not outer:
            continue
        if inner.name in made and inner.name not in names:
            names[inner.name] = outer
        else:
            copies.append(onnx.helper.make_node("Identity", [inner.name], [outer], f"{outer}/copy"))
    for name in own:
        if name not in names:
            names[name] = name
            while names[name] in taken:
                names[name] = f"{node.output[0]}/{names[name]}"
            taken.add(names[name])
    for source, target in (
        (body.initializer, graph.initializer), (body.value_info, graph.value_info)
    ):  # fmt: skip
        for each in source:
            target.append(each)
            target[-1].name = names.get(each.name, each.name)
    graph.sparse_initializer.extend(body.sparse_initializer)
    return [_renamed(inner, names) for inner in (*body.node, *copies)]


def _renamed(node: onnx.NodeProto, names: Names) -> onnx.NodeProto:
    """A copy of a node, and of its bodies, with other names for tensors from outside."""
    copy = onnx.NodeProto()
    copy_fields(node, copy, without=("input", "output"))
    copy.input.extend(names.get(name, name) for name in node.input)
    copy.output.extend(names.get(name, name) for name in node.output)
    for body in subgraphs(copy):
        local = {v.name for v in body.input} | {t.name for t in body.initializer}
        local.update(name for inner in body.node for name in inner.output)
        outer = {name: other for name, other in names.items() if name not in local}
        inner = [_renamed(each, outer) for each in body.node]
        del body.node[:]
        body.node.extend(inner)
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return copy


def _keep(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Leave the nodes and initializers that outputs depend on, in any order; gives all names."""
    every = list(nodes)
    maker = {name: i for i, node in enumerate(every) for name in node.output if name}
    waiting = [value.name for value in graph.output]
    needed = {*waiting}
    kept: set[int] = set()
    while waiting:
        i = maker.get(waiting.pop(), -1)
        if i >= 0 and i not in kept:
            kept.add(i)
            more = [name for name in reads(every[i]) if name not in needed]
            needed.update(more)
            waiting += more
    del graph.node[:]
    graph.node.extend(every[i] for i in sorted(kept))
    leave_only(graph.initializer, lambda tensor: tensor.name in needed)
    leave_only(graph.sparse_initializer, lambda tensor: tensor.values.name in needed)
    return needed
