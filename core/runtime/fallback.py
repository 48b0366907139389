"""Nodes that a provider leaves to the CPU, and which of them are no fallback.

ONNX Runtime records which provider each node was given when it divides the graph, right after the
basic optimisations. It does not record why. Nodes that compute shapes are kept on the CPU on
purpose, since a GPU would have to be waited for; they are told by what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

RECORD = "session.record_ep_graph_assignment_info"
"""Entry of a session's configuration that makes ONNX Runtime record it."""
CPU = "CPUExecutionProvider"
SMALL = 100
"""Elements of a constant up to which ONNX Runtime takes it for a part of a shape."""
WHOLE = frozenset({6, 7})
"""ONNX element types int32 and int64: those of shapes."""
_NAMED = 4
"""Nodes that a message names."""

Key = tuple[str, str]
"""Name and operator of a node."""


class Left(NamedTuple):
    """What a provider left to the CPU."""

    nodes: tuple[str, ...] = ()
    """Such as `MatMul 'a'`, without those that compute shapes."""
    of: int = 0
    """Nodes that ONNX Runtime divided among the providers."""
    shapes: int = 0
    """Nodes on the CPU that compute shapes."""

    def words(self, provider: str) -> str:
        """One line about it."""
        more = f" and {len(self.nodes) - _NAMED} more" if len(self.nodes) > _NAMED else ""
        return (
            f"provider '{provider}' leaves {len(self.nodes)} of {counted(self.of, 'node')} to the "
            f"CPU: {', '.join(self.nodes[:_NAMED])}{more}"
        )


def left_to_cpu(session: Any, model: Callable[[], ModelProto]) -> Left | None:
    """What the provider of a session left to the CPU.

    None: this version of ONNX Runtime does not tell. The session must have been made with
    `RECORD`; `model` gives its model, where that is needed.
    """
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    if tell is None:
        return None
    parts = [(part.ep_name, part.get_nodes()) for part in tell()]
    keys = [
        (str(node.name), str(node.op_type))
        for provider, nodes in parts
        if provider == CPU
        for node in nodes
    ]
    shapes = shape_nodes(model()) if keys else set()
    left = tuple(f"{op} '{name}'" if name else op for name, op in keys if (name, op) not in shapes)
    return Left(left, sum(len(nodes) for _, nodes in parts), len(keys) - len(left))


def note_provider(
    name: str,
    provider: str,
    session: Any,
    model: ModelProto,
    options: Iterable[str],
    note: Callable[[str], None],
) -> Left:
    """What a provider left to the CPU; notes about that, and options that it may not have taken.

    Parameters
    ----------
    name
        Of the stage, for the notes.
    provider
        Its short name.
    options
        Names of those that the provider was given.
    """
    if provider == "cpu":
        return Left()
    told = session.get_provider_options().items()
    taken = {key for own, values in told if own != CPU for key in values}
    unsaid = [option for option in options if option not in taken]
    if unsaid:
        note(f"{name}: provider '{provider}' does not say whether it took {', '.join(unsaid)}")
    left = left_to_cpu(session, lambda: model)
    if left is None:
        note(f"{name}: this onnxruntime does not tell what '{provider}' leaves to the CPU")
    elif left.nodes:
        note(f"{name}: {left.words(provider)}")
    return left or Left()


def shape_nodes(model: ModelProto) -> set[Key]:
    """Nodes that compute shapes.

    `Shape` and `Size`, and what reads nothing but their results, results of such nodes, small
    constants and inputs of the model that are whole numbers, and at least one of the first two.
    Nodes that share name and operator with one that is no such node are not among them.
    """
    from dnnp.formats.onnx_scope import reads, writes

    graph = model.graph
    plain = {v.name for v in graph.input if v.type.tensor_type.elem_type in WHOLE}
    plain |= {t.name for t in graph.initializer if _is_small(list(t.dims))}
    derived: set[str] = set()
    found: set[Key] = set()
    others: set[Key] = set()
    for node in graph.node:
        names = reads(node)
        if node.op_type in ("Shape", "Size") or (
            any(name in derived for name in names)
            and all(name in derived or name in plain for name in names)
        ):
            derived.update(writes(node))
            found.add((node.name, node.op_type))
            continue
        others.add((node.name, node.op_type))
        if node.op_type == "Constant" and _holds_little(node):
            plain.update(writes(node))
    return found - others


def _is_small(dims: list[int]) -> bool:
    size = 1
    for dim in dims:
        size *= dim
    return size <= SMALL


def _holds_little(constant: NodeProto) -> bool:
    """Whether a `Constant` node makes a small tensor."""
    return all(_is_small(list(a.t.dims)) for a in constant.attribute if a.name == "value")
