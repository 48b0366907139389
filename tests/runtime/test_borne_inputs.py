"""Random inputs are ones that the operators of a model bear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import helper

from dnnp import load_stages
from dnnp.core.runtime.model.inputs import integer_ranges, random_inputs
from dnnp.formats.onnx.value_types import shaped_by_values
from support.run import dnnp

# Inputs, outputs and body of a graph; x is float[2,3,4].
CASES = {
    "div": ("int64[64] a, int64[64] b", "int64[64] y", "y = Div(a, b)"),
    "mod": ("int32[64] a, int32[64] b", "int32[64] y", "y = Mod(a, b)"),
    "unsigned": ("uint8[64] a, uint8[64] b", "uint8[64] y", "y = Div(a, b)"),
    "divisor is cast": ("int64[64] a, float[64] b", "int64[64] y",
                        "c = Cast<to=7>(b) y = Div(a, c)"),
    "divisor is a product": ("int64[64] a, int64[64] b", "int64[64] y",
                             "c = Mul(b, b) d = Abs(c) y = Div(a, d)"),
    "divisor is a sum": ("int64[64] a, int64[64] b", "int64[1] y",
                         "c = ReduceSum(b) y = Div(c, c)"),
    "divisor in pieces": ("int64[4] a, int64 b, int64[2] c, int64[1] e", "int64[4] y",
                          "z = Constant<value_ints=[0]>() d = Unsqueeze(b, z) "
                          "f = Concat<axis=0>(d, c, e) y = Mod(a, f)"),
    "divisor in an If": ("int64[9] a, int64[9] b, bool c", "int64[9] y", "y = If (c) <"
                         "then_branch = t () => (int64[9] u) { u = Div(a, b) },"
                         "else_branch = e () => (int64[9] v) { v = Mod(b, a) }>"),
    "divisor in a Loop": ("int64[9] a, int64[9] b, int64 m, bool go", "int64[9] y",
                          "y = Loop (m, go, b) <body = l (int64 i, bool c, int64[9] d) => "
                          "(bool c2, int64[9] d2) "
                          "{ c2 = Identity(c) d2 = Max(d, d) d3 = Div(a, d) }>"),
    "divisor from an If": ("int64[9] a, int64[9] b, bool c", "int64[9] y", "d = If (c) <"
                           "then_branch = t () => (int64[9] u) { u = Identity(b) },"
                           "else_branch = e () => (int64[9] v) { v = Identity(a) }>"
                           "y = Div(a, d)"),
    "rois": ("float[2,3,8,8] x, float[5,4] r, int64[5] b", "float[5,3,2,2] y",
             "y = RoiAlign<output_height=2, output_width=2>(x, r, b)"),
    "reshape": ("float[2,3,4] x, int64[2] s", "float[n,m] y", "y = Reshape(x, s)"),
    "reshape to more": ("float[2,3,4] x, int64[5] s", "float[a,b,c,d,e] y", "y = Reshape(x, s)"),
    "reshape to a line": ("float[2,3,4] x, int32[1] s", "float[n] y",
                          "t = Cast<to=7>(s) y = Reshape(x, t)"),
    "reshape what is made": ("float[n,3] x, int64[2] s", "float[a,b] y",
                             "z = NonZero(x) c = Cast<to=1>(z) y = Reshape(c, s)"),
    "reshape to pieces": ("float[2,3,4] x, int64 s", "float[a,b] y",
                          "z = Constant<value_ints=[0]>() m = Constant<value_ints=[-1]>() "
                          "u = Unsqueeze(s, z) t = Concat<axis=0>(u, m) y = Reshape(x, t)"),
    "expand": ("float[3,1] x, int64[2] s", "float[3,4] y", "y = Expand(x, s)"),
    "fill": ("int64[3] s", "float[a,b,c] y", "y = ConstantOfShape(s)"),
    "tile": ("float[3,1] x, int64[2] s", "float[a,b] y", "y = Tile(x, s)"),
    "range": ("int64 a, int64 b, int64 d", "int64[n] y", "y = Range(a, b, d)"),
    "split": ("float[7,3] x, int64[3] s", "float[a,3] u, float[b,3] v, float[c,3] w",
              "u, v, w = Split<axis=0>(x, s)"),
    "split to a sequence": ("float[7,3] x, int64[3] s", "float[n,3] y",
                            "q = SplitToSequence<axis=0>(x, s) "
                            "y = ConcatFromSequence<axis=0>(q)"),
    "slice": ("float[5,6,7] x, int64[2] s, int64[2] e, int64[2] a, int64[2] p", "float[i,j,k] y",
              "y = Slice(x, s, e, a, p)"),
    "axes": ("float[3,4,5] x, int64[2] a", "float[n] y", "y = ReduceSum<keepdims=0>(x, a)"),
    "axes of a mean": ("float[3,4,5] x, int64[2] a", "float[n,m,k] y", "y = ReduceMean(x, a)"),
    "squeeze": ("float[3,1,5,1] x, int64[2] a", "float[n,m] y", "y = Squeeze(x, a)"),
    "unsqueeze": ("float[3,5] x, int64[3] a", "float[i,j,k,l,m] y", "y = Unsqueeze(x, a)"),
    "one axis": ("float[3,5] x, int64 a", "float[3,5] y", "y = CumSum(x, a)"),
    "top k": ("float[3,5] x, int64[1] k", "float[3,n] y, int64[3,n] z", "y, z = TopK(x, k)"),
    "one-hot": ("int64[3] i, int64 d, float[2] v", "float[3,n] y", "y = OneHot(i, d, v)"),
    "pads": ("float[3,5] x, int64[4] p, float v", "float[a,b] y", "y = Pad(x, p, v)"),
    "sizes": ("float[1,1,4,4] x, int64[4] s", "float[a,b,c,d] y", 'y = Resize(x, "", "", s)'),
    "scales": ("float[1,1,4,4] x, float[4] s", "float[a,b,c,d] y", 'y = Resize(x, "", s)'),
    "dropout": ("float[9] x, float r, bool t", "float[9] y", "y = Dropout(x, r, t)"),
    "probabilities": ("float[9] x", "float[9] y", "y = Bernoulli<seed=1.0>(x)"),
    "place in a sequence": ("float[2] x, float[2] u, int64 i", "float[2] y",
                            "q = SequenceConstruct(x, u) y = SequenceAt(q, i)"),
    "classes": ("float[4,3] x, int64[4] t", "float y", "y = SoftmaxCrossEntropyLoss(x, t)"),
    "lengths": ("float[4,3,2] x, int64[3] n", "float[4,3,2] y",
                "y = ReverseSequence<batch_axis=1, time_axis=0>(x, n)"),
    "boxes": ("float[1,6,4] b, float[1,1,6] s, int64 n, float t", "int64[k,3] y",
              "y = NonMaxSuppression(b, s, n, t)"),
    "crop": ("float[5,6] x, int64[2] s", "float[a,b] y", "y = CenterCropPad(x, s)"),
    "parts": ("float[4,3] x, int64 s", "float[n,3] y",
              "q = SplitToSequence<axis=0>(x, s) y = ConcatFromSequence<axis=0>(q)"),
    "scale": ("float[4] x, float s", "uint8[4] y", "y = QuantizeLinear(x, s)"),
    "scales of QLinear": ("uint8[2,3] x, float s, uint8 o, uint8[3,2] w", "uint8[2,2] y",
                          "y = QLinearMatMul(x, s, o, w, s, o, s, o)"),
    "variance": ("float[2,3] x, float[3] s, float[3] v", "float[2,3] y",
                 "y = BatchNormalization(x, s, s, s, v)"),
    "table and divisor": ("float[9,4] w, int64[7] i, int64[7] a", "float[7,4] y, int64[7] z",
                          "y = Gather(w, i) z = Div(a, i)"),
}  # fmt: skip


def model_of(name: str) -> onnx.ModelProto:
    inputs, outputs, body = CASES[name]
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("name", CASES)
def test_a_model_runs_on_its_random_inputs(name: str) -> None:
    model = model_of(name)
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    shapes = set()
    for seed in range(8):
        found = session.run(None, random_inputs(model, seed, {"n": 2}))
        assert all(np.isfinite(one).all() for one in found)
        shapes.add(tuple(np.shape(one) for one in found))
        assert all(np.size(one) for one in found) or name == "boxes"
    assert len(shapes) == 1 or name == "boxes", "a size depends on the seed"


def test_scales_and_variances_are_above_0() -> None:
    for name, which in (("scale", "s"), ("scales of QLinear", "s"), ("variance", "v")):
        model = model_of(name)
        assert all((random_inputs(model, seed)[which] > 0).all() for seed in range(8)), name


def test_floats_are_divided_as_before() -> None:
    text = "g (float[9] a, float[9] b) => (float[9] y) { y = Div(a, b) }"
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>' + text)
    assert integer_ranges(model, ["a", "b"]) == ({}, {})


def test_metadata_decide_over_shapes() -> None:
    model = model_of("axes")
    helper.set_model_props(model, {"dnnp.input_range.a": "2,2"})
    assert random_inputs(model, 0)["a"].tolist() == [2, 2]


@pytest.mark.parametrize("name", ["div", "divisor in a Loop", "axes", "slice", "rois"])
def test_they_are_run_and_measured_with(name: str, tmp_path: Path) -> None:
    onnx.save(model_of(name), tmp_path / "m.onnx")
    graph = dnnp("import", "-q", tmp_path / "m.onnx").out
    measured = dnnp("profile", "-q", "--mode", "measure", stdin=graph)
    assert measured.status == 0, measured.err
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform", stdin=measured.out).out
    ran = dnnp("run", "-q", "--verify", "-n", "8", "--warmup", "0", stdin=plan)
    assert ran.status == 0, ran.err


RANKS = {
    "axes": "float[3,4,5] x, int64[2] a | s = ReduceSum<keepdims=0>(x, a)",
    "squeezed": "float[3,1,1] x, int64[n] a | s = Squeeze(x, a)",
    "reshaped": "float[3,4,5] x, int64[n] a | s = Reshape(x, a)",
    "behind": "float[3,4,5] x, int64[2] a | r = ReduceSum<keepdims=0>(x, a) s = Abs(r)",
    "a branch": "float[3,4,5] x, bool a | s = If (a) <then_branch = t () => (float[3,4,5] u) "
    "{ u = Neg(x) }, else_branch = e () => (float[60] v) { v = Flatten<axis=0>(x) }>",
}
GIVEN = {
    "axes": ([0, 1], [1, 1]), "squeezed": ([1], [2, 1]), "reshaped": ([60], [3, 20]),
    "behind": ([0, 1], [1, 1]), "a branch": (True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_a_rank_that_depends_on_values_stays_open(name: str, tmp_path: Path) -> None:
    """Stages take samples of other ranks than that of the run that found shapes."""
    inputs, _, body = RANKS[name].partition(" | ")
    text = f"g ({inputs}) => (float y) {{ {body} z = Relu(s) y = Mul(z, z) }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    sizes = ("--dim", "n=1") if "[n]" in inputs else ()
    imported = dnnp("import", tmp_path / "m.onnx", *sizes)
    assert imported.status == 0, imported.err
    if imported.one("header")["source"].get("ran"):
        assert "may depend on values of inputs" in imported.err
        assert "counted as in one run" in imported.err
    plan = dnnp("partition", "-q", "-k", "3", "--method", "uniform", stdin=imported.out).out
    assert dnnp("export", "-q", "-o", tmp_path / "out", stdin=plan).status == 0
    stages = load_stages(tmp_path / "out")
    kind = np.bool_ if name == "a branch" else np.int64
    x = np.linspace(-1, 1, 60 if "4,5" in inputs else 3, dtype=np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    ranks = set()
    for number, values in enumerate(GIVEN[name]):
        feeds = {"x": x.reshape(3, *[-1, 5] if len(x) > 3 else [1, 1]), "a": np.array(values, kind)}
        expected = session.run(None, feeds)[0]
        np.testing.assert_array_equal(stages.run(feeds)["y"], expected)
        ranks.add(np.ndim(expected))
        np.savez(tmp_path / f"{number}.npz", **feeds)
        ran = dnnp("run", "-q", "--verify", "--inputs", tmp_path / f"{number}.npz", stdin=plan)
        assert ran.status == 0, ran.err
    assert len(ranks) == 2


def test_a_rank_that_does_not_depend_on_values_is_stated() -> None:
    text = "g (float[3,4] x, int64[1] n) => (float[3,k] y) { v, i = TopK(x, n) y = Relu(v) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    sized, ranked = shaped_by_values(model)
    assert (sized, ranked) == ({"v", "i", "y"}, set())
