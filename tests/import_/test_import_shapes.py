"""Sources of shapes; no step is taken in vain."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dnnp import load as dnnp_load
from dnnp.formats.onnx import guard
from dnnp.formats.onnx import shapes as onnx_shapes
from dnnp.formats.onnx.dims import Dimensions, parse_dimensions
from dnnp.formats.onnx.value_types import TypeReader
from support.run import dnnp

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'

FREE = "g (float[batch,seq,8] x) => (float[batch,k] y) { a = Relu(x) y = Flatten(a) }"


def test_dimensions_by_name_and_by_address(load):
    assert load(FREE, "--dim", "batch=2", "--dim", "seq=3").tensor("y")["shape"] == [2, 24]
    got = load(FREE, "--dim", "x:0=4", "--dim", "seq=3", "--dim", "seq=5")
    assert got.tensor("y")["shape"] == [4, 40]
    cache = "g (float[batch,seq] x, float[batch] z) => (float[batch,seq] a, float[batch] b) {"
    cache += " a = Relu(x) b = Relu(z) }"
    assert load(cache, "--dim", "batch=1", "--dim", "seq=0").tensor("a")["size_bytes"] == 0


def test_addresses_give_a_rank(load):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + FREE)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    got = load(model, "--dim", "x:0=4", "--dim", "x:1=2", "--dim", "x:2=8", "--dim", "batch=4")
    assert got.tensor("x")["shape"] == [4, 2, 8]
    assert got.tensor("y")["shape"] == [4, 16]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("b*s", 6),
        ("2*s + 1", 7),
        ("floor(s/2)", 1),
        ("ceiling(s/2)", 2),
        ("(b + s - 1)/2", 2),
        ("Max(b, s, 1)", 3),
        ("Min(b, s)", 2),
        ("Mod(s, b)", 1),
        ("s // b", 1),
        ("s % b", 1),
        ("-b + s", 1),
        ("b - s", None),
        ("s/b", None),
        ("q", None),
        ("b**s", None),
        ("", None),
        ("f(b)", None),
        ("b.c", None),
        ("9e999*b", None),
        ("b/0", None),
        ("((b", None),
        ("True", None),
        ("b if s else s", None),
        ("b" * 500, None),
    ],
)
def test_dimension_expressions(text, size):
    dim = onnx.TensorShapeProto.Dimension(dim_param=text)
    assert Dimensions({"b": 2, "s": 3}).size(dim) == size


def test_later_options_win():
    assert parse_dimensions(["a=1", "b=2", "a=3", "x=y=4"]) == {"a": 3, "b": 2, "x=y": 4}


def test_shapes_of_whole_inputs(load, save):
    """The command that an error shows imports the model, with shapes and vectors too."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[p,3,q,w] x, float[r] v, float[b,2,p] u) => (float[p,3,q,w] y, float[b,2,p] z)"
        "{ y = Relu(x) n = Identity(v) z = Exp(u) }"
    )
    for value, axes in zip(model.graph.input, ((0, 2), (0,), (0,)), strict=True):
        for axis in axes:
            value.type.tensor_type.shape.dim[axis].ClearField("dim_param")
    path = save(model)
    said = dnnp("import", path).err
    shown = "x[?, 3, ?, w], v[?], u[?, 2, p]"
    command = f"dnnp-import {path} --dim x=1x3x224x224 --dim v=128 --dim u=1x2x128"
    assert shown in said
    assert said.endswith(f"{command}\n")
    got = load(model, *command.split()[2:])
    assert [got.tensor(name)["shape"] for name in "yz"] == [[1, 3, 224, 224], [1, 2, 128]]
    graph = dnnp_load(path, dims={"x": (1, 3, 224, 224), "v": 128, "u": [1, 2, 128]})
    assert [list(t["shape"]) for t in graph.tensors if t["name"] == "y"] == [[1, 3, 224, 224]]
    for wrong, reason in (
        ("x=1x4x2x2", "--dim x=1x4x2x2: the model has x[?, 3, ?, w]"),
        ("x=1x3", "--dim x=1x3: the model has x[?, 3, ?, w]"),
        ("t=1x3", "--dim t=1x3: no input of that name; known: x, v, u"),
        ("x=1xx3", "--dim x=1xx3: '1xx3' is not an integer of at least 0, nor a shape"),
    ):
        result = dnnp("import", path, "--dim", wrong)
        assert (result.status, result.err) == (2, f"dnnp-import: {reason}\n")


