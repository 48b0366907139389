"""State of a model: pairs of an input and an output that carry it from pass to pass.

A pair is known by what an operator does with it (`_SLOTS`), by its names, or as it was given. Its
size follows from the axes of the input: one counts the sequences of a pass, one that is free the
tokens of each; without such an axis the state is of one size for all lengths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import onnx

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import instead
from dnnp.formats.onnx.read_graph import OnnxGraph, Operator
from dnnp.formats.onnx.scope import domain_of
from dnnp.formats.onnx.value_types import UNKNOWN, ValueType, bytes_of

Record = dict[str, Any]
AxisNames = Mapping[str, Sequence[str | None]]
"""Input or output -> name of each free axis, '' where it has none, None of one of fixed size."""

_ORT = "com.microsoft"
_SLOTS: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("", "Attention"): ((4, 1), (5, 2)),
    ("", "TensorScatter"): ((0, 0),),
    ("", "Concat"): ((0, 0),),
    ("", "ScatterND"): ((0, 0),),
    ("", "ScatterElements"): ((0, 0),),
    ("", "LSTM"): ((5, 1), (6, 2)),
    ("", "GRU"): ((5, 1),),
    ("", "RNN"): ((5, 1),),
    ("", "CausalConvWithState"): ((3, 1),),
    ("", "LinearAttention"): ((3, 1),),
    (_ORT, "Attention"): ((4, 1),),
    (_ORT, "QAttention"): ((8, 1),),
    (_ORT, "MultiHeadAttention"): ((6, 1), (7, 2)),
    (_ORT, "GroupQueryAttention"): ((3, 1), (4, 2)),
    (_ORT, "SparseAttention"): ((3, 1), (4, 2)),
    (_ORT, "DecoderMaskedMultiHeadAttention"): ((5, 1), (6, 2)),
    (_ORT, "DecoderMaskedSelfAttention"): ((4, 1),),
    (_ORT, "CausalConvWithState"): ((3, 1),),
    (_ORT, "LinearAttention"): ((3, 1),),
    (_ORT, "GatedDeltaNet"): ((6, 1),),
    (_ORT, "DynamicQuantizeLSTM"): ((5, 1), (6, 2)),
}
"""Operator -> pairs of the input with a state before a pass and the output with that after it."""

_IN_PLACE = frozenset(
    {("", "TensorScatter"), ("", "ScatterND"), ("", "ScatterElements"),
     (_ORT, "GroupQueryAttention"), (_ORT, "SparseAttention"),
     (_ORT, "DecoderMaskedMultiHeadAttention"), (_ORT, "DecoderMaskedSelfAttention")}
)  # fmt: skip
"""Operators that write to the buffer that they read, where both ends are bound to one."""

_GENERAL = frozenset({"Concat", "ScatterND", "ScatterElements"})
"""Operators that do many other things: what they read is a state if it has three axes or more and
nothing else reads its values."""

_PASSED_ON = frozenset({"Identity", "Slice"})
"""Operators between the one that makes a state and the output of the model."""

_STATEFUL = re.compile(r"cache|state|hidden|memory|conv|ssm|^[hc]\d?$", re.IGNORECASE)


def axis_names(values: Iterable[onnx.ValueInfoProto]) -> dict[str, list[str | None]]:
    """Names of the free axes of inputs or outputs; some exporters write a size as a name."""
    return {
        value.name: [
            None if dim.HasField("dim_value") or dim.dim_param.isdecimal() else dim.dim_param
            for dim in value.type.tensor_type.shape.dim
        ]
        for value in values
    }


def find_states(
    graph: OnnxGraph,
    types: Mapping[str, ValueType],
    axes: AxisNames,
    given: Mapping[str, str] | None,
) -> tuple[list[Record], list[str]]:
    """Find the states of a model.

    Parameters
    ----------
    types
        Types of all values, with the sizes that free dimensions were given.
    axes
        Names that the axes of the inputs had before (`axis_names`).
    given
        Input -> output, in addition to what is recognised; None: nothing is a state.

    Returns
    -------
    records, warnings
        `state` records, whose ends are names; and pairs that are none though they look like one.

    Raises
    ------
    UsageError
        A given pair that the model has not got, or whose types or shapes disagree.
    """
    if given is None:
        return [], []
    made = {name: operator for operator in graph.operators for name in operator.writes}
    inputs, outputs = set(graph.inputs), [name for name in graph.outputs if name in made]
    for before, after in given.items():
        _check_ends(before, after, graph, outputs)
    pairs = dict(given)
    named = dict(_by_name(graph.inputs, outputs))
    for before, after in (
        *named.items(),
        *_by_operator(graph.operators, made, inputs, outputs, types),
    ):
        if before not in pairs and after not in pairs.values():
            pairs[before] = after
    records: list[Record] = []
    warnings: list[str] = []
    for before, after in sorted(pairs.items(), key=lambda pair: graph.inputs.index(pair[0])):
        record, fault = _record(before, after, types, axes)
        if fault and before in given:
            raise UsageError(f"--state {before}={after}: {fault}")
        if fault:
            if named.get(before) == after:
                warnings.append(f"'{before}' and '{after}' are no state: {fault}")
            continue
        maker = _maker(after, made)
        if maker is not None and _kind(maker) in _IN_PLACE:
            record["shared"] = True
        records.append({"type": "state", "id": len(records), **record})
    return records, warnings


def _check_ends(before: str, after: str, graph: OnnxGraph, outputs: Sequence[str]) -> None:
    """Refuse a given pair whose ends are no input and no computed output."""
    for name, names, what in ((before, graph.inputs, "input"), (after, outputs, "output")):
        if name not in names:
            hint = instead(name, list(names))
            raise UsageError(f"--state {before}={after}: no {what} is called '{name}'{hint}")


def _by_operator(
    operators: Sequence[Operator],
    made: Mapping[str, Operator],
    inputs: set[str],
    outputs: Sequence[str],
    types: Mapping[str, ValueType],
) -> Iterator[tuple[str, str]]:
    """Pairs of which one operator reads the first and makes the second."""
    readers = Counter(name for o in operators if o.proto.op_type != "Shape" for name in o.reads)
    for after in outputs:
        maker = _maker(after, made)
        if maker is None:
            continue
        proto = maker.proto
        last = after if after in proto.output else _passed(after, made)
        for into, out in _SLOTS.get(_kind(maker), ()):
            if len(proto.input) <= into or len(proto.output) <= out or proto.output[out] != last:
                continue
            before = proto.input[into]
            rank = len(types.get(before, UNKNOWN).shape or ())
            plain = proto.op_type not in _GENERAL or (rank >= 3 and readers[before] == 1)
            if before in inputs and plain:
                yield before, after


def _maker(name: str, made: Mapping[str, Operator]) -> Operator | None:
    """The operator that makes a value, seen through those that only pass it on."""
    return made.get(_passed(name, made))


def _passed(name: str, made: Mapping[str, Operator]) -> str:
    """The value that operators pass on as another one."""
    while name in made and made[name].proto.op_type in _PASSED_ON:
        name = made[name].proto.input[0]
    return name


def _kind(operator: Operator) -> tuple[str, str]:
    return domain_of(operator.proto.domain), operator.proto.op_type


def _by_name(inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs whose names say that they are one state."""
    there = set(outputs)
    for before in inputs:
        after = next((name for name in _named_after(before) if name in there), None)
        if after is not None:
            yield before, after


