"""Seeded weights: how they are drawn, and how they are stored in or beside a model.

Weights are described first and drawn only when a model is written, one at a time, each from its
own random stream. Models that are too large to hold in memory can thus be written, and planning
models never draw any.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype

from dnnp.formats.files import replacement
from dnnp.samples.shapes import Shape, Value

EXTERNAL_ABOVE_BYTES = 100 * 2**20
"""Weights that need more than this go to a file of their own."""

PAGE_BYTES = 4096
"""Tensors of a page or more start on a page boundary, so that readers can map them."""

Fill = Callable[[Generator, Shape], NDArray[Any]]


@dataclass(frozen=True)
class Weight:
    """An initializer that is drawn when the model is written."""

    name: str
    dtype: int
    """``TensorProto`` element type."""
    shape: Shape
    fill: Fill
    trained: bool
    """Counts as a parameter; false for buffers, such as a causal mask."""
    packed: int = 1
    """Parameters in each element."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the stored tensor."""
        return prod(self.shape) * tensor_dtype_to_np_dtype(self.dtype).itemsize

    def draw(self, seed: int, index: int) -> bytes:
        """Return the content; the stream of random numbers depends on `seed` and `index` only."""
        array = self.fill(np.random.default_rng([seed, index]), self.shape)
        return array.astype(tensor_dtype_to_np_dtype(self.dtype), copy=False).tobytes()


@dataclass(frozen=True)
class Sample:
    """A finished model whose weights are still descriptions."""

    proto: onnx.ModelProto
    """Graph and small constants, without weights."""
    weights: tuple[Weight, ...]
    values: Mapping[str, Value]
    """Every tensor by name, with its type and shape."""
    seed: int
    planning: bool
    """The weights are declared, with places in a data file, but never written."""

    @property
    def parameters(self) -> int:
        """Number of trained parameters; a weight that several nodes share counts once."""
        return sum(w.packed * prod(w.shape) for w in self.weights if w.trained)

    @property
    def nodes(self) -> int:
        """Number of nodes of the main graph."""
        return len(self.proto.graph.node)


def normal(std: float, mean: float = 0.0) -> Fill:
    """Return a fill that draws from a normal distribution."""

    def fill(rng: Generator, shape: Shape) -> NDArray[np.float32]:
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(std)
        if mean:
            values += np.float32(mean)
        return values

    return fill


def centred(std: float) -> Fill:
    """Return a normal fill whose mean is zero for each output channel (axis 0).

    Without the shift, the positive mean that ReLU leaves in its results adds up from layer to
    layer, until the output of a deep random network hardly depends on its input.
    """
    draw = normal(std)

    def fill(rng: Generator, shape: Shape) -> NDArray[np.float32]:
        values = draw(rng, shape)
        if prod(shape[1:]) > 1:
            values -= values.mean(axis=tuple(range(1, len(shape))), keepdims=True)
        return values

    return fill


def _declare(model: onnx.ModelProto, weight: Weight) -> onnx.TensorProto:
    tensor = model.graph.initializer.add(name=weight.name, data_type=weight.dtype)
    tensor.dims.extend(weight.shape)
    return tensor


def with_weights(sample: Sample) -> onnx.ModelProto:
    """Return the model with its weights drawn and stored inside."""
    model = copy.deepcopy(sample.proto)
    for index, weight in enumerate(sample.weights):
        _declare(model, weight).raw_data = weight.draw(sample.seed, index)
    return model


def _places(weights: Sequence[Weight]) -> list[int]:
    """Return the offset of each weight in the data file, in bytes."""
    offsets, end = [], 0
    for weight in weights:
        align = PAGE_BYTES if weight.size_bytes >= PAGE_BYTES else 64
        offsets.append(-(-end // align) * align)
        end = offsets[-1] + weight.size_bytes
    return offsets


def with_external_weights(sample: Sample, location: str) -> onnx.ModelProto:
    """Return the model with its weights declared as external data in the file `location`."""
    model = copy.deepcopy(sample.proto)
    for weight, offset in zip(sample.weights, _places(sample.weights), strict=True):
        tensor = _declare(model, weight)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        fields = {"location": location, "offset": offset, "length": weight.size_bytes}
        for key, value in fields.items():
            tensor.external_data.add(key=key, value=str(value))
    return model


def save(sample: Sample, path: Path) -> None:
    """Write the model to `path`, and large weights to ``path.data``; each file in one step.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    total = sum(weight.size_bytes for weight in sample.weights)
    external = sample.planning or total > EXTERNAL_ABOVE_BYTES
    data = path.with_name(path.name + ".data")
    if external and not sample.planning:
        with replacement(str(data)) as file:
            places = _places(sample.weights)
            for index, (weight, offset) in enumerate(zip(sample.weights, places, strict=True)):
                file.write(bytes(offset - file.tell()))
                file.write(weight.draw(sample.seed, index))
    model = with_external_weights(sample, data.name) if external else with_weights(sample)
    with replacement(str(path)) as file:
        file.write(model.SerializeToString(deterministic=True))
