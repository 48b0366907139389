"""The model that a stream was made from, as a command opens it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.caller import Caller

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.stream import Stream


def open_source(
    caller: Caller, stream: Stream, override: str | None
) -> tuple[ModelProto, Path, str]:
    """The source model of a stream, its path and SHA-256; see `onnx_load.source_model`.

    Raises
    ------
    UsageError
        The command would overwrite the model or its weights.
    """
    from dnnp.formats.onnx_load import source_model

    model, path, digest = source_model(stream.header, override)
    spare_model(caller, model, path)
    return model, path, digest


def spare_model(caller: Caller, model: ModelProto, path: Path) -> None:
    """Make sure that no output is the file of a model, or one with its weights."""
    from dnnp.formats.onnx_scope import held_tensors
    from dnnp.formats.onnx_weights import external_fields

    caller.spare(path, "the model")
    fields = (external_fields(tensor) for tensor in held_tensors(model))
    for location in sorted({place["location"] for place in fields if "location" in place}):
        caller.spare(path.parent / location, "weights of the model")