def _named_after(before: str) -> Iterator[str]:
    """Names of outputs that hold after a pass what the input holds before it.

    >>> list(_named_after("past_key_values.0.key"))[:1], list(_named_after("past_3"))
    (['present.0.key'], ['present_3'])
    """
    if before.startswith("past"):
        yield from dict.fromkeys(
            "present" + before.removeprefix(start)
            for start in ("past_key_values", "past")
            if before.startswith(start)
        )
    if _STATEFUL.search(before):
        yield from (f"new_{before}", f"next_{before}", f"{before}_out", f"{before}_next")
        yield from (f"{before}N", f"{before}n")
        for ends in (("_in", "_out"), (".in", ".out")):
            if before.endswith(ends[0]):
                yield before.removesuffix(ends[0]) + ends[1]


def _record(
    before: str, after: str, types: Mapping[str, ValueType], axes: AxisNames
) -> tuple[Record, str]:
    """A state's record, without the id, or why the two are none."""
    kind, later = types.get(before, UNKNOWN), types.get(after, UNKNOWN)
    shape, dtype = kind.shape, kind.dtype
    if shape is None or dtype is None:
        return {}, f"the shape of '{before}' is not known"
    if later.dtype not in (None, dtype):
        return {}, f"the types are {dtype} and {later.dtype}"
    rows_at = _rows_axis(before, axes)
    free = _free_axes(before, axes, after)
    if len(free) > 1:
        return {}, f"the axes {', '.join(map(str, free))} of '{before}' are free: which has tokens?"
    said = f"the shapes are {list(shape)} and {list(later.shape or ())}"
    if later.shape is not None and len(later.shape) != len(shape):
        return {}, said
    for i, (size, grown) in enumerate(zip(shape, later.shape or shape, strict=True)):
        if grown < size or (grown > size and i not in free):
            return {}, said
    one = [1 if i in (*free, rows_at) else size for i, size in enumerate(shape)]
    each = bytes_of(dtype, prod(one))
    record: Record = {"name": before, "input": before, "output": after}
    record["rows"] = max(1, shape[rows_at]) if rows_at is not None else 1
    if free:
        record |= {"token_bytes": each, "tokens": (later.shape or shape)[free[0]]}
    else:
        record["sequence_bytes"] = each
    return record, ""


def state_axes(before: str, after: str, axes: AxisNames) -> tuple[int | None, int | None]:
    """The axes of a state that count sequences and tokens; None: there is none."""
    return _rows_axis(before, axes), next(iter(_free_axes(before, axes, after)), None)


def _free_axes(before: str, axes: AxisNames, after: str) -> list[int]:
    """Free axes of a state that may count tokens: of several, those of other names after a pass."""
    rows, names, later = _rows_axis(before, axes), axes.get(before, ()), axes.get(after, ())
    free = [i for i, axis in enumerate(names) if axis is not None and i != rows]
    if len(free) > 1 and len(later) == len(names):
        return [i for i in free if later[i] != names[i]]
    return free


def _rows_axis(name: str, axes: AxisNames) -> int | None:
    """The axis of an input that counts sequences: the one of the name of another input's first."""
    names = axes.get(name, ())
    first = {row[0] for other, row in axes.items() if other != name and row and row[0]}
    for i, axis in enumerate(names):
        if axis in first:
            return i
    return 0 if names and names[0] == "" else None
