"""Models that are refused, their messages and statuses."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from onnx import helper

from dnnp.options.table import MODEL_FORMATS
from support.run import dnnp, dnnp_process

GOOD = "g (float[2] x) => (float[2] y) { a = Relu(x) y = Exp(a) }"


def parsed(text: str = GOOD) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello, this is no model", "not an ONNX model"),
        (b'{"nodes": []}', "not an ONNX model"),
        (bytes(range(256)), "not an ONNX model"),
        (b"\x08\x08", "it holds no graph"),
        (b"\x08\x08\x3a\x00", "was the file cut off?"),
        (parsed().SerializeToString()[:-40], "not an ONNX model"),
        (parsed().SerializeToString()[:-6], "was the file cut off?"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, data: bytes, reason: str):
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    result = dnnp("import", path)
    assert (result.status, result.out) == (3, b"")
    assert result.err.startswith(f"dnnp-import: {path}: ")
    assert reason in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"hello", "or cut off"),
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(26) + b"archive/data.pkl", "torch.onnx.export"),
        (b"PK\x03\x04" + bytes(26) + b"a/b.txt", "a zip archive"),
        (b"\x89HDF\r\n\x1a\n", "tf2onnx"),
        (b"\x1c\0\0\0TFL3", "tf2onnx"),
    ],
)
def test_an_ending_that_names_no_format_says_what_is_read(tmp_path: Path, data: bytes, hint: str):
    path = tmp_path / "graph.xyz"
    path.write_bytes(data)
    result = dnnp("import", path)
    assert result.status == 3
    assert result.err.startswith(f"dnnp-import: {path}: not an ONNX model")
    assert result.err.count("\n") == 1
    assert hint in result.err
    for name in MODEL_FORMATS:
        assert name in result.err.partition("; read are ")[2]
    assert result.err.endswith(" or --from NAME\n")
    named = dnnp("import", "--from", "onnx", path)
    assert (named.status, "--from" in named.err) == (3, False)


@pytest.mark.parametrize("name", ["absent.onnx", "absent.json", "absent.pbtxt", "."])
def test_missing_files(tmp_path: Path, name: str):
    result = dnnp("import", tmp_path / name)
    assert (result.status, result.out) == (1, b"")
    assert str(tmp_path) in result.err


def test_no_standard_input_for_onnx():
    result = dnnp("import", "-", stdin=parsed().SerializeToString())
    assert result.status == 2
    assert "--from" in result.err


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("g (float[2] x) => (float[2] x) { }", "holds no operators"),
        ("g () => (float y) { y = Constant <value_float = 1.0> () }", "holds no operators"),
        (
            "g (float[2] x) => (float[2] y) { y = Add(x, q) }",
            "node 0 'Add:y' reads 'q', which nothing produces",
        ),
        ("g (float[2] x) => (float[2] z) { y = Relu(x) }", "output 'z' of the graph"),
        (
            "g (float[2] x) => (float[2] y) { y = Relu(x) y = Exp(x) }",
            "node 1 'Exp:y' writes 'y', which is already defined",
        ),
        (
            "g (float[1] x) => (float[1] y) { c = Constant <value_float = 1.0> () a = Add(x, c)"
            " c = Constant <value_float = 2.0> () y = Add(a, c) }",
            "node 2 'Constant:c' writes 'c', which is already defined",
        ),
        (
            "g (float[2] x) => (float[2] y) { x = Relu(x) y = Exp(x) }",
            "node 0 'Relu:x' writes 'x', which is already defined",
        ),
        (
            "g (float[2] x) => (float[2] y) { a = Add(x, b) b = Exp(a) y = Relu(b) }",
            "the graph has a cycle: node 0 'Add:a' -> node 1 'Exp:b' -> node 0 'Add:a'",
        ),
        ("g (float[2] x) => (float[2] y) { y = Add(x, y) }", "the graph has a cycle: node 0"),
        (
            "g (float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }",
            "input 'x' is defined twice",
        ),
    ],
)
def test_graphs_that_are_none(refuse, model, reason):
    assert reason in refuse(3, model)


def test_recursive_functions(refuse):
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["local" : 1]> f (p) => (q) { q = local.f(p) }"""
    assert "'f' calls itself" in refuse(3, text)


