"""A model for a session: its bytes, and the weights that lie elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import InputFileError

if TYPE_CHECKING:
    from onnx import ModelProto


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
    """A model for ONNX Runtime; `InputFileError` where one message cannot hold it."""
    try:
        return model.SerializeToString()
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
