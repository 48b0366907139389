"""Symbolic dimensions: names and addresses from `--dim`, and expressions of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from math import ceil, floor
from shlex import quote
from typing import Any

import onnx

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.text import MOST_LISTED, instead
from dnnp.formats.fields import MAX_ID

MAX_DIMENSION = MAX_ID
"""Largest dimension that stays exact in the stream."""

_DIGITS = len(str(MAX_DIMENSION))

_LONGEST = 200
"""Longer dimension names are never expressions."""


Sizes = Mapping[str, int | tuple[int, ...]]
"""Dimension or `INPUT:AXIS` -> its size; input -> its shape."""


def parse_dimensions(options: list[str]) -> dict[str, int | tuple[int, ...]]:
    """`NAME=VALUE` options as a mapping; later ones win. VALUE may be a shape, such as 1x3x320x320.

    Raises
    ------
    UsageError
        No `=`, or VALUE is neither an integer of at least 0 nor such integers joined by x.
    """
    values: dict[str, int | tuple[int, ...]] = {}
    for option in options:
        name, equals, text = option.rpartition("=")
        if not equals or not name:
            raise UsageError(
                f"--dim {option}: give NAME=VALUE, as in batch=1, or INPUT=1x3x320x320"
            )
        sizes = text.split("x")
        for size in sizes:
            digits = size.isascii() and size.isdigit() and len(size) <= _DIGITS
            if not digits or int(size) > MAX_DIMENSION:
                raise UsageError(
                    f"--dim {option}: {text!r} is not an integer of at least 0, nor a shape"
                )
        values[name] = int(text) if len(sizes) == 1 else tuple(map(int, sizes))
    return values


def by_axis(graph: onnx.GraphProto, given: Sizes) -> dict[str, int]:
    """Sizes by name and address alone: those in the shape of an input go to its free axes.

    UsageError: a shape of no input, or one that its fixed axes contradict.
    """
    inputs = {value.name: value for value in graph.input}
    named = {dim.dim_param for value in inputs.values() for dim in value.type.tensor_type.shape.dim}
    found: dict[str, int] = {}
    for name, size in given.items():
        if isinstance(size, int):
            vector = name in inputs and len(inputs[name].type.tensor_type.shape.dim) == 1
            found[f"{name}:0" if vector and name not in named else name] = size
            continue
        text = f"--dim {name}={'x'.join(map(str, size))}"
        if name not in inputs:
            raise UsageError(f"{text}: no input of that name{instead(name, inputs)}")
        tensor = inputs[name].type.tensor_type
        axes = tensor.shape.dim
        fixed = [_has_size(dim) for dim in axes]
        fits = [not f or d.dim_value == n for f, d, n in zip(fixed, axes, size, strict=False)]
        if tensor.HasField("shape") and (len(axes) != len(size) or not all(fits)):
            raise UsageError(f"{text}: the model has {_shown(inputs[name])}")
        fixed = fixed or [False] * len(size)
        found.update({f"{name}:{i}": n for i, n in enumerate(size) if not fixed[i]})
    return found


def _shown(value: onnx.ValueInfoProto) -> str:
    """An input with its shape; an axis without a size has its name, or `?`."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return f"{value.name} of any shape"
    sizes = (d.dim_param or (str(d.dim_value) if _has_size(d) else "?") for d in tensor.shape.dim)
    return f"{value.name}[{', '.join(sizes)}]"