def test_declared_expressions_are_evaluated(load):
    """ONNX knows nothing of the operator, so that what is declared counts."""
    got = load(
        '<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>'
        "g (float[b,s] x) => (float[b,s] y) <float[b] a> { a = nowhere.Op(x) y = nowhere.Op(a) }",
        *("--dim", "b=2", "--dim", "s=3"),
    )
    assert got.tensor("a")["shape"] == [2]
    assert [line.partition(": ONNX Runtime")[2][-36:] for line in got.err.splitlines()] == [
        " of operator set 1: node 'a' and 1 more"[-36:]
    ]


def test_declarations_that_went_stale(load):
    """The dimension was made free afterwards; `c`, behind an unknown operator, must be believed."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>'
        "g (float[batch,4] x) => (float[1,4] y, float[1,4] c)"
        "<float[1,4] a> { a = Relu(x) y = Exp(a) c = nowhere.Op(a) }"
    )
    assert model.graph.value_info[0].name == "a"
    got = load(model, "--dim", "batch=8")
    assert [got.tensor(name)["shape"] for name in "ayc"] == [[8, 4], [8, 4], [1, 4]]


def test_complete_declarations_are_compared_once(load, monkeypatch):
    text = "g (float[4] x) => (float[4] y) <float[4] a> { a, m = Dropout(x) y = Relu(a) }"
    calls = []

    def counted(*arguments, **limits):
        calls.append(arguments[0])
        return guard.guarded(*arguments, **limits)

    monkeypatch.setattr(onnx_shapes, "guarded", counted)
    load(text)
    assert calls == [onnx_shapes.infer_bare]
    monkeypatch.setattr(onnx_shapes, "LARGEST_CHECKED", 1)
    load(text)
    assert calls == [onnx_shapes.infer_bare]


LAYERS = """g (float[4,6] x) => (float[3,8] y)
    <float[4,6] a, float[4,6] b, float[4,6] c, float[3,8] d, float[3,8] e> {
    a = Relu(x) b = Relu(a) c = Relu(b)
    s = Constant <value_ints = [3, 8]> () d = Reshape(c, s)
    t = Constant <value_ints = [8, -1]> () e = Reshape(c, t)
    y = Add(d, d)
}"""


def test_one_of_like_operators_is_inferred(load, monkeypatch):
    """Of three Relu of one shape the first; but reshapes that read other numbers are not alike."""
    asked = []

    def counted(function, first, second, *others, **limits):
        bare = function is onnx_shapes.infer_bare
        whole = first if bare else onnx.ModelProto.FromString(second)
        asked.append([node.name for node in whole.graph.node])
        return guard.guarded(function, first, second, *others, **limits)

    monkeypatch.setattr(onnx_shapes, "guarded", counted)
    model = onnx.parser.parse_model(HEAD + LAYERS)
    for node in model.graph.node:
        node.name = node.output[0]
    got = load(model)
    assert asked[0] == ["s", "t", "a", "d", "e", "y"]
    assert len(asked[1]) == 8
    assert got.tensor("e")["shape"] == [8, 3]
    assert "1 tensor of another shape or type than the model declares, such as 'e'" in got.err


def test_what_is_alike_has_one_price(load):
    """`Add(d, d)` moves less than `Add(d, e)`."""
    text = LAYERS.replace("float[3,8] e>", "float[3,8] e, float[3,8] z>").replace(
        "[8, -1]", "[3, 8]"
    )
    got = load(text.replace("y = Add(d, d)", "z = Add(d, d) y = Add(z, e)"))
    assert got.err == ""
    works = {got.names[node["outputs"][0]]: node["bytes"] for node in got.nodes}
    assert works["a"] == works["b"] == works["c"] == 2 * 4 * 24
    assert (works["z"], works["y"]) == (2 * 4 * 24, 3 * 4 * 24)


@pytest.mark.parametrize("declared", ["float[N,3,4]", "float[N,13]"])
def test_declarations_that_inference_contradicts(load, declared, tmp_path):
    """The reshape makes a matrix [2, 12], whatever the model says of `b`."""
    got = load(
        f"g (float[N,3,4] x) => (float[k,l] y) <{declared} b> {{"
        " a = Relu(x) s = Constant <value_ints = [-1, 12]> () b = Reshape(a, s) y = Neg(b) }",
        *("--dim", "N=2"),
    )
    assert got.tensor("b")["shape"] == got.tensor("y")["shape"] == [2, 12]
    assert got.tensor("b")["dtype"] == "float32"
    assert "1 tensor of another shape or type than the model declares, such as 'b'" in got.err
    stages = dnnp("partition", "-k", "3", "--method", "uniform", stdin=got.raw)
    done = dnnp("run", "-n", "1", "--verify", "--warmup", "0", stdin=stages.out)
    assert done.status == 0, done.err


def test_an_output_that_is_listed_twice(load):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,6] x) => (float[2,6] y, float[12] z)'
        "{ z = Neg(x) y = Relu(z) }"
    )
    model.graph.output.append(helper.make_tensor_value_info("y", 1, [3, 4, 1]))
    got = load(model)
    assert got.tensor("y")["shape"] == got.tensor("z")["shape"] == [2, 6]
    assert "2 tensors of another shape" in got.err


def test_steps_stop_where_they_are_told_to(load):
    text = "g (float[4] x) => (float[4] y) { a = Relu(x) y = Relu(a) }"
    got = load(text, "--shapes", "value-info")
    assert got.tensor("a")["size_bytes"] == 0
    assert "shape" not in got.tensor("a")
    (line,) = got.err.splitlines()
    assert "1 tensor of unknown size, counted as 0 bytes, such as 'a'" in line
    assert "--shapes run" in line
    assert load(text, "--shapes", "infer").err == ""


COMPUTED = """
g (float[2,3,8] x, int64[1] free) => (float[p,q,r] y, int64[a,b,c] v)
<int64[1] one = {1}, int64[1] zero = {0}> {
  s = Shape(x)
  n = Gather <axis = 0> (s, zero)
  half = Constant <value_ints = [4]> ()
  e = Div(half, n)
  m1 = Constant <value_ints = [-1]> ()
  t = Concat <axis = 0> (n, m1, e)
  l = Shape(t)
  z = ConstantOfShape <value = int64[1] {1}> (l)
  same = Equal(t, m1)
  u = Where(same, z, t)
  v = Expand(one, u)
  w = Reshape(x, t)
  y = Relu(w)
}
"""


def test_shapes_computed_from_fixed_inputs_are_exact(load):
    """t = [2, -1, 4 / 2], so w has 2, 48 / 4 and 2; u = where(t == -1, 1, t) = [2, 1, 2]."""
    got = load(COMPUTED, "--shapes", "infer")
    assert got.tensor("w")["shape"] == [2, 12, 2]
    assert got.tensor("v")["shape"] == [2, 1, 2]
    assert got.err == ""
    assert {n["op"] for n in got.nodes} >= {"Shape", "Where", "Gather"}


@pytest.mark.parametrize("op", ["ConstantOfShape", "Range", "Tile", "Expand"])
def test_large_values_are_not_followed(load, op):
    """The value is not made; the shape comes out all the same."""
    inputs = {"ConstantOfShape": ["n"], "Range": ["a", "b", "c"]}.get(op, ["v", "n"])
    shape = [1 << 40] if op in ("ConstantOfShape", "Tile", "Expand") else [1 << 20]
    arrays = {
        "n": np.array([1 << 40]),
        "v": np.array([7]),
        "a": np.array(0),
        "b": np.array(1 << 20),
        "c": np.array(1),
    }
    makers = [helper.make_node("Identity", [f"{name}0"], [name]) for name in inputs]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            *makers,
            helper.make_node(op, inputs, ["big"]),
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Identity", ["big"], ["z"]),
        ],
        "g",
        [value("x", 1, [2])],
        [value("y", 1, [2]), value("z", 7, None)],
        [numpy_helper.from_array(arrays[name], f"{name}0") for name in inputs],
    )
    got = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert got.tensor("big").get("shape") in (shape, None)


DATA_DEPENDENT = (
    "g (float[6] x) => (float[1,k] y, float[6] z) {"
    " n = NonZero(x) f = Cast <to = 1> (n) y = Exp(f) b = Relu(x) z = Exp(b) }"
)


def test_shapes_that_depend_on_data(load):
    got = load(DATA_DEPENDENT, "--shapes", "symbolic")
    assert got.tensor("b")["shape"] == [6]
    assert "of unknown size" in got.err
    assert [got.tensor(name)["size_bytes"] for name in ("n", "f", "y")] == [0, 0, 0]
    assert "ran" not in got.header["source"]
    for ran in (load(DATA_DEPENDENT, "--shapes", "run"), load(DATA_DEPENDENT)):
        (said,) = ran.err.splitlines()
        assert "the shape of 3 tensors may depend on values of inputs" in said
        assert ran.header["source"]["ran"] is True
        assert ran.tensor("n")["shape"] == [1, 6]
        assert ran.tensor("y")["size_bytes"] == 24


def test_a_run_on_given_inputs(load, refuse, tmp_path):
    """Two of the four numbers are not 0; the file says how large the dimension is."""
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([0, 1, 0, 2], dtype=np.float32))
    text = DATA_DEPENDENT.replace("float[6]", "float[b]")
    got = load(text, "--inputs", str(path))
    assert got.tensor("n")["shape"] == [1, 2]
    assert got.tensor("z")["shape"] == [4]
    assert "x:0 of the inputs is 4" in refuse(2, text, "--inputs", str(path), "--dim", "b=5")
    assert "is for ONNX models" in dnnp("import", "--inputs", path, "--from", "csv", "a.csv").err


@pytest.mark.parametrize(
    ("limit", "value", "says"),
    [("MOST_BYTES", 3, "its weights take"), ("MOST_SECONDS", 0.0, "took more than is allowed")],
)
def test_models_that_are_not_run_unasked(load, monkeypatch, limit, value, says):
    monkeypatch.setattr(f"dnnp.core.runtime.model.shapes.{limit}", value)
    text = DATA_DEPENDENT.replace("y, float[6] z) {", "y, float[6] z) <float[4] w = {1,2,3,4}> {")
    got = load(text.replace("[6]", "[4]").replace("Relu(x)", "Add(x, w)"))
    assert "of unknown size" in got.err
    assert says in got.err
    assert "ran" not in got.header["source"]


def test_sizes_at_addresses_are_those_of_names(load, refuse):
    text = "g (float[b,p] x, float[b,p+s] z) => (float[b,k] y) { y = Concat <axis = 1> (x, z) }"
    model = onnx.parser.parse_model(HEAD + text.replace("p+s", "t"))
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "p + s"
    got = load(model, "--dim", "x:0=2", "--dim", "p=3", "--dim", "z:1=7")
    assert got.tensor("z")["shape"] == [2, 7]
    got = load(model, "--dim", "b=2", "--dim", "p=3", "--dim", "s=4")
    assert got.tensor("y")["shape"] == [2, 10]
    message = refuse(2, model, "--dim", "x:0=2", "--dim", "z:0=3", "--dim", "p=3", "--dim", "s=4")
    assert "dimension 'b' is 2, but z:0 of the inputs is 3" in message
    message = refuse(2, model, "--dim", "b=2", "--dim", "p=3", "--dim", "s=4", "--dim", "z:1=8")
    assert "dimension 'p + s' is 7, but z:1 of the inputs is 8" in message


def test_a_run_sees_sequences_and_bodies(load):
    text = (
        "g (float[6] x, int64 i) => (float[k] y) {"
        " n = NonZero(x) f = Cast <to = 1> (n) s = SequenceConstruct(f, f) y = SequenceAt(s, i) }"
    )
    got = load(text, "--shapes", "run")
    assert (got.tensor("s")["dtype"], got.tensor("s")["size_bytes"]) == ("sequence", 48)


def test_a_run_needs_the_weights(refuse):
    weight = onnx.TensorProto(name="w", data_type=1, dims=[6], data_location=1)
    weight.external_data.add(key="location", value="absent.bin")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[6] x) => (float[k] y)'
        "{ a = Relu(x) y = NonZero(a) }"
    )
    model.graph.initializer.append(weight)
    assert "absent.bin" in refuse(1, model, "--shapes", "run")


def test_a_run_that_cannot_be_made(refuse):
    text = "g (float[6] x) => (float[k] y) { a = nowhere.Strange(x) y = Relu(a) }"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>' + text
    )
    assert "ONNX Runtime cannot load the model" in refuse(1, model, "--shapes", "run")


CONTRIB = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "nowhere" : 1]>
g (float[2,3,8] x) => (float[a,b,c] y, float[d,e] z, float[f,g,h] i, float[o] v) <float[5] k> {
  g1 = com.microsoft.FastGelu(x)
  y = Relu(g1)
  k = nowhere.Known(x)
  l = Relu(k)
  u = nowhere.Unknown(x)
  v = Relu(u)
  n = NonZero(l)
  z = Cast <to = 1> (n)
  h = com.microsoft.Gelu(x)
  i = Relu(h)
}
"""


