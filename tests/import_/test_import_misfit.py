"""Sizes of free dimensions that an operator cannot take, or that leave nothing to compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.run import dnnp

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
ARRAYS = {
    "at": np.arange(8)[None],
    "table": np.ones((8, 4), np.float32),
    "row": np.ones(4, np.float32),
    "square": np.ones((4, 4), np.float32),
    "one": np.ones((1, 1, 1, 1), np.float32),
    "kernel": np.ones((2, 3, 1, 1), np.float32),
}
GRAPHS: dict[str, tuple[str, str, str]] = {
    "broadcast": ("n=4", "n=5", "g (float[n] x) => (float[n] y) { y = Add(x, row) }"),
    "product": ("n=4", "n=5", "g (float[2, n] x) => (float[2, 4] y) { y = MatMul(x, square) }"),
    "channels": ("c=3", "c=4",
                 "g (float[1, c, 5, 5] x) => (float[1, 2, 5, 5] y) { y = Conv(x, kernel) }"),
    "concatenation": ("n=4", "n=5",
                      "g (float[n, 2, 3] x, float[4, 1, 3] z) => (float[4, 3, 3] y) "
                      "{ y = Concat<axis = -2>(x, z) }"),
    "concatenation of what is enlarged": ("n=4", "n=1",
              """g (float[1, 1, n, 4] x) => (float[1, 2, n, 4] y) {
                t = Constant<value_floats = [1.0, 1.0, 2.0, 1.0]>()
                k = Conv<kernel_shape = [1, 1], strides = [2, 1]>(x, one)
                u = Resize(k, , t) y = Concat<axis = 1>(u, x) }"""),
    "slice that takes what there is": ("n=8", "n=9",
              """g (float[n] x) => (int64[1, n] y) {
                a = Constant<value_ints = [0]>() b = Constant<value_ints = [1]>()
                s = Shape(x) p = Slice(at, a, s, b) q = Cast<to = 7>(x) y = Add(p, q) }"""),
    "declared slice": ("n=8", "n=9",
              """g (float[n] x) => (int64[1, n] y) <int64[1, n] p> {
                a = Constant<value_ints = [0]>() b = Constant<value_ints = [1]>()
                s = Shape(x) p = Slice(at, a, s, b) y = Add(p, p) }"""),
    "rows": ("n=8", "n=9",
             """g (float[n] x) => (float[1, n, 4] y) {
               s = Shape(x) i = Constant<value_int = 0>() e = Gather(s, i)
               j = Constant<value_int = 1>() r = Range(i, e, j)
               a = Constant<value_ints = [0]>() p = Unsqueeze(r, a)
               g = Gather(table, p) y = Relu(g) }"""),
}  # fmt: skip
"""Fitting value -> misfit, and the graph."""


def model(tmp_path: Path, text: str) -> Path:
    """A model file with the arrays that the graph reads."""
    made = onnx.parser.parse_model(HEAD + text)
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in ARRAYS.items() if name in read
    )
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_that_no_operator_takes(name: str, tmp_path: Path) -> None:
    good, bad, text = GRAPHS[name]
    path = model(tmp_path, text)
    assert dnnp("import", path, "--dim", good).status == 0
    result = dnnp("import", path, "--dim", bad)
    assert (result.status, result.out) == (2, b""), result.err
    assert result.err.startswith(f"dnnp-import: --dim {bad} does not fit the model: node ")
    assert result.err.count("\n") == 1


def test_nothing_to_compute(tmp_path: Path) -> None:
    path = model(tmp_path, "g (float[n, 4] x) => (float[n, 4] y) { y = Add(x, row) }")
    result = dnnp("import", path, "--dim", "n=0")
    assert result.status == 2
    assert result.err == (
        "dnnp-import: --dim n=0 leaves nothing to compute: every output is empty\n"
    )


def test_an_input_may_be_empty(tmp_path: Path) -> None:
    """Decoders start with a cache of length 0."""
    text = """g (float[past, 4] old, float[1, 4] new) => (float[n, 4] y) {
        y = Concat<axis = 0>(old, new) }"""
    path = model(tmp_path, text)
    assert dnnp("import", path, "--dim", "past=0").status == 0