def _has_size(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0


BATCH, LENGTH, CHANNELS, SIDE = 1, 128, 3, 224
"""Guessed sizes: of a leading axis, of others, and of those of an image."""

_IMAGE = 4
"""Axes of an image."""


def _guessed(axis: int, axes: int) -> int:
    """A size that a free axis may have."""
    if not axis:
        return BATCH if axes > 1 else LENGTH
    return (CHANNELS if axis == 1 else SIDE) if axes == _IMAGE else LENGTH


def _unsized(
    inputs: Sequence[onnx.ValueInfoProto],
    given: Mapping[str, int],
    missing: Mapping[str, int],
    path: str,
) -> UsageError:
    """The error that shows inputs whose axes lack sizes, and a command with guesses.

    `missing`: names and addresses with guesses.
    """
    known, shown = {**given, **missing}, list[str]()
    options: dict[str, object] = dict(given)
    left = set(missing)
    for value in inputs:
        axes = value.type.tensor_type.shape.dim
        each = [f"{value.name}:{i}" for i in range(max(1, len(axes)))]
        wanted = [name for d in axes for name in _wanted(d.dim_param, given)]
        given_here = [options.pop(axis) for axis in each if axis in options]
        if not left.isdisjoint([*each, *wanted]):
            shown.append(_shown(value))
        if not axes:
            options[value.name] = "NxN"
        elif given_here or missing.keys() & each:
            sizes = (
                d.dim_value
                if _has_size(d)
                else known.get(at) or known.get(d.dim_param) or _evaluate(d.dim_param, known)
                for d, at in zip(axes, each, strict=True)
            )
            options[value.name] = "x".join(map(str, sizes))
        else:
            options.update((name, known[name]) for name in wanted if name in left)
        left -= {*each, *wanted}
    words = " ".join(f"--dim {quote(name)}={size}" for name, size in options.items())
    more = f" and {len(shown) - MOST_LISTED} more" if len(shown) > MOST_LISTED else ""
    if any(value.name.startswith("past") for value in inputs):
        words += ", or, to generate: --phase prompt:seq=512 --phase token:past=512"
    return UsageError(
        f"the inputs have free dimensions: {', '.join(shown[:MOST_LISTED])}{more}; give them sizes "
        f"that suit the model, such as: dnnp-import {quote(path)} {words}"
    )


class Dimensions:
    """Sizes of symbolic dimensions, by name.

    A dimension may also be an expression of named ones, as exporters write them:
    `batch*heads`, `2*seq + 1`, `floor(seq/2)`.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.any_free = False
        """True if an input of the model had a free dimension."""
        self._memo: dict[str, int | None] = dict(sizes)

    def size(self, dim: onnx.TensorShapeProto.Dimension) -> int | None:
        """Size of a dimension, None if it is not known.

        Raises
        ------
        FormatError
            The dimension is larger than `MAX_DIMENSION`.
        """
        value: int | None
        if dim.HasField("dim_value"):
            value = dim.dim_value
            if value > MAX_DIMENSION:
                raise FormatError(f"a dimension of {value}, larger than {MAX_DIMENSION}")
            return value if value >= 0 else None
        name = dim.dim_param
        if not self.sizes or type(name) is not str or not name:
            return None
        if name not in self._memo:
            self._memo[name] = _evaluate(name, self.sizes)
        return self._memo[name]

    def fix(self, shape: onnx.TensorShapeProto) -> None:
        """Write known sizes into a shape, in place of names."""
        for dim in shape.dim:
            if not dim.HasField("dim_value"):
                value = self.size(dim)
                if value is not None:
                    dim.dim_value = value


def shapes_of(sample: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a sample, without its sequences."""
    return {name: value.shape for name, value in sample.items() if hasattr(value, "shape")}


def bind_inputs(
    graph: onnx.GraphProto,
    given: Mapping[str, int],
    stored: Mapping[str, object],
    shapes: Mapping[str, Sequence[int]] | None = None,
    path: str = "MODEL",
) -> Dimensions:
    """Fix every free dimension of the graph's inputs in place, and return the named ones.

    A size at an address, or of an input that is given, is that of the dimension's name too, or
    of the one unknown name in an expression.

    Parameters
    ----------
    graph
        Main graph; its inputs are changed.
    given
        From `--dim`: dimension names, or `INPUT:AXIS` addresses, to sizes. Addresses also give
        the rank of an input without a shape, if they number all its axes from 0.
    stored
        Initializers by name; inputs of these names have their shape from there.
    shapes
        Shapes of inputs that are given.
    path
        The model, for a command that an error shows.

    Raises
    ------
    UsageError
        A dimension that nothing gives, or that has two sizes, or an option that names none.
    FormatError
        An input without an element type.
    """
    inputs = []
    for value in graph.input:
        kind = value.type.WhichOneof("value")
        if kind is None or (kind == "tensor_type" and not value.type.tensor_type.elem_type):
            raise FormatError(f"input '{value.name}' has no element type")
        elem_type = value.type.tensor_type.elem_type
        if kind == "tensor_type" and elem_type not in onnx.TensorProto.DataType.values():
            raise FormatError(f"input '{value.name}': unknown element type {elem_type}")
        if kind == "tensor_type" and value.name not in stored:
            inputs.append(value)
    known = {d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim}
    for value in (*graph.output, *graph.value_info, *graph.input):
        known.update(d.dim_param for d in _inner_shape(value.type).dim)
    known.update(name for text in sorted(filter(None, known)) for name in _names(text))
    sizes = {name: size for name, size in given.items() if name in known}
    addressed = {name: size for name, size in given.items() if name not in known}
    seen = {
        f"{name}:{axis}": size
        for name, shape in (shapes or {}).items()
        for axis, size in enumerate(shape)
    }
    dimensions = Dimensions(_named_by_address(inputs, sizes, {**seen, **addressed}))
    addressed = {**seen, **addressed}
    missing: dict[str, int] = {}
    for value in inputs:
        _bind_input(value, dimensions, addressed, missing)
    if addressed.keys() - seen.keys():
        name = next(name for name in addressed if name not in seen)
        names = sorted(n for n in known if n)
        hint = instead(name, names) if names else "; the model has no named ones"
        raise UsageError(f"--dim {name}: no free dimension of that name{hint}")
    if missing:
        raise _unsized(inputs, {**sizes, **given}, missing, path)
    return dimensions


def _named_by_address(
    inputs: Sequence[onnx.ValueInfoProto], sizes: Mapping[str, int], addressed: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of names: those given, and those that follow from sizes at addresses.

    UsageError: a dimension has two sizes.
    """
    found = dict(sizes)
    axes = [
        (dim.dim_param, f"{value.name}:{axis}")
        for value in inputs
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param and f"{value.name}:{axis}" in addressed
    ]
    # Plain names first: an expression may hold them.
    for text, address in sorted(axes, key=lambda pair: not pair[0].isidentifier()):
        size = addressed[address]
        known = found[text] if text in found else _evaluate(text, found)
        if known is None:
            found.update(_solved(text, size, found))
        elif known != size:
            raise UsageError(
                f"dimension '{text}' is {known}, but {address} of the inputs is {size}"
            )
    return found


def _solved(text: str, size: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """The name, or the one unknown name in a sum or product, with the value that gives a size."""
    names = _names(text) - set(sizes)
    for name in names if len(names) == 1 else ():
        first, second = (_evaluate(text, {**sizes, name: n}) for n in (1, 2))
        if first is not None and second is not None and second != first:
            value = 1 + (size - first) // (second - first)
            if value >= 0 and _evaluate(text, {**sizes, name: value}) == size:
                return {name: value}
    return {text: size}


def _names(text: str) -> set[str]:
    """Names that an expression holds; none if it is no expression."""
    try:
        tree = ast.parse(text if len(text) <= _LONGEST else "", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}


def _wanted(text: str, sizes: Mapping[str, int]) -> list[str]:
    """Names whose sizes give that of a dimension: those in an expression, or its own name, if any.

    >>> _wanted("past + length", {"past": 4}), _wanted("batch size", {}), _wanted("", {})
    (['length'], ['batch size'], [])
    """
    names = sorted(_names(text) - sizes.keys())
    follows = _evaluate(text, {**dict.fromkeys(names, 1), **sizes}) is not None
    return names if follows else [text] * bool(text)


def _inner_shape(proto: onnx.TypeProto) -> onnx.TensorShapeProto:
    """Shape of a type, or of the elements of a sequence or optional."""
    kind = proto.WhichOneof("value")
    while kind in ("sequence_type", "optional_type"):
        proto = getattr(proto, kind).elem_type
        kind = proto.WhichOneof("value")
    return (
        proto.sparse_tensor_type.shape
        if kind == "sparse_tensor_type"
        else (proto.tensor_type.shape)
    )


def _bind_input(
    value: onnx.ValueInfoProto,
    dimensions: Dimensions,
    addressed: dict[str, int],
    missing: dict[str, int],
) -> None:
    """Fix one input; takes its addresses out of `addressed`, adds to `missing`."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        dimensions.any_free = True
        rank = 0
        while f"{value.name}:{rank}" in addressed:
            tensor.shape.dim.add().dim_value = addressed.pop(f"{value.name}:{rank}")
            rank += 1
        if not rank:
            missing[f"{value.name}:0"] = BATCH
        return
    for axis, dim in enumerate(tensor.shape.dim):
        size = dimensions.size(dim)
        dimensions.any_free |= not dim.HasField("dim_value") or size is None
        address = f"{value.name}:{axis}"
        if address in addressed and not (dim.HasField("dim_value") and size is not None):
            at = addressed.pop(address)
            size = at if size is None else size
        if size is None:
            for name in _wanted(dim.dim_param, dimensions.sizes) or [address]:
                missing.setdefault(name, _guessed(axis, len(tensor.shape.dim)))
        else:
            dim.dim_value = size


def _evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Value of an expression of named dimensions; None if it is none, or has unknown names."""
    if len(text) > _LONGEST:
        return None
    try:
        value = _value(ast.parse(text, mode="eval").body, sizes)
        exact = int(value)
    except (SyntaxError, ValueError, KeyError, ArithmeticError, RecursionError, MemoryError):
        return None
    return exact if exact == value and 0 <= exact <= MAX_DIMENSION else None


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> float:
    """Evaluate sums, products, quotients, floor, ceiling, min, max and mod; else ValueError."""
    match tree:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _value(left, sizes), _value(right, sizes)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a // b if a % b == 0 else a / b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            a = _value(argument, sizes)
            if name in ("floor", "ceiling", "ceil"):
                return floor(a) if name == "floor" else ceil(a)
        case ast.Call(func=ast.Name(id=name), args=[first, *rest], keywords=[]):
            numbers = [_value(argument, sizes) for argument in (first, *rest)]
            if name.lower() in ("min", "max"):
                return min(numbers) if name.lower() == "min" else max(numbers)
            if name.lower() == "mod" and len(numbers) == 2:
                return numbers[0] % numbers[1]
    raise ValueError(f"{type(tree).__name__} is not arithmetic")
