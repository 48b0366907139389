"""Random inputs, given inputs, and how inputs are checked against the model."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.core.runtime.model.inputs import (
    bind_names,
    check_sample,
    input_specs,
    integer_ranges,
    random_inputs,
)
from dnnp.formats.onnx.dims import bind_inputs
from dnnp.formats.tensors import read_inputs, write_outputs
from support.run import dnnp
from support.split_models import array, graph, make, node, value

I64 = TensorProto.INT64


def model_of(nodes: list, inputs: list, stored: list | None = None, **extra) -> onnx.ModelProto:
    return make(graph(nodes, "m", inputs, [value("y", None)], stored or []), **extra)


def test_every_element_type_can_be_drawn() -> None:
    kinds = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "STRING", "COMPLEX64"]
    kinds += ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
    kinds += ["FLOAT8E4M3FN"]
    numbers = [TensorProto.DataType.Value(kind) for kind in kinds]
    model = model_of([], [value(k, [40, 3], n) for k, n in zip(kinds, numbers, strict=True)])
    sample = random_inputs(model, 3)
    assert list(sample) == kinds
    for kind, number in zip(kinds, numbers, strict=True):
        drawn = sample[kind]
        assert drawn.shape == (40, 3)
        assert drawn.dtype == helper.tensor_dtype_to_np_dtype(number)
        assert len(set(drawn.ravel().tolist())) > 1, kind
    assert set(sample["INT64"].ravel()) == {0, 1}
    assert sample["UINT8"].max() > 200
    assert check_sample(sample, input_specs(model), "test").keys() == sample.keys()


def test_the_seed_decides() -> None:
    model = model_of([], [value("x", [3, 4, 50])])
    same = [random_inputs(model, [5, 1])["x"] for _ in range(2)]
    np.testing.assert_array_equal(*same)
    other = random_inputs(model, [5, 2])["x"]
    assert not np.array_equal(same[0], other)
    assert (
        abs(float(np.std(random_inputs(model_of([], [value("x", [4, 8, 64, 64])]), 0)["x"])) - 1)
        < 0.1
    )


def test_free_dimensions() -> None:
    model = model_of([], [value("a", ["batch", 3]), value("b", ["batch", None]), value("c", None)])
    plain = random_inputs(model, 0)
    assert [x.shape for x in plain.values()] == [(1, 3), (1, 1), ()]
    many = model_of([], [value("x", [f"d{i}" for i in range(19)])])
    with pytest.raises(UsageError, match=r"--dim d17=128 --dim d18=128$"):
        bind_inputs(many.graph, {}, {})
    sized = random_inputs(model, 0, dims={"batch": 4}, shapes={"b": [7, 5], "c": [2, 2]})
    assert [x.shape for x in sized.values()] == [(4, 3), (7, 5), (2, 2)]


def test_initializers_are_not_fed() -> None:
    model = model_of([], [value("x"), value("W")], [array("W", [1, 2, 3, 4])])
    assert list(random_inputs(model, 0)) == ["x"]


def test_indices_stay_inside_what_they_index() -> None:
    table = array("table", np.zeros((9, 2)))
    nodes = [
        node("Cast", ["ids"], ["wide"], to=I64),
        node("Unsqueeze", ["wide", "axes"], ["more"]),
        node("Gather", ["table", "more"], ["rows"]),
        node("Gather", ["table", "column"], ["columns"], axis=-1),
        node("Gather", ["x", "unknown"], ["picked"]),
        node("Reshape", ["rows", "shape"], ["flat"]),
        node("Identity", ["plain"], ["y"]),
    ]
    names = ("ids", "column", "unknown", "shape", "plain")
    model = model_of(
        nodes,
        [*(value(n, [200], I64) for n in names), value("x", ["n"])],
        [table, array("axes", [0], np.int64)],
    )
    assert integer_ranges(model, [s.name for s in input_specs(model)]).ranges == {
        "ids": (0, 8),
        "column": (0, 1),
        "unknown": (0, 0),
        "shape": (1, 1),
    }
    sample = random_inputs(model, 0)
    assert (sample["ids"].min(), sample["ids"].max()) == (0, 8)
    assert set(sample["plain"]) == {0, 1}


def test_indices_are_followed_into_bodies_and_functions() -> None:
    table = array("table", np.zeros((5, 2)))
    then = graph([node("Gather", ["table", "ids"], ["t"])], "then", [], [value("t", None)])
    orelse = graph([node("Neg", ["x"], ["e"])], "else", [], [value("e", None)])
    pick = helper.make_function(
        "local",
        "Pick",
        ["data", "at"],
        ["out"],
        [node("Gather", ["data", "at"], ["out"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        node("If", ["flag"], ["y"], then_branch=then, else_branch=orelse),
        node("Pick", ["table", "others"], ["z"], domain="local"),
    ]
    inputs = [
        value("ids", [3], I64),
        value("others", [3], I64),
        value("flag", [], TensorProto.BOOL),
    ]
    model = model_of(nodes, [*inputs, value("x")], [table], functions=[pick])
    assert integer_ranges(model, [s.name for s in input_specs(model)]).ranges == {
        "ids": (0, 4),
        "others": (0, 4),
    }


def test_functions_that_call_each_other_often_are_quick() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            f"F{i}",
            ["i"],
            ["o"],
            [node(f"F{i + 1}", ["i"], ["o"], domain="local") for _ in range(10)]
            if i < 30
            else [node("Gather", ["i", "i"], ["o"])],
            opsets,
        )
        for i in range(31)
    ]
    ids = value("ids", [3], I64)
    model = model_of([node("F0", ["ids"], ["y"], domain="local")], [ids], functions=functions)
    assert integer_ranges(model, ["ids"]).ranges == {"ids": (0, 2)}


def test_metadata_decide_over_guesses() -> None:
    model = model_of(
        [node("Gather", ["t", "ids"], ["y"])], [value("ids", [500], I64)], [array("t", [0] * 50)]
    )
    helper.set_model_props(model, {"dnnp.input_range.ids": "3,5"})
    assert set(random_inputs(model, 0)["ids"].tolist()) == {3, 4, 5}
    for text in ("5,3", "many", "1"):
        helper.set_model_props(model, {"dnnp.input_range.ids": text})
        with pytest.raises(FormatError, match=r"dnnp\.input_range\.ids"):
            random_inputs(model, 0)


def test_masks_are_ones_then_zeros() -> None:
    model = model_of(
        [], [value("attention_mask", [6, 10], I64), value("MASK", [4], TensorProto.BOOL)]
    )
    sample = random_inputs(model, 1)
    mask = sample["attention_mask"]
    assert (np.diff(mask, axis=1) <= 0).all()
    assert (mask.sum(axis=1) >= 5).all()
    assert sample["MASK"][0]


def test_sequences_are_drawn_and_maps_are_not() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [3])
    sample = random_inputs(model_of([], [sequence]), 0)
    assert [x.shape for x in sample["s"]] == [(3,)]
    kind = onnx.TypeProto()
    kind.map_type.key_type = I64
    kind.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(UsageError, match="input 'm' is of type map"):
        random_inputs(model_of([], [onnx.ValueInfoProto(name="m", type=kind)]), 0)


SPECS = input_specs(model_of([], [value("a", ["n", 2]), value("b", ["n"], I64)]))
GOOD = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.int64)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": np.zeros(3)}, r"the model has no input 'c' \(inputs: a, b\)"),
        ({"b": None}, "input 'b' is missing"),
        ({"a": np.zeros((3, 2))}, "input 'a': dtype float64, expected float32"),
        ({"a": np.zeros((3, 4), np.float32)}, r"input 'a': shape \[3, 4\], expected \[n, 2\]"),
        ({"a": np.zeros(3, np.float32)}, r"input 'a': shape \[3\], expected \[n, 2\]"),
        ({"b": np.zeros(4, np.int64)}, "input 'b': dimension 'n' is 4, but 3 in input 'a'"),
        ({"b": np.array(["x"] * 3)}, "input 'b': dtype <U1, expected int64"),
    ],
)
def test_wrong_inputs_are_named(change: dict, message: str) -> None:
    sample = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    with pytest.raises(FormatError, match=f"file.npz: {message}"):
        check_sample(sample, SPECS, "file.npz")


def test_tensors_without_names_go_in_order() -> None:
    for values in (list(GOOD.values()), {"0": GOOD["a"], "1": GOOD["b"]}):
        assert bind_names(values, SPECS, "set").keys() == GOOD.keys()
    with pytest.raises(FormatError, match="1 tensors without names, but the model has 2"):
        bind_names([GOOD["a"]], SPECS, "set")
    with pytest.raises(FormatError, match="no input '0'"):
        bind_names({"0": GOOD["a"], "1": GOOD["b"]}, SPECS, "set.npz")


def test_tensor_files_are_read(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    words = np.array(["a", "bc"], dtype=object)
    np.savez(tmp_path / "all.npz", x=x, y=x[0])
    np.save(tmp_path / "one.npy", x)
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
    folder = tmp_path / "set"
    folder.mkdir()
    for i, tensor in enumerate([x, words]):
        blob = numpy_helper.from_array(tensor).SerializeToString()
        (folder / f"input_{i}.pb").write_bytes(blob)
    named = read_inputs(str(tmp_path / "all.npz"))
    assert list(named) == ["x", "y"]
    np.testing.assert_array_equal(named["x"], x)
    np.testing.assert_array_equal(read_inputs(str(tmp_path / "one.npy"))[0], x)
    np.testing.assert_array_equal(read_inputs(str(tmp_path / "x.pb"))["x"], x)
    first, second = read_inputs(str(folder))
    np.testing.assert_array_equal(first, x)
    assert second.tolist() == ["a", "bc"]


def test_bad_tensor_files_are_named(tmp_path: Path) -> None:
    pickled = np.array([{}], dtype=object)
    np.save(tmp_path / "pickle.npy", pickled)
    np.savez(tmp_path / "pickle.npz", x=pickled)
    whole = tmp_path / "whole.npy"
    np.save(whole, np.zeros(1000))
    (tmp_path / "cut.npy").write_bytes(whole.read_bytes()[:900])
    for name in (
        "junk.npz",
        "junk.npy",
        "junk.pb",
        "junk.txt",
        "empty.npz",
        "empty.npy",
        "empty.pb",
    ):
        (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"junk\x00\xff" * 20)
    outside = TensorProto(name="x", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    (tmp_path / "outside.pb").write_bytes(outside.SerializeToString())
    short = TensorProto(name="x", data_type=1, dims=[100], raw_data=b"1234")
    (tmp_path / "short.pb").write_bytes(short.SerializeToString())
    (tmp_path / "hollow").mkdir()
    bad = sorted(p.name for p in tmp_path.iterdir() if p != whole)
    assert len(bad) == 13
    for name in bad:
        with pytest.raises(FormatError, match=name) as caught:
            read_inputs(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    with pytest.raises(InputFileError, match="No such file"):
        read_inputs(str(tmp_path / "none.npz"))


def test_outputs_are_written_by_name(tmp_path: Path) -> None:
    x = np.arange(3.0)
    words = np.array(["a", "bc"], dtype=object)
    with open(tmp_path / "one.npz", "wb") as file:
        write_outputs(file, {0: {"y": x, "list": [x, x], "words": words}})
    one = read_inputs(str(tmp_path / "one.npz"))
    assert sorted(one) == ["list/0", "list/1", "words", "y"]
    with open(tmp_path / "two.npz", "wb") as file:
        write_outputs(file, {0: {"y": x}, 1: {"y": x + 1}})
    two = read_inputs(str(tmp_path / "two.npz"))
    np.testing.assert_array_equal(two["1/y"], x + 1)
    small = x.astype(helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E5M2))
    with open(tmp_path / "small.npz", "wb") as file:
        write_outputs(file, {0: {"y": small}})
    read = read_inputs(str(tmp_path / "small.npz"))["y"]
    assert read.view(small.dtype).tolist() == [0, 1, 2]


def test_a_negative_dimension_is_a_free_one() -> None:
    model = model_of([], [value("x", [-1, 3])])
    assert random_inputs(model, 0)["x"].shape == (1, 3)
    assert random_inputs(model, 0, shapes={"x": [4, 3]})["x"].shape == (4, 3)


@pytest.mark.parametrize("shape", [[2**40, 2**40], [1] * 70])
def test_shapes_that_no_array_has(shape: list[int]) -> None:
    with pytest.raises(UsageError, match=r"input 'x' of shape .* cannot be drawn"):
        random_inputs(model_of([], [value("x", shape)]), 0)


def test_metadata_beyond_the_element_type() -> None:
    model = model_of([], [value("b", [9], TensorProto.UINT8), value("f", [9])])
    helper.set_model_props(
        model, {"dnnp.input_range.b": "300,400", "dnnp.input_range.f": f"0,{10**400}"}
    )
    sample = random_inputs(model, 0)
    assert set(sample["b"].tolist()) == {255}
    assert np.isfinite(sample["f"]).all()


def test_types_that_no_file_holds() -> None:
    model = model_of([], [value("x", [1], 77)])
    with pytest.raises(UsageError, match="input 'x' is of type untyped"):
        random_inputs(model, 0)
    with pytest.raises(FormatError, match="input 'x' is of type untyped, which cannot be given"):
        check_sample({"x": np.zeros(1)}, input_specs(model), "test")


@pytest.mark.parametrize("dtype", [np.float32, "U4"])
def test_a_file_is_refused_by_its_header(tmp_path: Path, dtype: str) -> None:
    """A small file may unpack to more than the machine has: nothing is unpacked before."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros(1 << 22, dtype))
    assert path.stat().st_size < 1 << 17
    kind = TensorProto.STRING if dtype == "U4" else TensorProto.FLOAT
    specs = input_specs(model_of([], [value("x", [2], kind)]))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"'x': shape \[4194304\], expected \[2\]"):
            read_inputs(str(path), admit=lambda values: bind_names(values, specs, str(path)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 20)}
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    for name in ("x.npz", "x.npy"):
        with pytest.raises(FormatError, match="shorter than float32 of shape"):
            read_inputs(str(tmp_path / name))


