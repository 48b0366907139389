"""Contents of ONNX models, and their records."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from dnnp.formats.graph import graph_of
from dnnp.loading import load_onnx
from support.run import dnnp

CHAIN = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Exp(a) }"


def test_a_chain(load, save):
    got = load(CHAIN)
    assert [(n["id"], n["op"], n["inputs"], n["outputs"]) for n in got.nodes] == [
        (0, "Relu", [0], [1]),
        (1, "Exp", [1], [2]),
    ]
    kinds = [(t["name"], t["kind"], t["size_bytes"], t["dtype"], t["shape"]) for t in got.tensors]
    assert kinds == [
        ("x", "input", 24, "float32", [2, 3]),
        ("a", "activation", 24, "float32", [2, 3]),
        ("y", "activation", 24, "float32", [2, 3]),
    ]
    assert [t.get("output") for t in got.tensors] == [None, None, True]
    digest = hashlib.sha256(save(CHAIN).read_bytes()).hexdigest()
    assert got.header["source"] == {"kind": "onnx", "path": str(save(CHAIN)), "sha256": digest}
    assert got.header["model"] == "m"
    assert got.header["units"] == {"time": "s"}
    assert [p["tool"] for p in got.header["provenance"]] == ["dnnp-import"]
    assert got.err == ""


def test_name_and_prices(load):
    got = load(
        "g (float[2,3] x, float[3,5] w) => (float[2,5] y) { y = MatMul(x, w) }", "--name", "mine"
    )
    assert got.header["model"] == "mine"
    assert got.node("MatMul")["flop"] == 2 * 2 * 5 * 3
    assert got.node("MatMul")["bytes"] == 4 * (6 + 15 + 10)


def test_tied_weights_are_one_tensor(load):
    got = load(
        "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}>"
        " { a = Mul(x, w) b = Identity(w) c = Mul(a, w) y = Add(c, b) }"
    )
    weight = got.tensor("w")
    assert weight["kind"] == "parameter"
    readers = [n["op"] for n in got.nodes if weight["id"] in n["inputs"]]
    assert readers == ["Mul", "Identity", "Mul"]


def test_an_input_read_twice_is_listed_once(load):
    got = load("g (float[4] x) => (float[4] y) { y = Mul(x, x) }")
    assert got.ends("Mul") == (["x"], ["y"])


def test_initializer_that_is_an_input_is_a_parameter(load):
    got = load(
        '<ir_version: 3, opset_import: ["" : 8]> g (float[2] x, float[2] w) => (float[2] y)'
        " <float[2] w = {1, 2}> { y = Add(x, w) }"
    )
    assert got.tensor("w")["kind"] == "parameter"
    assert got.tensor("x")["kind"] == "input"


def test_constants_are_tensors_not_nodes(load):
    got = load(
        "g (float[2,6] x) => (float[3,4] y, int64[2] s)"
        "{ s = Constant <value_ints = [3, 4]> () k = Constant <value_float = 2.0> ()"
        " a = Mul(x, k) y = Reshape(a, s) }"
    )
    assert [n["op"] for n in got.nodes] == ["Mul", "Reshape"]
    assert [n["id"] for n in got.nodes] == [2, 3]
    scalar, shape = got.tensor("k"), got.tensor("s")
    assert (scalar["kind"], scalar["size_bytes"], scalar["shape"]) == ("constant", 4, [])
    assert (shape["kind"], shape["size_bytes"], shape["output"]) == ("constant", 16, True)


@pytest.mark.parametrize(
    ("attribute", "dtype", "size"),
    [
        ("value = int8[3] {1, 2, 3}", "int8", 3),
        ("value_int = 7", "int64", 8),
        ("value_floats = [1.0, 2.0]", "float32", 8),
        ('value_string = "abc"', "string", 32),
        ('value_strings = ["abc", "d"]', "string", 64),
    ],
)
def test_every_form_of_constant(load, attribute, dtype, size):
    got = load(f"g (float[2] x) => (float[2] y) {{ c = Constant <{attribute}> () y = Relu(x) }}")
    tensor = got.tensor("c")
    assert (tensor["kind"], tensor["dtype"], tensor["size_bytes"]) == ("constant", dtype, size)


def test_sparse_constants_and_initializers_count_as_dense(load):
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("i", TensorProto.INT64, [2], [3, 7]),
        [10],
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Add", ["a", "v"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, [10])], [value("y", 1, [10])], sparse_initializer=[sparse]
    )
    got = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert got.tensor("c")["size_bytes"] == 40
    assert (got.tensor("v")["kind"], got.tensor("v")["size_bytes"]) == ("parameter", 40)
    assert got.tensor("a")["shape"] == [10]


def test_weights_made_by_constant_of_shape(load):
    got = load(
        "g (float[2,3] x, int64[1] n) => (float[2,4] y, float[k] z) <int64[2] s = {3, 4}>"
        "{ w = ConstantOfShape <value = int8[1] {1}> (s)"
        "  f = Cast <to = 1> (w) y = MatMul(x, f) z = ConstantOfShape(n) }"
    )
    weight = got.tensor("w")
    assert weight["kind"] == "parameter"
    assert (weight["dtype"], weight["shape"], weight["size_bytes"]) == ("int8", [3, 4], 12)
    assert [n["op"] for n in got.nodes] == ["Cast", "MatMul", "ConstantOfShape"]


IF_LOOP = """
g (float[4] x, bool c, int64 n) => (float[4] y, float[4] z)
<float[4] w = {1, 2, 3, 4}, float[4] v = {1, 2, 3, 4}> {
  a = Relu(x)
  y = If (c) <
    then_branch = t () => (float[4] p) {
      q = Mul(a, w)
      p = If (c) <then_branch = tt () => (float[4] r) { r = Add(q, v) },
                  else_branch = te () => (float[4] u) { u = Neg(x) }>
    },
    else_branch = e () => (float[4] o) { o = Identity(a) }
  >
  z = Loop (n, c, a) <body = b (int64 i, bool k, float[4] s) => (bool k2, float[4] s2) {
      k2 = Identity(k)
      s2 = Add(s, w)
  }>
}
"""


def test_captures_of_nested_bodies(load):
    got = load(IF_LOOP)
    reads, writes = got.ends("If")
    assert writes == ["y"]
    assert reads == ["c", "a", "w", "v", "x"]
    captures = [got.names[i] for i in got.node("If")["captures"]]
    assert captures == ["a", "w", "v", "x"]
    assert got.ends("Loop")[0] == ["n", "c", "a", "w"]
    assert [got.names[i] for i in got.node("Loop")["captures"]] == ["w"]
    assert "captures" not in got.node("Relu")
    assert [n["op"] for n in got.nodes] == ["Relu", "If", "Loop"]
    assert got.node("If")["flop"] > 0


def test_scan(load):
    got = load(
        "g (float[4] s, float[5,4] x) => (float[4] t, float[5,4] y) <float[4] w = {1,1,1,1}>"
        "{ t, y = Scan <num_scan_inputs = 1, body = b (float[4] s1, float[4] x1)"
        " => (float[4] s2, float[4] y1) { s2 = Add(s1, x1) y1 = Mul(s2, w) }> (s, x) }"
    )
    assert got.ends("Scan") == (["s", "x", "w"], ["t", "y"])
    assert got.node("Scan")["flop"] == 5 * 8


FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2,8] x, float[8,8] w) => (float[k,l] y) { a = local.block(x, w) y = Relu(a) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
block (p, q) => (r) { s = local.inner(p, q) r = Erf (s) }
<domain: "local", opset_import: ["" : 17]>
inner (p, q) => (r) { r = MatMul(p, q) }
"""


