"""Types of operators that ONNX does not know: what import finds is what ONNX Runtime makes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from dnnp.core.runtime.model.shapes import shapes_by_running
from support.run import dnnp

MS = "com.microsoft"


def ones(dtype: str, *shape: int) -> np.ndarray:
    """A weight."""
    return np.ones(shape, dtype=dtype)


X = "float[2,3,8] x"
IMAGE = "float[1,16,8,8] x"
BYTES = "uint8[2,4,6,6] x"
SCALE = {"s": ones("float32"), "z": ones("uint8")}
# Input, node, weights; the input is called x.
CONTRIB = {
    "BiasGelu": (X, "y = {}(x, b)", {"b": ones("float32", 8)}),
    "FastGelu": (X, "y = {}(x)", {}),
    "Gelu": (X, "y = {}(x)", {}),
    "QuickGelu": (X, "y = {}(x)", {}),
    "Inverse": ("float[2,8,8] x", "y = {}(x)", {}),
    "Trilu": ("float[2,8,8] x", "y = {}<upper = 0>(x)", {}),
    "FusedConv": (IMAGE, '''y = {}<activation = "Relu", strides = [2, 1]>(x, k)''', {
        "k": ones("float32", 4, 16, 3, 3)}),
    "FusedGemm": ("float[4,8] x", '''y = {}<activation = "Relu", transB = 1>(x, w, b)''', {
        "w": ones("float32", 6, 8), "b": ones("float32", 6)}),
    "FusedMatMul": (X, "y = {}<transA = 1, alpha = 0.5>(x, w)", {"w": ones("float32", 3, 5)}),
    "FusedMatMul transposed batch": (
        "float[3,2,4,8] x", "y = {}<transBatchA = 1, transBatchB = 1, transB = 1>(x, x)", {}),
    "FusedMatMul broadcast": (X, "y = {}<transB = 1>(x, w)", {"w": ones("float32", 4, 1, 5, 8)}),
    "DynamicQuantizeMatMul": (X, "y = {}(x, w, s, z)", {"w": ones("uint8", 8, 5), **SCALE}),
    "MatMulIntegerToFloat": (BYTES, "y = {}(x, w, s, s)", {"w": ones("uint8", 6, 5), **SCALE}),
    "QGemm": ("uint8[4,8] x", "y = {}<transB = 1>(x, s, z, w, s, z, c, s, z)", {
        "w": ones("uint8", 6, 8), "c": ones("int32", 6), **SCALE}),
    "QGemm to floats": ("uint8[4,8] x", "y = {}(x, s, z, w, s, z)", {
        "w": ones("uint8", 8, 6), **SCALE}),
    "QLinearAdd": (BYTES, "y = {}(x, s, z, w, s, z, s, z)", {"w": ones("uint8", 6), **SCALE}),
    "QLinearMul": (BYTES, "y = {}(x, s, z, w, s, z, s, z)", {"w": ones("uint8", 6), **SCALE}),
    "QLinearLeakyRelu": (BYTES, "y = {}(x, s, z, s, z)", SCALE),
    "QLinearSigmoid": (BYTES, "y = {}(x, s, z, s, z)", SCALE),
    "QLinearSoftmax": (BYTES, "y = {}<opset = 13>(x, s, z, s, z)", SCALE),
    "QLinearConcat": (BYTES, "y = {}<axis = 2>(s, z, x, s, z, x, s, z)", SCALE),
    "QLinearWhere": (BYTES, "y = {}(c, x, s, z, x, s, z, s, z)", {"c": ones("bool", 1), **SCALE}),
    "QLinearAveragePool": (BYTES, "y = {}<kernel_shape = [3, 3]>(x, s, z, s, z)", SCALE),
    "QLinearAveragePool of last channels": (
        BYTES, "y = {}<kernel_shape = [3, 3], channels_last = 1>(x, s, z, s, z)", SCALE),
    "QLinearGlobalAveragePool": (BYTES, "y = {}(x, s, z, s, z)", SCALE),
    "GatherBlockQuantized": ("int64[2,3] x", "y = {}<block_size = 16>(w, x, s)", {
        "w": ones("uint8", 10, 16), "s": ones("float32", 10, 2)}),
    "GatherBlockQuantized by columns": (
        "int64[2,3] x", "y = {}<block_size = 16, gather_axis = 1, quantize_axis = 0>(w, x, s)",
        {"w": None, "s": ones("float32", 1, 10)}),
    "EmbedLayerNormalization": ("int32[2,5] x", "y, m, e = {}(x, x, w, p, t, g, g)", {
        "w": ones("float32", 9, 8), "p": ones("float32", 6, 8), "t": ones("float32", 3, 8),
        "g": ones("float32", 8)}),
    "GroupQueryAttention": (
        "float[2,4,64] x",
        "y, k, v = {}<num_heads = 4, kv_num_heads = 4>(x, x, x, '', '', l, t)",
        {"l": np.array([3, 3], dtype=np.int32), "t": np.array(4, dtype=np.int32)}),
    "GroupQueryAttention packed": (
        "float[2,4,64] x",
        "y, k, v = {}<num_heads = 4, kv_num_heads = 2>(x, '', '', '', '', l, t)",
        {"l": np.array([3, 3], dtype=np.int32), "t": np.array(4, dtype=np.int32)}),
    "GroupQueryAttention with a past": (
        "float[2,1,64] x",
        "y, k, v = {}<num_heads = 4, kv_num_heads = 4>(x, x, x, p, p, l, t)",
        {"p": ones("float32", 2, 4, 3, 16), "l": np.array([3, 3], dtype=np.int32),
         "t": np.array(4, dtype=np.int32)}),
    "RotaryEmbedding": ("float[2,4,64] x", "y = {}<num_heads = 4>(x, p, c, c)", {
        "p": ones("int64", 1), "c": ones("float32", 9, 8)}),
    "SkipLayerNormalization": (X, "y, a, b, c = {}(x, x, g)", {"g": ones("float32", 8)}),
    "MoE": ("float[4,8] x", "y = {}<k = 2>(x, r, f, '', g)", {
        "r": ones("float32", 4, 3), "f": ones("float32", 3, 16, 8),
        "g": ones("float32", 3, 8, 16)}),
    "nchwc.ReorderInput": (IMAGE, "y = {}(x)", {}),
    "nchwc.ReorderInput of last channels": (
        "float[1,8,8,16] x", "y = {}<channels_last = 1>(x)", {}),
    "nchwc.ReorderOutput": (IMAGE, "y = {}<channels = 12>(x)", {}),
    "nchwc.ReorderOutput to last channels": (
        IMAGE, "y = {}<channels = 12, channels_last = 1>(x)", {}),
    "nchwc.Conv": (IMAGE, "y = {}<pads = [1, 1, 0, 0]>(x, k)", {
        "k": ones("float32", 32, 16, 3, 3)}),
    "nchwc.MaxPool": (IMAGE, "y = {}<kernel_shape = [2, 2], strides = [2, 2]>(x)", {}),
    "nchwc.AveragePool": (IMAGE, "y = {}<kernel_shape = [3, 2]>(x)", {}),
    "nchwc.GlobalAveragePool": (IMAGE, "y = {}(x)", {}),
    "nchwc.Upsample": (IMAGE, "y = {}<scales = [1, 1, 2, 3]>(x)", {}),
}  # fmt: skip
FLOATS = [0.5, 1.0, 2.0, 4.0]
TREE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
LABELS = {"keys_int64s": [0, 1]}
SVM = {"coefficients": [1.0] * 3, "kernel_type": "LINEAR", "kernel_params": [0.1, 0.0, 3.0]}
# Type of the input, outputs, attributes.
ML = {
    "Scaler": (1, 1, {"offset": FLOATS, "scale": FLOATS}),
    "Normalizer": (1, 1, {"norm": "L2"}),
    "Binarizer": (1, 1, {"threshold": 0.5}),
    "Imputer": (1, 1, {"imputed_value_floats": FLOATS}),
    "LabelEncoder": (7, 1, {**LABELS, "values_strings": ["a", "b"]}),
    "LabelEncoder of floats": (7, 1, {**LABELS, "values_floats": [0.5, 1.0]}),
    "OneHotEncoder": (7, 1, {"cats_int64s": [0, 1, 2]}),
    "CategoryMapper": (7, 1, {"cats_int64s": [0, 1], "cats_strings": ["a", "b"]}),
    "FeatureVectorizer": (1, 1, {"inputdimensions": [4]}),
    "LinearRegressor": (1, 1, {"coefficients": FLOATS * 2, "targets": 2}),
    "LinearClassifier": (1, 2, {
        "coefficients": FLOATS * 3, "intercepts": [0.0] * 3, "classlabels_ints": [0, 1, 2],
        "post_transform": "SOFTMAX"}),
    "LinearClassifier of two": (1, 2, {
        "coefficients": FLOATS, "intercepts": [0.0], "classlabels_strings": ["a", "b"]}),
    "SVMRegressor": (1, 1, {
        "coefficients": [1.0], "support_vectors": FLOATS, "n_supports": 1, "rho": [0.1],
        "kernel_type": "LINEAR", "kernel_params": [0.1, 0.0, 3.0]}),
    "SVMClassifier": (1, 2, {
        "coefficients": [1.0] * 6, "support_vectors": FLOATS * 3, "vectors_per_class": [1, 1, 1],
        "rho": [0.1] * 3, "classlabels_ints": [0, 1, 2], "kernel_type": "LINEAR",
        "kernel_params": [0.1, 0.0, 3.0]}),
    "TreeEnsembleRegressor": (1, 1, {
        **TREE, "n_targets": 2, "target_ids": [0, 1], "target_nodeids": [1, 2],
        "target_treeids": [0, 0], "target_weights": [1.0, 2.0]}),
    "TreeEnsembleClassifier": (1, 2, {
        **TREE, "class_ids": [0, 1], "class_nodeids": [1, 2], "class_treeids": [0, 0],
        "class_weights": [1.0, 2.0], "classlabels_int64s": [0, 1]}),
}  # fmt: skip


def contrib(name: str) -> onnx.ModelProto:
    """A model of one operator of ONNX Runtime, with one of ONNX after it."""
    declared, node, weights = CONTRIB[name]
    op = name.partition(" ")[0]
    domain = f"{MS}.nchwc" if op.startswith("nchwc.") else MS
    line = node.replace("{}", f"{domain}.{op.removeprefix('nchwc.')}").replace("''", '""')
    line += " out = Identity(y)"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17, "{MS}" : 1, "{MS}.nchwc" : 1]>'
        f"g ({declared}) => (float[p] out) {{ {line} }}"
    )
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="out"))  # other outputs are read by nobody
    for key, value in weights.items():
        if value is None:
            model.graph.initializer.append(
                helper.make_tensor(key, onnx.TensorProto.UINT4, [16, 10], [1] * 160)
            )
        elif re.search(rf"[(,] ?{key}[,)]", line):
            model.graph.initializer.append(numpy_helper.from_array(value, key))
    return model


def of_ml(name: str) -> onnx.ModelProto:
    """A model of one operator of ai.onnx.ml, with one of ONNX after it."""
    element, count, attributes = ML[name]
    outputs = ["y", "s"][:count]
    nodes = [
        helper.make_node(name.partition(" ")[0], ["x"], outputs, domain="ai.onnx.ml", **attributes),
        helper.make_node("Identity", ["y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", element, [2, 4])],
        [onnx.ValueInfoProto(name=n) for n in ("z", *outputs[1:])],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


MODELS = {
    **dict.fromkeys(CONTRIB, contrib),
    **dict.fromkeys(ML, of_ml),
}


RULED = {
    *ML, "BiasGelu", "FastGelu", "Inverse", "Trilu", "FusedConv", "FusedGemm", "FusedMatMul",
    "FusedMatMul transposed batch", "FusedMatMul broadcast", "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat", "QLinearAdd", "MoE", "nchwc.Conv", "nchwc.MaxPool",
}  # fmt: skip
"""Those that need nothing of ONNX Runtime."""


@pytest.mark.parametrize("name", MODELS)
def test_types_are_those_of_a_run(name, load):
    model = MODELS[name](name)
    ruled = load(model, "--shapes", "infer" if name in RULED else "symbolic").tensors
    known = types_of_a_run(model)
    for tensor in ruled:
        if tensor["kind"] == "activation":
            shown = tensor.get("dtype"), tensor.get("shape")
            assert shown == known[tensor["name"]], tensor["name"]


def types_of_a_run(model: onnx.ModelProto) -> dict[str, tuple[str, list[int]]]:
    """Types that a run gives, whatever is inferred."""
    names = [name for node in model.graph.node for name in node.output if name]
    types, _ = shapes_by_running(model, names, {}, Path())
    return {name: (kind.dtype, list(kind.shape)) for name, kind in types.items()}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("float[2,3,8] x) => (float y) { y = com.microsoft.BiasSoftmax(x, x) }", [2, 3, 8]),
        (
            "float16[1,9,9,4] x, float16[6,4,3,3] k) => (float16 y)"
            "{ y = com.microsoft.NhwcConv<strides = [2, 2]>(x, k) }",
            [1, 4, 4, 6],
        ),
    ],
)
def test_rules_for_what_only_gpus_run(text, shape, load):
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17, "{MS}" : 1]> g ({text}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    got = load(model)
    assert got.tensor("y")["shape"] == shape
    assert got.err == ""


@pytest.mark.parametrize(
    ("key", "labels"), [("classlabels_int64s", [0, 1]), ("classlabels_strings", ["a", "b"])]
)
def test_lists_of_maps_have_a_size(key, labels, load):
    """Two rows of two numbers; a run would add what their keys take."""
    model = of_ml("LinearClassifier of two")
    zipped = helper.make_node("ZipMap", ["s"], ["z"], domain="ai.onnx.ml", **{key: labels})
    model.graph.node[1].CopyFrom(zipped)
    got = load(model)
    assert got.tensor("z")["dtype"] == "sequence"
    assert got.tensor("z")["size_bytes"] == 16
    assert got.err == ""


@pytest.mark.parametrize("shapes", ["infer", "symbolic"])
def test_the_domain_is_part_of_the_name(shapes, load):
    """ONNX's own Attention behind an operator of ONNX Runtime, and one that cannot run here."""
    text = """<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>
    g (float[1,4,64] x, float[4,8] r, float[8,32,64] f, float[8,64,32] h, float[64,16] w)
    => (float[n] y) {
      e = com.microsoft.MoE <k = 2> (x, r, f, "", h)
      n = com.microsoft.GatedAdd (e, e)
      k = MatMul (n, w)
      a = Attention <kv_num_heads = 2, q_num_heads = 8> (n, k, k)
      u = com.microsoft.PackedAttention (a)
      y = Relu (a)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    got = load(model, "--shapes", shapes)
    for name in ("e", "n", "a", "y"):
        assert got.tensor(name)["shape"] == [1, 4, 64], name


@pytest.mark.parametrize(
    "name", ["FusedConv", "FusedMatMul", "FusedGemm", "GroupQueryAttention", "Scaler"]
)
def test_models_of_such_operators_are_split(name, save):
    """No size is 0, and two stages make what the model makes."""
    imported = dnnp("import", save(MODELS[name](name)))
    assert imported.err == ""
    assert all(t["size_bytes"] > 0 for t in imported.records("tensor"))
    assert all("shape" in t and "dtype" in t for t in imported.records("tensor"))
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform", stdin=imported.out)
    assert len(plan.records("stage")) == 2
    done = dnnp("run", "-q", "-n", "1", "--warmup", "0", "--verify", stdin=plan.out)
    assert done.status == 0, done.err
