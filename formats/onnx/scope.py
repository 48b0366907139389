"""Names in an ONNX graph: captures of subgraphs, functions called, tensors held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import onnx
from google.protobuf.message import Message

from dnnp.core.model.errors import FormatError

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a local function."""


UNREPEATABLE = frozenset((
    "Bernoulli", "BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Dropout", "Multinomial",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Sampling",
))  # fmt: skip
"""Operators that may draw numbers: what they make of the same inputs differs from run to run."""


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Bodies that a node holds: branches of `If`, bodies of `Loop` and `Scan`."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def captures(node: onnx.NodeProto) -> list[str]:
    """Names that the bodies of a node read from outside it, in order of first use.

    Nested bodies are included. A body sees its own inputs, initializers and node outputs
    first; what is left comes from the enclosing graph.
    """
    found: dict[str, None] = {}
    for body in subgraphs(node):
        local = {value.name for value in body.input}
        local.update(tensor.name for tensor in body.initializer)
        local.update(tensor.values.name for tensor in body.sparse_initializer)
        for inner in body.node:
            local.update(inner.output)
        used: list[str] = []
        for inner in body.node:
            used.extend(inner.input)
            used.extend(captures(inner))
        used.extend(value.name for value in body.output)
        found.update((name, None) for name in used if name and name not in local)
    return list(found)


def reads(node: onnx.NodeProto) -> list[str]:
    """Names a node reads, without repeats or empty names: its inputs, then its captures."""
    return list(dict.fromkeys(name for name in (*node.input, *captures(node)) if name))


def writes(node: onnx.NodeProto) -> list[str]:
    """Names a node writes, without the empty names of outputs left out."""
    return [name for name in node.output if name]


def nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and every node inside their bodies."""
    for node in nodes:
        yield node
        yield from inner_nodes(node)


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model, those of bodies and of local functions too."""
    yield from nested_nodes(model.graph.node)
    for function in model.functions:
        yield from nested_nodes(function.node)


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Nodes of the bodies of a node, at any depth."""
    for body in subgraphs(node):
        yield from nested_nodes(body.node)


def domain_of(name: str) -> str:
    """Operator domain with one spelling for the default one."""
    return "" if name == "ai.onnx" else name


def _key(domain: str, name: str, overload: str) -> FunctionKey:
    return domain_of(domain), name, overload


class Functions:
    """The local functions of a model.

    Raises
    ------
    FormatError
        A function calls itself, directly or through others.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
        self._calls = {key: self._called_in(f.node) for key, f in self._functions.items()}
        try:
            TopologicalSorter(self._calls).prepare()
        except CycleError as error:
            called = error.args[1][0]
            raise FormatError(f"the local function '{called[1]}' calls itself") from None

    def _called_in(self, nodes: Iterable[onnx.NodeProto]) -> list[FunctionKey]:
        keys = (_key(n.domain, n.op_type, n.overload) for n in nested_nodes(nodes))
        return list(dict.fromkeys(key for key in keys if key in self._functions))

    def needed_by(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
        """Functions that the nodes call, and those that these call, in the model's order."""
        pending = self._called_in(nodes) if self._functions else []
        needed = set(pending)
        while pending:
            for called in self._calls[pending.pop()]:
                if called not in needed:
                    needed.add(called)
                    pending.append(called)
        return [f for key, f in self._functions.items() if key in needed] if needed else []


def held_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in a model: initializers and attributes, bodies and functions too."""
    yield from stored_tensors(model.graph)
    for function in model.functions:
        for node in nested_nodes(function.node):
            yield from _attribute_tensors(node)


def stored_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Tensors that a graph stores: initializers and attributes, those of bodies too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _attribute_tensors(node)
        for body in subgraphs(node):
            yield from stored_tensors(body)


def _attribute_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def leave_only(held: Any, wanted: Callable[[Any], bool]) -> None:
    """Leave those parts of a repeated field that are wanted, in place."""
    left = [each for each in held if wanted(each)]
    del held[:]
    held.extend(left)


M = TypeVar("M", bound=Message)


def copy_fields(
    source: M, target: M, *, only: Collection[str] | None = None, without: Collection[str] = ()
) -> None:
    """Copy the fields that are set, all or `only` some, except those in `without`.

    Goes by what the message declares, so fields of newer ONNX versions travel too.
    """
    for descriptor, value in source.ListFields():
        name = descriptor.name
        if name in without or (only is not None and name not in only):
            continue
        if hasattr(value, "extend"):
            getattr(target, name).extend(value)
        elif isinstance(value, Message):
            getattr(target, name).CopyFrom(value)
        else:
            # Text that is not UTF-8 can be read, as bytes, but not written.
            wrong = isinstance(value, bytes) and descriptor.type == descriptor.TYPE_STRING
            setattr(target, name, value.decode(errors="replace") if wrong else value)