def test_a_local_function_is_one_node(load):
    got = load(FUNCTION)
    assert [(n["op"], n.get("domain")) for n in got.nodes] == [("block", "local"), ("Relu", None)]
    assert got.tensor("a")["shape"] == [2, 8]
    assert got.tensor("y")["size_bytes"] == 64
    assert got.node("block")["flop"] > 2 * 2 * 8 * 8


def test_quantised_models(load):
    got = load(
        "g (float[4] x) => (float[4] y) <float s = {0.1}, uint8 z = {128}>"
        "{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    )
    assert (got.tensor("q")["dtype"], got.tensor("q")["size_bytes"]) == ("uint8", 4)
    assert [n["op"] for n in got.nodes] == ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("elem_type", "dtype", "size"),
    [
        (TensorProto.INT4, "int4", 4),
        (TensorProto.UINT4, "uint4", 4),
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn", 7),
        (TensorProto.BFLOAT16, "bfloat16", 14),
        (TensorProto.BOOL, "bool", 7),
        (TensorProto.COMPLEX128, "complex128", 112),
        (TensorProto.STRING, "string", 224),
    ],
)
def test_sizes_of_types(load, elem_type, dtype, size):
    value = helper.make_tensor_value_info
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph(
        [node], "g", [value("x", elem_type, [7])], [value("y", elem_type, [7])]
    )
    got = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    assert (got.tensor("y")["dtype"], got.tensor("y")["size_bytes"]) == (dtype, size)


