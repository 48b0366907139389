"""The inputs of a model that generates, by what they tell it, and the arrays of a pass.

Models are fed as exporters and onnxruntime-genai have it: ids, a mask over all tokens, positions;
or, where `GroupQueryAttention` reads them straight from the inputs, the length of each row and the
largest of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import FormatError

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

Array = NDArray[Any]

IDS, MASK, POSITIONS, LENGTHS, TOTAL = "ids", "mask", "positions", "lengths", "total"
STEPS, KEPT = "steps", "kept"

_NAMED = {
    "input_ids": IDS, "tokens": IDS, "attention_mask": MASK, "position_ids": POSITIONS,
    "seqlens_k": LENGTHS, "total_sequence_length": TOTAL, "total_seq_len": TOTAL,
    "cache_position": STEPS, "num_logits_to_keep": KEPT, "logits_to_keep": KEPT,
}  # fmt: skip
"""Name of an input -> what it tells the model."""

_RANKS = {IDS: 2, MASK: 2, POSITIONS: 2, STEPS: 1, KEPT: 0}
"""Rank of an input with a role; positions of rank 1 are steps."""

_SLOTS = {5: LENGTHS, 6: TOTAL}
"""Inputs of `GroupQueryAttention` that tell lengths."""


@dataclass(frozen=True)
class State:
    """A state of the model."""

    input: str
    output: str
    shape: tuple[int, ...]
    """Of one row; the axis of tokens, if there is one, has 0."""
    dtype: np.dtype[Any]
    rows_axis: int
    tokens_axis: int | None
    shared: bool
    """True if one buffer can be input and output."""
    padded: bool = False
    """True if a row may be padded at the left, where masks hide that."""

    def buffer(self, rows: int, tokens: int) -> Array:
        """Zeros for some rows of so many tokens."""
        shape = list(self.shape)
        shape[self.rows_axis] = rows
        if self.tokens_axis is not None:
            shape[self.tokens_axis] = tokens
        return np.zeros(shape, self.dtype)

    def side_by_side(self, parts: Sequence[tuple[Array, int, int]]) -> tuple[Array, list[int]]:
        """Rows as one array, and the padding of each at its left; `parts`: array, row, padding."""
        axes = (self.rows_axis, self.tokens_axis or 0), (0, 1)
        rows = [np.moveaxis(array, *axes)[row, padding:] for array, row, padding in parts]
        whole = self.buffer(len(rows), max(map(len, rows)))
        ends = np.moveaxis(whole, *axes)
        for end, row in zip(ends, rows, strict=True):
            end[len(end) - len(row) :] = row
        return whole, [ends.shape[1] - len(row) for row in rows]


@dataclass(frozen=True)
class Decoder:
    """A model that generates."""

    roles: Mapping[str, tuple[str, np.dtype[Any]]]
    """Input that is no state -> what it tells, and its type."""
    states: Sequence[State]
    logits: str
    """Output with a number for each word, of each position."""

    @cached_property
    def in_place(self) -> bool:
        """True if all states are one buffer, and passes of tokens are bound to it."""
        return self.by_row and all(state.shared for state in self.states)

    @cached_property
    def by_row(self) -> bool:
        """True if rows of different lengths can share a pass."""
        alike = any(role == STEPS for role, _ in self.roles.values())
        apart = all(s.shared for s in self.states) or all(s.padded for s in self.states)
        return bool(self.states) and not alike and apart

    def feeds(self, ids: Array, past: Array, room: int = 0) -> dict[str, Array]:
        """The inputs of a pass, states apart.

        Parameters
        ----------
        ids
            i64[rows, tokens].
        past
            i64[rows], tokens of each row before the pass.
        room
            Tokens that a mask is for, so that all passes have one shape; 0: those of the longest
            row, and others are padded at the left.
        """
        rows, count = ids.shape
        total = room or int(past.max()) + count
        found: dict[str, Array] = {}
        for name, (role, dtype) in self.roles.items():
            if role == IDS:
                found[name] = ids.astype(dtype)
            elif role == MASK:
                columns, lengths = np.arange(total)[None, :], (past + count)[:, None]
                seen = columns < lengths if room else columns >= total - lengths
                found[name] = seen.astype(dtype)
            elif role == POSITIONS:
                found[name] = (past[:, None] + np.arange(count)[None, :]).astype(dtype)
            elif role == STEPS:
                found[name] = (past[0] + np.arange(count)).astype(dtype)
            elif role == LENGTHS:
                found[name] = (past + count - 1).astype(dtype).reshape(rows)
            elif role == KEPT:
                found[name] = np.array(1, dtype)
            else:
                found[name] = np.array(max(total, 2) if count == 1 else total, dtype)
        return found

    def refresh(self, feeds: Mapping[str, Array], ids: Array, past: Array) -> None:
        """Write the next pass over tokens into the inputs of one of as many rows and positions."""
        for name, (role, _) in self.roles.items():
            if role == IDS:
                feeds[name][...] = ids
            elif role == MASK:
                np.less_equal(np.arange(feeds[name].shape[1]), past[:, None], out=feeds[name])
            elif role == POSITIONS:
                feeds[name][:, 0] = past
            elif role == LENGTHS:
                feeds[name][...] = past


def named_states(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """State records of a stream with the names of their tensors, and the shape of the input."""
    tensors = {tensor["id"]: tensor for tensor in records["tensor"]}
    return [
        {**s, **{end: tensors[s[end]]["name"] for end in ("input", "output")},
         "shape": tensors[s["input"]]["shape"]}
        for s in records.get("state", ())
    ]  # fmt: skip


def described(decoder: Decoder) -> dict[str, Any]:
    """The record of a decoder in a manifest."""
    states: list[dict[str, Any]] = []
    for state in decoder.states:
        row = {**vars(state), "shape": list(state.shape), "dtype": None}
        states.append({k: v for k, v in row.items() if v is not None and v is not False})
    roles = {name: role for name, (role, _) in decoder.roles.items()}
    return {"roles": roles, "logits": decoder.logits, "states": states}


def decoder_in(record: Mapping[str, Any], dtypes: Mapping[str, str]) -> Decoder:
    """The decoder that a manifest describes; `dtypes`: element type of each input."""
    states = [
        State(
            s["input"], s["output"], tuple(s["shape"]), np.dtype(dtypes[s["input"]]),
            s["rows_axis"], s.get("tokens_axis"), s.get("shared", False),
            s.get("padded", False),
        )
        for s in record["states"]
    ]  # fmt: skip
    roles = {name: (role, np.dtype(dtypes[name])) for name, role in record["roles"].items()}
    return Decoder(roles, states, record["logits"])


def decoder_of(model: ModelProto, records: Sequence[Mapping[str, Any]]) -> Decoder:
    """Recognise the inputs and outputs of a model.

    Parameters
    ----------
    records
        Its states, with the names of their tensors, and the shape of the input.

    FormatError: there are none, or an input or the logits are not recognised.
    """
    from onnx import helper

    from dnnp.formats.onnx.states import axis_names, state_axes

    if not records:
        raise FormatError("the model carries no state from pass to pass: nothing to generate with")
    ends = {record["input"] for record in records}
    axes = axis_names([*model.graph.input, *model.graph.output])
    stored = {tensor.name for tensor in model.graph.initializer}
    values = {v.name: v for v in model.graph.input if v.name not in stored}
    told = {
        node.input[at]: role
        for node in model.graph.node
        if node.op_type == "GroupQueryAttention"
        for at, role in _SLOTS.items()
        if len(node.input) > at
    }
    types = {
        name: np.dtype(helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
        for name, v in values.items()
    }
    roles = {
        name: (_fitting(value, told.get(name) or _NAMED.get(name)), types[name])
        for name, value in values.items()
        if name not in ends
    }
    if not any(role == IDS for role, _ in roles.values()):
        raise FormatError("the model has no input of ids, such as 'input_ids'")
    states = []
    for record in records:
        name = record["input"]
        rows_axis, tokens_axis = state_axes(name, record["output"], axes)
        shape = tuple(0 if i == tokens_axis else size for i, size in enumerate(record["shape"]))
        states.append(
            State(name, record["output"], shape, types[name], rows_axis or 0, tokens_axis,
                  bool(record.get("shared")) and tokens_axis is not None and not rows_axis,
                  bool(record.get("padded")) and None not in (rows_axis, tokens_axis))
        )  # fmt: skip
    return Decoder(roles, states, _logits(model, {record["output"] for record in records}))


def _fitting(value: ValueInfoProto, role: str | None) -> str:
    """The role of an input, which its axes fit."""
    if value.name == "use_cache_branch":
        reason = "import a merged decoder with --set-input use_cache_branch=true; give --chunk 1"
        raise FormatError(reason)
    if role is None:
        raise FormatError(f"generating does not know the input '{value.name}'")
    tensor = value.type.tensor_type
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else _RANKS.get(role)
    role = STEPS if role == POSITIONS and rank == 1 else role
    if rank != _RANKS.get(role, rank):
        reason = f"generating knows it of rank {_RANKS[role]}"
        raise FormatError(f"the input '{value.name}' has rank {rank}: {reason}")
    return role


def _logits(model: ModelProto, after: set[str]) -> str:
    """The output that is no state, or the one of that name."""
    names = [value.name for value in model.graph.output if value.name not in after]
    if "logits" in names:
        return "logits"
    if len(names) != 1:
        raise FormatError(f"which output has the logits: {', '.join(names) or 'there is none'}?")
    return names[0]
