"""Bad files, options, models and inputs, through the real commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuzz.onnx_models import models
from onnx import TensorProto, helper, parser

from support import seeds
from support.run import Result, dnnp

STREAM = seeds.encode(seeds.graph_records())


def one_line(result: Result, command: str, status: int, message: str) -> None:
    """The command printed nothing but one message, and ended with a status."""
    assert result.status == status, result.err
    assert message in result.err
    assert result.err.startswith(f"dnnp-{command}: ")
    assert result.err.count("\n") == 1, result.err
    assert result.out == b""


FIT = ("-k", "2", "--cpus", "0", "--memory")

OPTIONS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "unknown device": (
        ("profile", "--device", "nosuch"),
        2,
        "unknown device 'nosuch'; known: ",
    ),
    "device file missing": (("profile", "--device", "/no/such.json"), 1, "/no/such.json: No such"),
    "rules missing": (("coarsen", "--rules", "/no/such.json"), 1, "/no/such.json: No such file"),
    "rules unknown": (("coarsen", "--rules", "nosuch"), 2, "no rules named 'nosuch'"),
    "k = 0 without CPUs": (("partition", "-k", "0", "--cpus", "0"), 2, "k is 0 and there are no"),
    "capacity fits nothing": (("partition", *FIT, "1"), 4, "infeasible: "),
    "capacity fits no split": (("partition", *FIT, "190"), 4, "infeasible: "),
    "devices missing": (("partition", "--devices", "/no/such"), 1, "/no/such: No such file"),
    "split missing": (("partition", "--eval", "/no/such"), 1, "/no/such: No such file"),
    "folder as stream": (("check", "/"), 1, "/: Is a directory"),
    "output folder missing": (("coarsen", "-o", "/no/such/file"), 1, "/no/such/file: No such"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    (command, *arguments), status, message = OPTIONS[name]
    result = dnnp(command, "-q", *arguments, stdin=STREAM)
    one_line(result, command, status, message)


USAGE: dict[str, tuple[tuple[str, ...], str]] = {
    "k < 0": (("partition", "-k", "-1"), "argument -k: -1 is below 0"),
    "k is no number": (("partition", "-k", "two"), "argument -k: 'two' is not a whole number"),
    "k is huge": (("partition", "-k", str(10**30)), "argument -k: "),
    "memory is no size": (("partition", "-k", "1", "--memory", "big"), "'big' is not a size"),
    "bandwidth is NaN": (("partition", "-k", "1", "--bandwidth", "nan"), "'nan' is not above 0"),
    "unknown option": (("check", "--nosuch"), "unknown option '--nosuch'"),
    "abbreviated option": (("check", "--js"), "unknown option '--js'; did you mean '--json'?"),
    "unknown method": (("partition", "-k", "1", "--method", "magic"), "invalid choice: 'magic'"),
    "no model": (("import",), "nothing to import: give MODEL or --synthetic"),
}


@pytest.mark.parametrize("name", USAGE)
def test_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (command, *arguments), message = USAGE[name]
    result = dnnp(command, *arguments, stdin=STREAM)
    assert (result.status, result.out) == (2, b"")
    assert message in result.err + capsys.readouterr().err


def test_no_k_and_no_devices() -> None:
    records = [r for r in seeds.graph_records() if r["type"] != "device"]
    result = dnnp("partition", stdin=seeds.encode(records))
    one_line(result, "partition", 2, "how many devices? give -k N or --devices FILE")


def test_k_of_zero_with_a_cpu() -> None:
    result = dnnp("partition", "-k", "0", "--cpus", "1", stdin=STREAM)
    assert result.status == 0, result.err
    assert [stage["device"] for stage in result.records("stage")] == ["cpu/0"]
    assert dnnp("check", stdin=result.out).status == 0


@pytest.mark.parametrize("k", ["7", "1000000", str(2**53 - 1)])
@pytest.mark.parametrize("method", ["slice", "uniform", "params"])
def test_k_larger_than_n(k: str, method: str) -> None:
    result = dnnp("partition", "-k", k, "--method", method, stdin=STREAM)
    assert result.status == 0, result.err
    assert 1 <= len(result.records("stage")) <= 6
    assert f"k = {k}, but there are only 6 units" in result.err
    assert dnnp("check", stdin=result.out).status == 0


def _save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def _symbolic(other: str = "z") -> onnx.ModelProto:
    inputs = f"float[batch, 4] x, float[batch, seq] {other}"
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g ({inputs}) => (float[batch, 4] y) {{ y = Relu(x) }}"
    )


def _cyclic() -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(models()["mlp"])
    model.graph.node[0].input[0] = "r"
    return model


def _weight(elem_type: int, sizes: list[int]) -> Callable[[], bytes]:
    """A model whose first weight has another element type and other dimensions."""

    def build() -> bytes:
        model = onnx.ModelProto()
        model.CopyFrom(models()["mlp"])
        model.graph.initializer[0].data_type = elem_type
        model.graph.initializer[0].dims[:] = sizes
        return model.SerializeToString()

    return build


def _input(elem_type: int, sizes: list[int]) -> Callable[[], bytes]:
    """A model whose input has another element type and other dimensions."""

    def build() -> bytes:
        model = onnx.ModelProto()
        model.CopyFrom(models()["mlp"])
        model.graph.input[0].type.CopyFrom(helper.make_tensor_type_proto(elem_type, sizes))
        return model.SerializeToString()

    return build


FILES: dict[str, tuple[bytes | Callable[[], bytes], int, str]] = {
    "empty": (b"", 3, "not an ONNX model: the file is empty"),
    "text": (b"hello, world\n", 3, "not an ONNX model"),
    "a stream": (STREAM, 3, "not an ONNX model"),
    "cut off": (lambda: models()["mlp"].SerializeToString()[:-30], 3, "not an ONNX model"),
    "symbolic": (
        lambda: _symbolic().SerializeToString(), 2,
        "the inputs have free dimensions: x[batch, 4], z[batch, seq]; give them sizes that suit",
    ),
    "caches": (
        lambda: _symbolic("past").SerializeToString(), 2,
        "--dim batch=1 --dim seq=128, or, to generate: --phase prompt:seq=512 --phase token:past=",
    ),
    "dimensions that follow": (
        _input(1, ["past length", "past + seq", "2*seq"]), 2,
        "model.onnx --dim 'past length'=1 --dim past=128 --dim seq=128",
    ),
    "2,000 dimensions": (
        _input(1, [2] * 2000), 3, "value 'x': a tensor of more than 1e+100 bytes",
    ),
    "2,000 dimensions of a weight": (
        _weight(1, [2] * 2000), 3, "initializer 'w1': a tensor of more than 1e+100 bytes",
    ),
    "huge dimension": (
        _weight(1, [4, 2**63 - 1]), 3,
        "initializer 'w1': a dimension of 9223372036854775807; they lie between 0 and ",
    ),
    "negative dimension": (_weight(1, [4, -8]), 3, "initializer 'w1': a dimension of -8; they"),
    "weight without a type": (_weight(0, [4]), 3, "initializer 'w1': unknown element type 0"),
    "unknown type of a weight": (_weight(99, [4]), 3, "initializer 'w1': unknown element type 99"),
    "unknown type of an input": (_input(99, [4]), 3, "input 'x': unknown element type 99"),
    "cycle": (lambda: _cyclic().SerializeToString(), 3, "the graph has a cycle: node "),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_model_files(name: str, tmp_path: Path) -> None:
    content, status, message = FILES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content())
    one_line(dnnp("import", path), "import", status, message)


def test_missing_model_file() -> None:
    one_line(dnnp("import", "/no/such.onnx"), "import", 1, "/no/such.onnx: No such file")


def test_dimension_given(tmp_path: Path) -> None:
    path = _save(_symbolic(), tmp_path / "model.onnx")
    assert dnnp("import", path, "--dim", "batch=2", "--dim", "seq=3").status == 0
    for wrong in ("batch", "batch=x", "batch=-1", "batch=1.5", "batch="):
        assert dnnp("import", path, "--dim", wrong, "--dim", "seq=3").status == 2, wrong
    result = dnnp("import", path, "--dim", "batch=2")
    one_line(result, "import", 2, "model.onnx --dim batch=2 --dim seq=128")


WORKLOADS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", "not JSON"),
    "no nodes": (b'{"maxFPGAs":1,"maxCPUs":1,"maxSizePerFPGA":1}', "field 'nodes': is missing"),
    "a list": (b"[]", "[] is not an object"),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_files(name: str, tmp_path: Path) -> None:
    content, message = WORKLOADS[name]
    path = tmp_path / "workload.json"
    path.write_bytes(content)
    told = "JSON of none of the formats" if name == "a list" else message
    one_line(dnnp("import", path), "import", 3, told)
    one_line(dnnp("import", "--from", "msr-json", "-", stdin=content), "import", 3, message)


def test_cost_graph_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.pbtxt"
    path.write_bytes(b"node { id: 1 input_info { preceding_node: 7 } }")
    one_line(dnnp("import", path), "import", 3, "there is no node 7")


@functools.cache
def _planned_model(folder: Path) -> bytes:
    """A planned stream of the small MLP, whose model stands in `folder`."""
    path = _save(models()["mlp"], folder / "mlp.onnx")
    imported = dnnp("import", path)
    planned = dnnp("partition", "-q", "-k", "2", stdin=imported.out)
    assert planned.status == 0, planned.err
    return planned.out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


INPUTS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "name": ({"z": np.zeros((1, 4), np.float32)}, "the model has no input 'z' (inputs: x)"),
    "missing": ({}, "input 'x' is missing"),
    "shape": ({"x": np.zeros((1, 5), np.float32)}, "input 'x': shape [1, 5], expected [1, 4]"),
    "rank": ({"x": np.zeros(4, np.float32)}, "input 'x': shape [4], expected [1, 4]"),
    "dtype": ({"x": np.zeros((1, 4))}, "input 'x': dtype float64, expected float32"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str, folder: Path, tmp_path: Path) -> None:
    arrays, message = INPUTS[name]
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    result = dnnp("run", "--inputs", path, stdin=_planned_model(folder))
    one_line(result, "run", 3, message)


def test_input_files(folder: Path, tmp_path: Path) -> None:
    stream = _planned_model(folder)
    one_line(dnnp("run", "--inputs", "/no/such.npz", stdin=stream), "run", 1, "/no/such.npz: No")
    bad = tmp_path / "inputs.npz"
    bad.write_bytes(b"PK not a zip file")
    one_line(dnnp("run", "--inputs", bad, stdin=stream), "run", 3, "not an .npz file")
    odd = tmp_path / "inputs.txt"
    odd.write_bytes(b"1 2 3")
    one_line(dnnp("run", "--inputs", odd, stdin=stream), "run", 3, "not a tensor file")


def test_model_that_moved_or_changed(folder: Path, tmp_path: Path) -> None:
    stream = _planned_model(folder)
    other = _save(models()["branch"], tmp_path / "other.onnx")
    missing = tmp_path / "missing.onnx"
    for command, *arguments in (("run",), ("export", "--to", "stages", "-o", tmp_path / "out")):
        result = dnnp(command, *arguments, "--model", other, stdin=stream)
        one_line(result, command, 3, "not the model that was imported")
        result = dnnp(command, *arguments, "--model", missing, stdin=stream)
        one_line(result, command, 1, "No such file")


def test_model_the_runtime_cannot_load(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["h"]),
            helper.make_node("Nosuch", ["h"], ["y"], domain="nobody"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nobody", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    imported = dnnp("import", _save(model, tmp_path / "model.onnx"))
    assert imported.status == 0, imported.err
    planned = dnnp("partition", "-q", "-k", "2", stdin=imported.out)
    result = dnnp("run", "-q", stdin=planned.out)
    one_line(result, "run", 1, "Nosuch")


def test_workload_cannot_run(shared_workloads: Path) -> None:
    imported = dnnp("import", shared_workloads / "throughput" / "layer_bert24_inference.json")
    planned = dnnp("partition", "-q", stdin=imported.out)
    result = dnnp("run", stdin=planned.out)
    one_line(result, "run", 3, "not from an ONNX model")
