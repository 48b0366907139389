"""The builder's shapes against those of the onnx package."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from dnnp.samples.build import CATALOG, make_sample
from dnnp.samples.builder import Builder
from dnnp.samples.shapes import FLOAT
from dnnp.samples.weights import Sample, with_external_weights

SMALL = [name for name, entry in CATALOG.items() if entry.size == "small"]


def results(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield the types of the tensors that nodes compute, also inside subgraphs."""
    yield from graph.value_info
    yield from graph.output
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from results(attribute.g)


def compare(sample: Sample) -> tuple[int, int]:
    """Compare with strict inference; return how many shapes agree and how many it lacks."""
    model = with_external_weights(sample, "weights")
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    known = lacking = 0
    for info in results(inferred.graph):
        value, tensor = sample.values[info.name], info.type.tensor_type
        assert tensor.elem_type == value.dtype, info.name
        dims = tensor.shape.dim
        if not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in dims):
            lacking += 1
            continue
        assert tuple(dim.dim_value for dim in dims) == value.shape, info.name
        known += 1
    return known, lacking


@pytest.mark.parametrize("name", [*SMALL, "gpt3-330m", "swin-1.8b", "evoformer-87m"])
def test_shapes_equal_strict_inference(name: str) -> None:
    sample = make_sample(name)
    known, lacking = compare(sample)
    assert known >= sample.nodes / 2
    # Inference does not know that the state of a Loop keeps its shape.
    assert (lacking > 0) == (name == "raft-small")


def test_forms_that_the_samples_use_rarely() -> None:
    b = Builder("forms")
    x = b.input("x", (2, 3, 8, 9))
    cut = b.slice(b.slice(x, 2, 7, 1, -2), 3, -4, 100)
    top = b.op("ArgMax", cut, axis=1, keepdims=0)
    total = b.reduce("ReduceMax", cut, [-1], keepdims=False)
    picked = b.op("GatherND", cut, b.const(np.array([[0, 2], [1, 1]])))
    pooled = b.op("MaxPool", b.op("Pad", x, b.ints([0, 0, 1, 0, 0, 0, 0, 2])), kernel_shape=[2, 2])
    for position, value in enumerate((top, total, picked, pooled)):
        b.output(f"y{position}", value)
    sample = b.build()
    assert sample.values["y0"].shape == (2, 3, 4)
    assert sample.values["y3"].shape == (2, 3, 8, 10)
    assert compare(sample)[1] == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda b, x: b.matmul(x, x),
        lambda b, x: b.concat([x, b.transpose(x, 0, 2, 3, 1)], 0),
        lambda b, x: b.op("Reshape", x, x),
    ],
)
def test_impossible_shapes_are_refused(call: object) -> None:
    b = Builder("wrong")
    x = b.input("x", (1, 3, 4, 5), FLOAT)
    with pytest.raises(ValueError):
        call(b, x)  # type: ignore[operator]
