"""Open ONNX files: parse, hash, and find the model a stream was made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats.files import open_regular, read_regular, what_it_is
from dnnp.formats.onnx.fixed_inputs import fix_inputs, keep_outputs
from dnnp.formats.onnx.weights import Span, point_to

LIMIT = 2**31 - 1
"""Protobuf parses no message larger than this; bigger models keep weights in other files."""

HEAVY = 1 << 16
"""Bytes of a weight from which `light` leaves it in the file."""


def load_with_hash(path: str | Path, *, light: bool = False) -> tuple[onnx.ModelProto, str]:
    """Parse an ONNX file, and take its SHA-256, as 64 hex digits, on the way.

    External data stays where it is, need not exist, and is not part of the hash. `light`: weights
    of `HEAVY` bytes stay in the file too; the model has them as external data of the file itself.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read.
    FormatError
        It is not an ONNX model, or was cut off.
    """
    # ONNX Runtime refuses external data behind a link that leads out of the folder.
    if light and not os.path.islink(path):
        file, size = open_regular(path)
        with file:
            rest = _without_weights(file.fileno(), size, os.path.basename(path))
            if rest is not None:
                model = _parse(rest, str(path))
                names = [tensor.name for tensor in model.graph.initializer]
                if len(names) == len(set(names)):
                    return model, hashlib.file_digest(file, "sha256").hexdigest()
    data = read_regular(
        path, LIMIT, f"protobuf stops at {LIMIT}: keep the weights as external data"
    )
    model = _parse(data, str(path))
    return model, hashlib.sha256(data).hexdigest()


def source_model(
    header: Mapping[str, Any], override: str | None = None, *, light: bool = False
) -> tuple[onnx.ModelProto, Path, str]:
    """The ONNX model a stream was made from, where it is, and the SHA-256 of the file.

    Inputs that the import gave a value have it here, too, and outputs that it dropped are gone.

    Parameters
    ----------
    header
        Header record of the stream. A relative `source.path` counts from the working directory.
    override
        Path to use in place of `source.path` (`--model`).
    light
        See `load_with_hash`.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read.
    FormatError
        The stream comes from no ONNX file, or the file is not the one that was imported.
    """
    source = header.get("source")
    if source is not None and source["kind"] != "onnx":
        raise FormatError(
            f"the stream was imported from {source['kind']} ({source['path']}), not from an "
            "ONNX model"
        )
    if override is not None:
        path = Path(override)
    elif source is not None:
        path = Path(source["path"])
        if not os.path.exists(path):
            raise InputFileError(f"{path}: no such file; if the model moved, give --model PATH")
    else:
        raise FormatError("the stream names no source model; give one with --model")
    model, digest = load_with_hash(path, light=light)
    if source is not None and digest != source["sha256"]:
        raise FormatError(
            f"not the model that was imported: its SHA-256 is {digest[:12]}..., the stream "
            f"has {source['sha256'][:12]}...",
            str(path),
        )
    if source is not None and "set_inputs" in source:
        fix_inputs(model, source["set_inputs"])
    if source is not None and "keep_outputs" in source:
        keep_outputs(model, source["keep_outputs"])
    return model, path, digest


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    if not data:
        raise FormatError("not an ONNX model: the file is empty", name)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        hint = what_it_is(data, "model") or ", or cut off: protobuf cannot parse it"
        raise FormatError(f"not an ONNX model{hint}", name) from None
    if not model.HasField("graph"):
        raise FormatError("not an ONNX model: it holds no graph", name)
    if not model.opset_import and model.ir_version >= 3:
        raise FormatError("the model imports no operator set; was the file cut off?", name)
    _drop_repeats(model.graph)
    return model


_GRAPH, _INITIALIZER = 7, 5
_RAW_DATA = 9
"""Numbers of fields: of a model, of a graph, of a tensor (onnx.proto)."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Wire types of protobuf."""


def _without_weights(file: int, size: int, location: str) -> bytes | None:
    """Bytes of a model whose heavy initializers are external data at `location`, the same file.

    None where there are none, or the bytes are not as expected: parsing the whole file says how.
    """
    kept: list[bytes] = []
    try:
        graphs = [f for f in _fields(file, 0, size) if f[0] == _GRAPH]
        if len(graphs) != 1:
            return None
        _, start, begin, end = graphs[0]
        copied = begin
        for number, tag, at, stop in _fields(file, begin, end):
            if number != _INITIALIZER or stop - at < HEAVY:
                continue
            tensor = _outside(file, at, stop, location)
            if tensor is not None:
                kept += os.pread(file, tag - copied, copied), _message(_INITIALIZER, tensor)
                copied = stop
        if copied == begin:
            return None
        graph = b"".join([*kept, os.pread(file, end - copied, copied)])
    except (ValueError, DecodeError, IndexError):
        return None
    before, after = os.pread(file, start, 0), os.pread(file, size - end, end)
    return before + _message(_GRAPH, graph) + after


def _outside(file: int, begin: int, end: int, location: str) -> bytes | None:
    """A tensor that says where its raw data are; None if it has not got many."""
    heavy = [
        field
        for field in _fields(file, begin, end)
        if field[0] == _RAW_DATA and field[3] - field[2] >= HEAVY
    ]
    if len(heavy) != 1:
        return None
    _, tag, at, stop = heavy[0]
    rest = os.pread(file, tag - begin, begin) + os.pread(file, end - stop, stop)
    tensor = onnx.TensorProto.FromString(rest)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    point_to(tensor, Span(location, at, stop - at))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return tensor.SerializeToString()


def _fields(file: int, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Fields of a message in a file: number, where its tag, its value and the next one begin.

    ValueError, IndexError: it is not a message, or it ends within a field.
    """
    while at < end:
        head = os.pread(file, 20, at)
        key, value = _varint(head, 0)
        wire, begin = key & 7, at + value
        if wire == _BYTES:
            length, value = _varint(head, value)
            begin = at + value
            stop = begin + length
        elif wire == _VARINT:
            stop = at + _varint(head, value)[1]
        elif wire in (_EIGHT, _FOUR):
            stop = begin + (8 if wire == _EIGHT else 4)
        else:
            raise ValueError(wire)
        if stop > end:
            raise ValueError(stop)
        yield key >> 3, at, begin, stop
        at = stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(value)


def _message(number: int, value: bytes) -> bytes:
    """A field that holds a message."""
    length, coded = len(value), bytearray([number << 3 | _BYTES])
    while length > 127:
        coded.append(length & 127 | 128)
        length >>= 7
    coded.append(length)
    return bytes(coded) + value


def _drop_repeats(graph: onnx.GraphProto) -> None:
    """Take out each `Constant` node, and each initializer, with name and value of an earlier one.

    Exporters leave such, and ONNX Runtime takes them.
    """
    first: dict[str, onnx.NodeProto] = {}
    again = []
    for index, node in enumerate(graph.node):
        if node.op_type == "Constant" and len(node.output) == 1:
            known = first.setdefault(node.output[0], node)
            if known is not node and list(known.attribute) == list(node.attribute):
                again.append(index)
    for index in reversed(again):
        del graph.node[index]
    held: dict[str, onnx.TensorProto] = {}
    again = [
        index
        for index, tensor in enumerate(graph.initializer)
        if (known := held.setdefault(tensor.name, tensor)) is not tensor and known == tensor
    ]
    for index in reversed(again):
        del graph.initializer[index]
