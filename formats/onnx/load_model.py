"""Open ONNX files: parse without weights, hash, and find the model a stream was made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats.files import read_regular, what_it_is

LIMIT = 2**31 - 1
"""Protobuf parses no message larger than this; bigger models keep weights in other files."""


def load_with_hash(path: str | Path) -> tuple[onnx.ModelProto, str]:
    """Parse an ONNX file, and take its SHA-256, as 64 hex digits, on the way.

    External data stays where it is, need not exist, and is not part of the hash.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read.
    FormatError
        It is not an ONNX model, or was cut off.
    """
    data = read_regular(
        path, LIMIT, f"protobuf stops at {LIMIT}: keep the weights as external data"
    )
    model = _parse(data, str(path))
    return model, hashlib.sha256(data).hexdigest()


def source_model(
    header: Mapping[str, Any], override: str | None = None
) -> tuple[onnx.ModelProto, Path, str]:
    """The ONNX model a stream was made from, where it is, and the SHA-256 of the file.

    Inputs that the import gave a value have it here, too, and outputs that it dropped are gone.

    Parameters
    ----------
    header
        Header record of the stream. A relative `source.path` counts from the working directory.
    override
        Path to use in place of `source.path` (`--model`).

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
    model, digest = load_with_hash(path)
    if source is not None and digest != source["sha256"]:
        raise FormatError(
            f"not the model that was imported: its SHA-256 is {digest[:12]}..., the stream "
            f"has {source['sha256'][:12]}...",
            str(path),
        )
    if source is not None and "set_inputs" in source:
        from dnnp.formats.onnx.fixed_inputs import fix_inputs

        fix_inputs(model, source["set_inputs"])
    if source is not None and "keep_outputs" in source:
        from dnnp.formats.onnx.fixed_inputs import keep_outputs

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
