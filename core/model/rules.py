"""Fusion rules: which operators a backend runs as one."""

from __future__ import annotations

from dataclasses import dataclass

ANY = "*"
"""Matches every operator."""


@dataclass(frozen=True)
class SequenceRule:
    """An ordered list of operators along single-consumer connections (Moirai, Table I)."""

    name: str
    ops: tuple[tuple[str, ...], ...]
    """Operators allowed at each place."""
    result: str
    """Operator that later rules see in place of the fused ones; empty: their names joined."""


@dataclass(frozen=True)
class Argument:
    """One input in a line of a pattern."""

    kind: str
    """`line` (output of an earlier line), `tensor` (any, named), or the kind of a constant:
    `weight` (any), `vector` (one dimension above 1), `scalar` (one element)."""
    name: str = ""
    line: int = -1
    repeated: bool = False
    """Stands for all remaining inputs."""


@dataclass(frozen=True)
class Line:
    """One operator of a pattern."""

    name: str
    ops: tuple[str, ...]
    arguments: tuple[Argument, ...]
    open: bool
    """Further inputs, of any kind, may follow."""
    shared: bool
    """Left outside the group when something else reads it too."""


@dataclass(frozen=True)
class Condition:
    """A condition on shapes. A shape that is not known meets nothing.

    `rank`: the tensor has `rank` dimensions. `shape`: two tensors have one shape.
    `swaps`: the operator exchanges the last two dimensions of its input.
    """

    kind: str
    names: tuple[str, ...]
    rank: int = 0


@dataclass(frozen=True)
class Pattern:
    """A small graph of operators with one exit, its last line."""

    name: str
    lines: tuple[Line, ...]
    conditions: tuple[Condition, ...]
    result: str


@dataclass(frozen=True)
class Absorb:
    """Operators that vanish into their neighbour, such as Identity."""

    name: str
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Fold:
    """Operators whose value is known before the model runs.

    That is so for `shape_ops`, which look at nothing but the shape of their input, and for
    every operator not in `excluded` that reads only constants and outputs of such operators.
    """

    name: str
    shape_ops: tuple[str, ...]
    excluded: tuple[str, ...]


Rule = SequenceRule | Pattern | Absorb | Fold


@dataclass(frozen=True)
class RuleSet:
    """The rules of one backend, in the order of their application."""

    name: str
    rules: tuple[Rule, ...]
    versions: tuple[str, ...] = ()
    """Versions of ONNX Runtime (`1.32`) that do this, by comparison; none: nothing is known."""