def test_a_long_header_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x02\x00" + (1 << 24).to_bytes(4, "little")
        archive.writestr("x.npy", start + b" " * (1 << 24))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="a header of 16777216 bytes; at most 10000 are read"):
            read_inputs(str(tmp_path / "x.npz"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "input_0.pb").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.npz", folder):
        with pytest.raises(InputFileError, match="not a regular file"):
            read_inputs(str(path))


def test_a_sample_that_fails_is_named(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,m] x) => (float[n,k] z) <float[3,2] W = {1,2,3,4,5,6}> {
          a = MatMul(x, W)
          z = Exp(a)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "good.npz", x=np.ones((1, 3), np.float32))
    np.savez(tmp_path / "bad.npz", x=np.ones((1, 5), np.float32))
    imported = dnnp("import", "--dim", "n=1", "--dim", "m=3", tmp_path / "m.onnx")
    plan = dnnp("partition", "-q", "-k", "2", stdin=imported.out)
    given = [word for name in ("good", "bad") for word in ("--inputs", tmp_path / f"{name}.npz")]
    done = dnnp("run", "-q", *given, stdin=plan.out)
    assert done.status == 1
    where = f"dnnp-run: {tmp_path / 'bad.npz'}: stage 0: sample 1: "
    assert done.err.startswith(f"{where}ONNX Runtime fails: ")
