"""Random inputs that attention and its tables accept; sequences and optionals that are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from dnnp import load_stages
from dnnp.core.model.errors import FormatError
from dnnp.core.runtime.model.inputs import bind_names, check_sample, input_specs, random_inputs
from dnnp.formats.tensors import read_inputs
from support.run import dnnp

GQA = "com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 4>"
TABLES = {"w": (1000, 8), "p": (64, 8), "t": (2, 8), "g": (8,)}
MODELS = {
    "segments and positions": (
        "int32[2,16] ids, int32[2,16] kinds, int32[2,16] where",
        'y, m = com.microsoft.EmbedLayerNormalization(ids, kinds, w, p, t, g, g, "", where)',
        TABLES,
    ),
    "lengths of keys": (
        "float[2,4,64] x, int32[2] some, int32 all",
        f'y, k, v = {GQA} (x, x, x, "", "", some, all)',
        {},
    ),
    "lengths of keys after others": (
        "float[2,1,64] x, float[2,4,7,16] past, int32[2] some, int32 all",
        f"y, k, v = {GQA} (x, x, x, past, past, some, all)",
        {},
    ),
    "a mask that is counted": (
        "float[2,4,64] x, int64[2,4] attention_mask",
        "a = Constant <value_ints = [1]> () n = ReduceSum <keepdims = 0> (attention_mask, a)"
        " m = Sub(n, a) s = Cast <to = 6> (m) h = Shape <start = 1> (attention_mask)"
        " c = Squeeze(h) t = Cast <to = 6> (c)"
        f' y, k, v = {GQA} (x, x, x, "", "", s, t)',
        {},
    ),
    "ends of a mask": (
        "float[2,4,8] x, int32[2] ends",
        "y = com.microsoft.Attention <num_heads = 2> (x, w, b, ends)",
        {"w": (8, 24), "b": (24,)},
    ),
    "lengths of padded keys": (
        "float[2,4,8] x, int32[2] padding",
        'y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, "", padding)',
        {},
    ),
    "positions of a rotation": (
        "float[2,4,64] x, int64[2,4] positions",
        "y = com.microsoft.RotaryEmbedding <num_heads = 4> (x, positions, c, c)",
        {"c": (5, 8)},
    ),
    "the first position of a rotation": (
        "float[2,4,64] x, int64[1] position",
        "y = com.microsoft.RotaryEmbedding <num_heads = 4> (x, position, c, c)",
        {"c": (5, 8)},
    ),
    "positions of ONNX's rotation": (
        "float[2,4,64] x, int64[2,4] positions",
        "y = RotaryEmbedding <num_heads = 4> (x, c, c, positions)",
        {"c": (5, 8)},
    ),
    "a packed table": (
        "int64[2,40] ids",
        "y = com.microsoft.GatherBlockQuantized <gather_axis = 0, block_size = 16> (q, ids, s)",
        {"q": (6, 16), "s": (6, 2)},
    ),
}


def model_of(name: str) -> onnx.ModelProto:
    """One of the models, and a Relu after it."""
    inputs, node, stored = MODELS[name]
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>'
        f"g ({inputs}) => (float[n] z) {{ {node} z = Relu(y) }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    for key, shape in stored.items():
        dtype = np.uint8 if key == "q" else np.float32
        array = (4 * rng.standard_normal(shape)).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, key))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_inputs_that_attention_accepts(name: str, tmp_path: Path) -> None:
    """Imported with every size known, and run as two stages."""
    path = tmp_path / "m.onnx"
    onnx.save(model_of(name), path)
    imported = dnnp("import", path)
    assert imported.err == ""
    assert imported.status == 0
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform", stdin=imported.out)
    done = dnnp("run", "-q", "-n", "1", "--warmup", "0", "--verify", stdin=plan.out)
    assert done.status == 0, done.err


def test_ids_reach_all_of_their_tables() -> None:
    model = model_of("segments and positions")
    drawn = [random_inputs(model, seed) for seed in range(40)]
    most = [max(int(sample[name].max()) for sample in drawn) for name in ("kinds", "where")]
    assert most == [1, 63]
    assert max(int(sample["ids"].max()) for sample in drawn) > 900


SEQUENCE = """<ir_version: 9, opset_import: ["" : 17]>
g (seq(float[2,3]) s) => (float[n,3] y) { c = ConcatFromSequence <axis = 0> (s) y = Neg(c) }"""


@pytest.mark.parametrize("name", ["", "s"])
@pytest.mark.parametrize("rows", [(), (1, 4)])
def test_sequences_from_files(name: str, rows: tuple[int, ...], tmp_path: Path) -> None:
    arrays = [np.full((n, 3), n, dtype=np.float32) for n in rows]
    held = numpy_helper.from_list(arrays, name or None, onnx.SequenceProto.TENSOR)
    (tmp_path / "input_0.pb").write_bytes(held.SerializeToString())
    specs = input_specs(onnx.parser.parse_model(SEQUENCE))
    sample = bind_names(read_inputs(str(tmp_path)), specs, "folder")
    assert [array.tolist() for array in sample["s"]] == [array.tolist() for array in arrays]
    with pytest.raises(FormatError, match="dtype int64, expected float32"):
        check_sample({"s": [np.zeros(3, np.int64)]}, specs, "")


def test_a_sequence_is_run_on(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SEQUENCE)
    onnx.save(model, tmp_path / "m.onnx")
    arrays = [np.ones((n, 3), dtype=np.float32) for n in (1, 4)]
    path = tmp_path / "s.pb"
    path.write_bytes(numpy_helper.from_list(arrays, "s").SerializeToString())
    imported = dnnp("import", tmp_path / "m.onnx", "--inputs", path)
    assert imported.err == ""
    assert {t["name"]: t.get("shape") for t in imported.records("tensor")}["c"] == [5, 3]
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform", stdin=imported.out)
    words = ("-n", "1", "--warmup", "0", "--verify", "--inputs", path)
    assert dnnp("run", "-q", *words, stdin=plan.out).status == 0


def test_files_that_are_neither_tensor_nor_sequence(tmp_path: Path) -> None:
    path = tmp_path / "x.pb"
    wrong = onnx.SequenceProto(elem_type=4, map_values=[onnx.MapProto(name="m")])
    for data in (b"\xff", b"\x1a\x02\x08\x01", wrong.SerializeToString()):
        path.write_bytes(data)
        with pytest.raises(FormatError, match="not an ONNX tensor"):
            read_inputs(str(path))


def test_optional_inputs_of_stages(tmp_path: Path) -> None:
    """Given as a tensor, as None, and not at all."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[2] x, optional(float[2]) o) => (float[2] y) {
          h = OptionalHasElement(o)
          w = If (h) <
            then_branch = t () => (float[2] v) { e = OptionalGetElement(o) v = Neg(e) },
            else_branch = f () => (float[2] u) { u = Abs(x) }>
          y = Neg(w)
        }"""
    )
    specs = input_specs(model)
    assert check_sample({"x": np.zeros(2, np.float32)}, specs, "")["o"] is None
    onnx.save(model, tmp_path / "m.onnx")
    plan = dnnp("partition", "-q", "-k", "2", "--method", "uniform",
                stdin=dnnp("import", "-q", tmp_path / "m.onnx").out)  # fmt: skip
    done = dnnp("export", "--to", "stages", "-o", tmp_path / "out", stdin=plan.out)
    assert done.status == 0, done.err
    stages = load_stages(tmp_path / "out")
    x = np.array([3.0, -4.0], np.float32)
    assert stages.run({"x": x, "o": -x})["y"].tolist() == [-3.0, 4.0]
    for sample in ({"x": x, "o": None}, {"x": x}):
        assert stages.run(sample)["y"].tolist() == [-3.0, -4.0]


def test_bools_that_attention_reads() -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Attention", ["q", "q", "q", "mask"], ["y"], kv_num_heads=2,
                              q_num_heads=2)],
            "g",
            [helper.make_tensor_value_info("q", 1, [1, 4, 8]),
             helper.make_tensor_value_info("mask", 9, [4, 4])],
            [onnx.ValueInfoProto(name="y")],
        ),
        opset_imports=[helper.make_opsetid("", 23)], ir_version=11,
    )  # fmt: skip
    for seed in range(20):
        assert random_inputs(model, seed)["mask"].any(axis=1).all()


def test_an_optional_of_a_sequence_is_read(tmp_path: Path) -> None:
    path = tmp_path / "o.pb"
    arrays = [np.arange(3, dtype=np.float32)]
    path.write_bytes(numpy_helper.from_optional(arrays, "o").SerializeToString())
    ((name, found),) = read_inputs(str(path)).items()
    assert name == "o"
    np.testing.assert_array_equal(found[0], arrays[0])
    stored = numpy_helper.from_array(np.arange(3, dtype=np.int8), "t")
    path.write_bytes(stored.SerializeToString())
    assert list(read_inputs(str(path))) == ["t"]