def test_a_chain_of_functions_too_long_to_inline(load):
    functions = [
        helper.make_function(
            "local",
            f"f{i}",
            ["p"],
            ["q"],
            [
                helper.make_node(f"f{i + 1}", ["p"], ["t"], domain="local"),
                helper.make_node(f"f{i + 1}", ["t"], ["q"], domain="local"),
            ],
            [helper.make_opsetid("local", 1)],
        )
        for i in range(40)
    ]
    last = helper.make_node("Relu", ["p"], ["q"])
    functions.append(
        helper.make_function("local", "f40", ["p"], ["q"], [last], [helper.make_opsetid("", 17)])
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="local")],
        "g",
        [value("x", 1, [2])],
        [value("y", 1, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions)
    assert "1 tensor of unknown size" in load(model).err


def test_dimensions_out_of_range(refuse):
    model = parsed()
    model.graph.initializer.add(name="w", data_type=1, dims=[-1])
    assert "initializer 'w': a dimension of -1" in refuse(3, model)
    model = parsed()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**60
    assert "larger than" in refuse(3, model)
    model = parsed()
    model.graph.initializer.add(name="w", data_type=1, dims=[2**50] * 8)
    assert "a tensor of more than 1e+100 bytes" in refuse(3, model)


def test_names_that_are_not_unicode(refuse, tmp_path: Path):
    data = parsed().SerializeToString().replace(b"Relu", b"Re\xff\xfe")
    path = tmp_path / "bytes.onnx"
    path.write_bytes(data)
    result = dnnp("import", path)
    assert result.status == 3
    assert "a name in node 0 is not UTF-8" in result.err


def test_an_input_without_a_type(refuse):
    model = parsed()
    model.graph.input[0].ClearField("type")
    assert "input 'x' has no element type" in refuse(3, model)


def test_a_model_that_crashes_shape_inference(load):
    """Two parts asked of Split, three outputs: ONNX aborts the process that infers shapes."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[6] x) => (float[2] a, float[2] c)'
        "{ a, b, c = Split <num_outputs = 2> (x) d = Relu(b) e = Relu(d) }"
    )
    got = load(model)
    assert len(got.nodes) == 3
    assert got.tensor("a")["size_bytes"] == 8
    assert "tensors of unknown size" in got.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--dim", "x"], "NAME=VALUE"),
        (["--dim", "=3"], "NAME=VALUE"),
        (["--dim", "n=-1"], "not an integer"),
        (["--dim", "n=two"], "not an integer"),
        (["--dim", "n=1e3"], "not an integer"),
        (["--dim", "n=99999999999999999999"], "not an integer"),
        (["--dim", "q=1"], "no free dimension of that name; the model has no named ones"),
        (["--dim", "x:0=3"], "no free dimension of that name"),
    ],
)
def test_bad_dimension_options(refuse, arguments, reason):
    assert reason in refuse(2, GOOD, *arguments)


def test_every_missing_dimension_is_named(refuse):
    model = parsed("g (float[n,m,3] x, float[n] z) => (float[n] y) { y = Relu(z) }")
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    model.graph.input.add(name="w").type.tensor_type.elem_type = 1
    message = refuse(2, model)
    assert message.endswith("m.onnx --dim x=1x128x3 --dim w=NxN")


def test_options_for_other_formats(tmp_path: Path):
    path = tmp_path / "w.json"
    path.write_text("{}")
    assert dnnp("import", path, "--dim", "n=1").status == 2
    assert dnnp("import", path, "--from", "tf").status == 2
    assert dnnp("import", path, "--shapes", "all").status == 2
    assert dnnp("import").status == 2


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX only")
def test_file_names_that_are_not_unicode(tmp_path: Path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.onnx")
    Path(path).write_bytes(parsed().SerializeToString())
    result = dnnp("import", path)
    assert result.status == 2
    assert "not UTF-8" in result.err


def test_as_a_process(save):
    """The real program: the stream alone on stdout, and its exit status."""
    result = dnnp_process("import", save(GOOD))
    assert result.status == 0
    assert [r["type"] for r in result.records()] == [
        "header",
        "tensor",
        "tensor",
        "tensor",
        "node",
        "node",
        "end",
    ]
    assert result.err == ""