def test_sequences_tie_their_nodes_together(load):
    got = load(
        "g (float[4] x, int64 i) => (float[4] y, float[4] z)"
        "{ a = Relu(x) s = SequenceConstruct(a, x) t = Identity(s) y = SequenceAt(t, i)"
        "  u = SequenceConstruct(x) z = SequenceAt(u, i) }",
        "--shapes",
        "symbolic",
    )
    colors = {n["id"]: n.get("color") for n in got.nodes}
    assert colors == {0: None, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
    assert got.tensor("s")["dtype"] == "sequence"
    assert got.tensor("s")["size_bytes"] == 16
    plain = load(
        "g (float[4] x, int64 i) => (float[4] y)"
        "{ s = SequenceConstruct(x) t = Identity(s) y = SequenceAt(t, i) }",
        "--shapes",
        "value-info",
    )
    assert [n.get("color") for n in plain.nodes] == [0, 0, 0]


def test_optionals(load):
    got = load("g (float[4] x) => (float[4] y) { o = Optional(x) y = OptionalGetElement(o) }")
    assert got.tensor("o")["dtype"] == "optional"
    assert [n["color"] for n in got.nodes] == [0, 0]


def test_duplicate_names_are_kept_and_empty_ones_made_up(load):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + CHAIN)
    for name in ("same", ""):
        for node in model.graph.node:
            node.name = name
        shown = [name or "Relu:a", name or "Exp:y"]
        assert [n["name"] for n in load(model).nodes] == shown


def test_a_constant_that_is_there_again(load):
    again = "c = Constant <value_float = 1.0> ()"
    got = load(f"g (float x) => (float y) {{ {again} a = Add(x, c) {again} y = Mul(a, c) }}")
    assert [n["name"] for n in got.nodes] == ["Add:a", "Mul:y"]
    assert got.ends("Mul") == (["a", "c"], ["y"])


def test_an_initializer_that_is_there_again(load, refuse):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) '
        "<float w = {1.0}> { a = Add(x, w) y = Mul(a, w) }"
    )
    model.graph.initializer.append(model.graph.initializer[0])
    assert load(model).ends("Mul") == (["a", "w"], ["y"])
    model.graph.initializer[1].float_data[:] = [2.0]
    assert "initializer 'w' is defined twice" in refuse(3, model)


def test_optional_inputs_and_outputs_left_out(load):
    got = load('g (float[1,3,8] x) => (float[1,3,8] y) { a, m = Dropout(x) y = Clip(a, "", "") }')
    assert got.ends("Clip") == (["a"], ["y"])
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["", "h", ""], hidden_size=4)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [lstm],
        "g",
        [value("x", 1, [5, 1, 3]), value("w", 1, [1, 16, 3]), value("r", 1, [1, 16, 4])],
        [value("h", 1, None)],
    )
    got = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)]))
    assert got.ends("LSTM") == (["x", "w", "r"], ["h"])
    assert got.tensor("h")["shape"] == [1, 1, 4]


def test_outputs_that_are_inputs_or_initializers(load):
    got = load(
        "g (float[2] x, float[2] unused) => (float[2] x, float[2] w, float[2] y)"
        "<float[2] w = {1, 2}> { y = Relu(x) dead = Exp(x) }"
    )
    outputs = [t["name"] for t in got.tensors if t.get("output")]
    assert outputs == ["x", "w", "y"]
    assert [n["op"] for n in got.nodes] == ["Relu", "Exp"]
    assert got.tensor("unused")["kind"] == "input"


