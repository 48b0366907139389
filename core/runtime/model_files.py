"""A model for a session: its bytes, weights that lie elsewhere, and parts of weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import InputFileError

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from dnnp.formats.onnx_weights import Slice, Span


def absent_files(model: ModelProto, folder: Path, given: Iterable[str] = ()) -> dict[str, str]:
    """Weight files that a model names but its folder lacks: location -> one tensor in it.

    Weights in `given` need no file.
    """
    from dnnp.formats.onnx_scope import held_tensors
    from dnnp.formats.onnx_weights import external_fields

    known = set(given)
    absent: dict[str, str] = {}
    for tensor in held_tensors(model):
        fields = external_fields(tensor)
        location = fields.get("location", "")
        if fields and tensor.name not in known and not os.path.isfile(folder / location):
            absent.setdefault(location, tensor.name)
    return absent


def model_bytes(model: ModelProto) -> bytes:
    """A model for ONNX Runtime; `InputFileError` where one message, or memory, cannot hold it."""
    from google.protobuf.message import EncodeError

    try:
        return model.SerializeToString()
    except EncodeError:
        raise InputFileError("no memory for a copy of the model, or it is above 2 GiB") from None
    except ValueError as error:
        raise InputFileError(f"ONNX Runtime cannot load the model: {error}") from None


def supplied_weights(
    model: ModelProto, folder: Path, weights: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Those of the weights that a model wants; raises `InputFileError` if it lacks others."""
    wanted = {t.name for t in model.graph.initializer}
    supplied = {name: value for name, value in weights.items() if name in wanted}
    absent = absent_files(model, folder, supplied)
    if absent:
        location, tensor = next(iter(absent.items()))
        raise InputFileError(
            f"{folder / location}: no such file; it holds weights of the model ('{tensor}'); "
            "dnnp-run --random-weights SEED draws others"
        )
    return supplied


Weights = Mapping[str, NDArray[np.generic]]


def shard_weights(
    model: ModelProto, slices: Mapping[str, Slice], folder: Path, weights: Weights
) -> dict[str, NDArray[np.generic]]:
    """Those parts of weights that a session cannot take from a file as it is.

    Parameters
    ----------
    model
        A model with such parts among its initializers.
    slices
        What each of them is part of.
    folder
        Where the external data are.
    weights
        Whole weights that take the place of what is stored.

    Raises
    ------
    InputFileError
        A file is missing, too short, or cannot be read.
    """
    found: dict[str, NDArray[np.generic]] = {}
    for tensor in model.graph.initializer:
        part = slices.get(tensor.name)
        if part is not None and part.source in weights:
            found[tensor.name] = part.of(weights[part.source])
    found.update(_apart(model, folder, found))
    return found


def _apart(
    model: ModelProto, folder: Path, known: Weights
) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Initializers whose bytes lie apart in a file."""
    from dnnp.formats.onnx_weights import span_of

    for tensor in model.graph.initializer:
        span = span_of(tensor) if tensor.name not in known else None
        if span is not None and span.rows > 1:
            yield tensor.name, _read(tensor, span, folder / span.location)


def _read(tensor: TensorProto, span: Span, path: Path) -> NDArray[np.generic]:
    """The rows of a part, one after the other; the file is not read as a whole."""
    from onnx import helper

    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    try:
        length = span.end - span.offset
        raw = np.memmap(path, dtype=np.uint8, mode="r", offset=span.offset, shape=(length,))
    except FileNotFoundError:
        raise InputFileError(
            f"{path}: no such file; it holds weights of the model ('{tensor.name}'); dnnp-run "
            "--random-weights SEED draws others"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "too short for the weights"
        raise InputFileError(f"{path}: {reason}") from None
    rows = np.lib.stride_tricks.as_strided(
        raw, shape=(span.rows, span.row_bytes), strides=(span.stride, 1), writeable=False
    )
    return np.ascontiguousarray(rows).reshape(-1).view(dtype).reshape(tuple(tensor.dims))