def test_symbolic_inference_goes_around_unknown_operators(load):
    got = load(CONTRIB)
    assert got.tensor("g1")["shape"] == got.tensor("y")["shape"] == [2, 3, 8]
    assert got.tensor("l")["shape"] == [5]
    assert got.tensor("h")["shape"] == got.tensor("i")["shape"] == [2, 3, 8]
    assert "shape" not in got.tensor("u")
    assert "shape" not in got.tensor("z")
    assert load(CONTRIB, "--shapes", "infer").tensor("g1")["shape"] == [2, 3, 8]


def test_equal_types_are_decoded_once():
    reader = TypeReader(Dimensions({}))
    proto = helper.make_tensor_type_proto(1, [2, 3])
    assert reader.read(proto) is reader.read(helper.make_tensor_type_proto(1, [2, 3]))
    assert reader.read(proto).size_bytes == 24


def test_a_crash_costs_one_answer():
    assert guard.guarded(len, [1, 2]) == 2
    assert guard.guarded(onnx.parser.parse_graph, 3) is None
    assert guard.guarded(os.abort) is None
    assert guard.guarded(len, [1, 2, 3]) == 3


def test_a_call_that_is_inherited_need_not_be_pickled():
    parts = {"lock": threading.Lock()}
    for wanted in (1, 2):
        assert guard.guarded(lambda: len(parts), inherited=True) == wanted
        assert guard.guarded(len, [1, 2, 3]) == 3
        parts["more"] = threading.Lock()
    assert guard.guarded(lambda: 1 / 0, inherited=True) is None


def test_limits_of_time_and_memory_cost_one_answer(monkeypatch):
    monkeypatch.setattr(guard, "TIME_LIMIT_S", 0.2)
    assert guard.guarded(time.sleep, 60) is None
    monkeypatch.setattr(guard, "TIME_LIMIT_S", 60.0)
    monkeypatch.setattr(guard, "MEMORY_LIMIT_BYTES", 1 << 28)
    assert guard.guarded(bytes, 1 << 29) is None
    assert len(guard.guarded(bytes, 1 << 20)) == 1 << 20
    assert guard.guarded(os.abort) is None  # a worker with usual limits comes next


def test_named_dimensions_of_outputs_may_be_given(save):
    text = "g (float[6] x) => (float[k] y) { n = nowhere.Find(x) y = Relu(n) }"
    result = dnnp("import", save(text), "--dim", "k=4")
    assert result.status == 0
    assert [t.get("shape") for t in result.records("tensor")] == [[6], None, [4]]
