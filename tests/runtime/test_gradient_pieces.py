"""Gradients as ordinary operators: their steps compute what the gradient is, and run."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from dnnp.core.extras.gradients import (
    KINDS,
    Forward,
    Step,
    gradient_time,
    loss,
    pieces,
    step_model,
    step_times,
    sums,
)
from dnnp.core.runtime.measure_operators import Measurement
from dnnp.core.training import RULES


def run(model, feeds):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def compute(step: Step, *values):
    """Outputs of a step for values, weights among them."""
    model = step_model(step._replace(weights=()))
    return run(model, {f"x{i}": v.astype(np.float32) for i, v in enumerate(values)})[0]


def conv(image, kernel, settings):
    node = helper.make_node("Conv", ["x", "w"], ["y"], **settings)
    shown = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape)
        for n, v in (("x", image), ("w", kernel))
    ]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph([node], "g", shown, out),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return run(model, {"x": image.astype(np.float32), "w": kernel.astype(np.float32)})[0]


def slopes(f, at):
    """Gradient of a linear function by its values at unit vectors."""
    found = np.zeros(at.shape)
    for place in product(*map(range, at.shape)):
        unit = np.zeros(at.shape)
        unit[place] = 1
        found[place] = f(unit)
    return found


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 2), st.sampled_from([1, 3]), st.integers(1, 2),
    st.integers(0, 1), st.integers(1, 2), st.integers(0, 99),
)  # fmt: skip
def test_convolutions(samples, group, tap, stride, pad, dilation, seed) -> None:
    rng = np.random.default_rng(seed)
    image = rng.standard_normal((samples, 2 * group, 6, 5))
    kernel = rng.standard_normal((2 * group, 2, tap, tap))
    attributes = {
        "group": group, "strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2,
    }  # fmt: skip
    out = conv(image, kernel, attributes)
    if not out.size:
        return
    late = rng.standard_normal(out.shape)
    shapes = [image.shape, kernel.shape]
    found = pieces(Forward("Conv", attributes, shapes, [out.shape], [True] * 2, [False, True]))
    assert found is not None
    of_image, of_kernel = found
    true = slopes(lambda x: (late * conv(x, kernel, attributes)).sum(), image)
    assert np.allclose(compute(of_image[0][0], late, kernel), true, atol=1e-3)
    if len(of_image) > 1:  # the kernel turned around, its channels swapped within each group
        parts = kernel.reshape(group, 2, 2, tap, tap).swapaxes(1, 2)
        turned = parts.reshape(2 * group, 2, tap, tap)[:, :, ::-1, ::-1]
        assert np.allclose(compute(of_image[1][0], late, turned), true, atol=1e-3)
    true = slopes(lambda w: (late * conv(image, w, attributes)).sum(), kernel)
    swapped = image.reshape(samples, group, 2, 6, 5).transpose(2, 1, 0, 3, 4)
    swapped = swapped.reshape(2, group * samples, 6, 5)
    made = compute(of_kernel[0][0], swapped, late.swapaxes(0, 1))
    assert np.allclose(made.swapaxes(0, 1)[:, :, :tap, :tap], true, atol=1e-3)
    if group == 1:
        last = of_kernel[1][-1]
        assert compute(last, *map(np.ones, last.reads)).size == kernel.size


@pytest.mark.parametrize("wide", [False, True])
def test_products(wide: bool) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 3, 4))
    b = rng.standard_normal((2, 4, 5) if wide else (4, 5))
    late = rng.standard_normal((2, 3, 5))
    found = pieces(
        Forward("MatMul", {}, [a.shape, b.shape], [late.shape], [True] * 2, [False, not wide])
    )
    assert found is not None
    true = (
        slopes(lambda x: (late * (x @ b)).sum(), a),
        slopes(lambda x: (late * (a @ x)).sum(), b),
    )
    for (way,), values, expected in zip(found, ((late, b), (a, late)), true, strict=True):
        (step,) = way
        seen = [v.reshape(s) for v, s in zip(values, step.reads, strict=True)]
        assert np.allclose(compute(step, *seen).reshape(expected.shape), expected, atol=1e-3)


ROWS = (4, 6)
CASES = {
    "Gemm": ([ROWS, (6, 3), (3,)], [(4, 3)], {}),
    "MatMul": ([ROWS, (6, 3)], [(4, 3)], {}),
    "Conv": ([(1, 2, 6, 6), (4, 2, 3, 3), (4,)], [(1, 4, 4, 4)], {}),
    "BatchNormalization": ([(2, 3, 4, 4), (3,), (3,), (3,), (3,)], [(2, 3, 4, 4)], {}),
    "LayerNormalization": ([ROWS, (6,), (6,)], [ROWS], {}),
    "Concat": ([ROWS, ROWS], [(4, 12)], {"axis": 1}),
    "Split": ([(4, 12)], [ROWS, ROWS], {"axis": 1}),
    "Slice": ([(4, 12)], [ROWS], {}),
    "Gather": ([ROWS, (3,)], [(3, 6)], {}),
    "ReduceMean": ([ROWS], [(4,)], {}),
    "GlobalAveragePool": ([(2, 3, 4, 4)], [(2, 3, 1, 1)], {}),
    "Add": ([ROWS, (6,)], [ROWS], {}),
    "Mul": ([ROWS, (6,)], [ROWS], {}),
    "Div": ([ROWS, (4, 1)], [ROWS], {}),
    "Pow": ([ROWS, ()], [ROWS], {}),
}


@pytest.mark.parametrize("op", sorted(KINDS))
def test_every_kind_runs(op: str) -> None:
    """ONNX Runtime supports all operators of gradients, in some way."""
    assert op in RULES
    reads, writes, attributes = CASES.get(op, ([ROWS], [ROWS], {}))
    wanted = [op != "Pow" or i == 0 for i in range(len(reads))]
    terms = pieces(
        Forward(op, attributes, reads, writes, wanted, [i > 0 for i in range(len(reads))])
    )
    assert terms is not None
    for ways in terms:
        for step in (step for way in ways for step in way):
            model = step_model(step)
            feeds = {
                f"x{i}": np.ones(shape, np.float32)
                for i, shape in enumerate(step.reads)
                if i not in step.weights
            }
            assert all(value.size for value in run(model, feeds))


def test_what_cannot_be_made_is_left() -> None:
    assert pieces(Forward("MaxPool", {}, [ROWS], [ROWS], [True], [False])) is None
    assert pieces(Forward("Relu", {}, [(0, 4)], [(0, 4)], [True], [False])) is None
    apart = Forward("MatMul", {}, [(2, 3, 4), (1, 4, 5)], [(2, 3, 5)], [True] * 2, [False] * 2)
    assert pieces(apart) is None


def test_the_fastest_way_counts_and_each_step_is_timed_once() -> None:
    a, b, c = Step("Add", ((2,), (2,))), Step("Mul", ((2,), (2,))), Step("Sub", ((2,), (2,)))
    terms = (((a, a), (b,)), ((c,),))
    assert gradient_time(terms, {a: 1.0, b: 3.0, c: 10.0}) == 12
    assert gradient_time(terms, {b: 3.0, c: 10.0}) == 13
    assert gradient_time(terms, {a: 1.0, b: 3.0}) is None
    assert gradient_time((), {}) == 0
    told: list[float] = []
    broken = Step("NoSuchOperator", ((2,),))
    times = step_times([a, broken, a], Measurement(repeats=2, warmup=1), told.append)
    assert set(times) == {a}
    assert times[a] >= 0
    assert told == [0.5, 1.0]


def test_sums_and_losses() -> None:
    assert sums((3,), 1) == ()
    assert sums((3,), 3) == 2 * (((Step("Add", ((3,), (3,))),),),)
    assert loss((3,)) == (((Step("Sub", ((3,), (3,))),),),)


def test_rows_are_scattered() -> None:
    found = pieces(
        Forward("Gather", {}, [(5, 2), (2, 3)], [(2, 3, 2)], [True, False], [True, False])
    )
    assert found is not None
    step = found[0][0][0]
    assert step.reads == ((5, 2), (6, 2))
    made = compute(step, np.zeros((5, 2)), np.ones((6, 2)))
    assert made.sum() == 12