def test_nodes_out_of_order_are_sorted(load):
    got = load("g (float[2] x) => (float[2] y) { y = Exp(b) b = Relu(a) a = Neg(x) }")
    assert [(n["id"], n["op"]) for n in got.nodes] == [(2, "Neg"), (1, "Relu"), (0, "Exp")]
    assert "not in topological order" in got.err
    assert got.tensor("b")["shape"] == [2]


def test_scopes(load):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)'
        "{ a = Relu(x) b = Relu(a) c = Relu(b) y = Relu(c) }"
    )
    first, second, third, _ = model.graph.node
    first.name = "/enc/layer.0/Relu"
    second.metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value="['', 'enc', 'enc.layer.1', 'relu']"
    )
    # As PyTorch 2.13 writes it, before its name_scopes.
    third.metadata_props.add(key="namespace", value=": m.Net/enc: m.Enc/enc.layer.2: L/relu: aten")
    third.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'no', 'relu']")
    got = load(model)
    assert [n.get("scope") for n in got.nodes] == [
        "/enc/layer.0",
        "/enc/layer.1",
        "/enc/layer.2",
        None,
    ]


@pytest.mark.parametrize(("opset", "warned"), [(6, True), (7, False), (26, False), (27, True)])
def test_operator_sets(load, opset, warned):
    got = load(f'<ir_version: 8, opset_import: ["" : {opset}]>' + CHAIN)
    assert ("operator set" in got.err) == warned


def weightless(shape: list[int]) -> onnx.ModelProto:
    """A product with a weight that is declared as external data and exists nowhere."""
    weight = TensorProto(name="w", data_type=1, dims=shape, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="absent.bin")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", 1, [1, shape[0]])],
        [value("y", 1, None)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_absent_weights_of_any_size(load):
    got = load(weightless([1 << 20, 1 << 20]))
    assert got.tensor("w")["size_bytes"] == 1 << 42
    assert got.tensor("y")["shape"] == [1, 1 << 20]
    assert got.node("MatMul")["flop"] == 2 << 40


def test_training_information_is_ignored(load):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + CHAIN)
    model.training_info.add().algorithm.node.add(op_type="Nothing", output=["q"])
    assert len(load(model).nodes) == 2


def test_bytes_are_the_same_every_time(save):
    path = save(IF_LOOP)
    assert dnnp("import", path).out == dnnp("import", path).out


def test_the_library_call(save):
    stream = load_onnx(str(save(CHAIN)))
    assert graph_of(stream).n == 2
    assert isinstance(stream.header["source"]["path"], str)


def test_import_reads_no_weight_file(save, tmp_path: Path):
    """A weight file that is there is not opened: this one is no file at all."""
    (tmp_path / "absent.bin").mkdir()
    assert dnnp("import", save(weightless([4, 4]))).status == 0


def test_nodes_without_a_name_are_called_by_operator_and_output(save):
    """In tables, in pictures, in groups and in messages."""
    text = "g (float[4,4] x) => (float[4,4] y) { a = Exp(x) b = MatMul(a, x) y = Sqrt(b) }"
    imported = dnnp("import", save(text))
    plan = dnnp("partition", "-q", "-k", "3", "--method", "uniform", stdin=imported.out)
    for words in (("csv", "--table", "nodes"), ("dot",), ("html",), ("svg",)):
        shown = dnnp("view", "--as", *words, stdin=plan.out)
        assert b"MatMul:b" in shown.out, words
    groups = dnnp("coarsen", "-q", stdin=imported.out).records("group")
    assert {"MatMul:b"} & {group["name"] for group in groups}


@pytest.mark.parametrize("where", ["name", "output"])
def test_dotted_names_tell_layers(where, save):
    names = [f"model.layers.{i}.mlp.{op}" for i in range(3) for op in ("Exp", "Relu", "Neg", "Abs")]
    tensors = ["x", *(names if where == "output" else [f"t{i}" for i in range(12)])]
    nodes = [
        helper.make_node(name.rpartition(".")[2], [a], [b], name=name if where == "name" else "")
        for name, a, b in zip(names, tensors, tensors[1:], strict=False)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [4])],
        [helper.make_tensor_value_info(tensors[-1], 1, [4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = dnnp("import", save(model))
    assert imported.records("node")[0]["scope"] == "model.layers.0.mlp"
    layered = dnnp("coarsen", "-q", "--layers", stdin=imported.out)
    assert [len(group["nodes"]) for group in layered.records("group")] == [4, 4, 4]
