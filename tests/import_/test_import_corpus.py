"""Models that others made: every one is imported, and makes a valid stream."""

from __future__ import annotations

import re
import shlex
import warnings
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx.backend.test.case import node as node_cases

from dnnp.formats.graph import graph_of
from dnnp.formats.stream import read_bytes
from support.run import dnnp

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"

LIGHT = {
    "bvlc_alexnet": 24, "densenet121": 910, "inception_v1": 144, "inception_v2": 509,
    "resnet50": 176, "shufflenet": 203, "squeezenet": 66, "vgg19": 46, "zfnet512": 22,
}  # fmt: skip
"""Operators, weights made by ConstantOfShape not counted."""


def imported(path: Path, *arguments: str):
    """The stream of a model and its messages; free dimensions are set to 2."""
    result = dnnp("import", path, *arguments)
    for _ in range(2):
        if result.status != 2:
            break
        _, *guesses = shlex.split(result.err.partition("such as:")[2])[1:]
        options = [re.sub(r"\d+$|NxN$", "2", word) for word in guesses]
        result = dnnp("import", path, *arguments, *options)
    if result.status:
        return None, result
    stream = read_bytes(result.out)
    graph_of(stream)
    return stream, result


@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name):
    stream, result = imported(DATA / "light" / f"light_{name}.onnx")
    assert len(stream.get("node")) == LIGHT[name]
    assert "unknown size" not in result.err
    assert all("flop" in node for node in stream.get("node"))


def test_stored_backend_models():
    paths = sorted(DATA.glob("*/*/model.onnx"))
    assert len(paths) > 100
    for path in paths:
        stream, result = imported(path)
        assert stream is not None, result.err


def test_generated_backend_models(tmp_path: Path):
    """One node each, or what it is made of; two of every set of operators, to save time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = node_cases.collect_testcases(None)
    statuses: Counter[int] = Counter()
    path = tmp_path / "case.onnx"
    seen: Counter[frozenset[str]] = Counter()
    for case in cases:
        operators = frozenset(node.op_type for node in case.model.graph.node)
        seen[operators] += 1
        if seen[operators] > 2:
            continue
        path.write_bytes(case.model.SerializeToString())
        _, result = imported(path)
        statuses[result.status] += 1
        assert result.status == 0 or "holds no operators" in result.err, (case.name, result.err)
    assert statuses[0] > 450
    assert statuses[3] <= 5


SHARED = {"bert6": 234, "resnet50_narrow": 122, "gnmt8": 264, "gpt3_1p3b": 1389}
"""Operators: the nodes in the file without Constant and static ConstantOfShape ones."""


@pytest.mark.parametrize("name", SHARED)
def test_shared_models(shared_models: Path, name):
    path = shared_models / f"{name}.onnx"
    stream, result = imported(path)
    assert result.err == ""
    nodes = stream.get("node")
    assert len(nodes) == SHARED[name]
    assert all("flop" in node for node in nodes)
    used = {i for node in nodes for i in node["inputs"]}
    assert all("shape" in t for t in stream.get("tensor") if t["id"] in used or t.get("output"))


def test_shapes_equal_those_of_a_run(shared_models: Path):
    """Every activation of a model that computes its own shapes."""
    path = shared_models / "bert6.onnx"
    inferred, _ = imported(path)
    declared, _ = imported(path, "--shapes", "value-info")
    ran = _run_all(path, [t["name"] for t in declared.get("tensor") if "shape" not in t])
    shapes = {t["name"]: tuple(t["shape"]) for t in inferred.get("tensor")}
    assert len(ran) > 200
    assert {name: shapes[name] for name in ran} == {name: kind.shape for name, kind in ran.items()}


def _run_all(path: Path, names: list[str]):
    from dnnp.core.runtime.model.shapes import shapes_by_running

    return shapes_by_running(onnx.load(path), names, {}, path.parent)[0]


def test_the_weightless_giant(shared_models: Path):
    stream, _ = imported(shared_models / "gpt3_1p3b.onnx")
    weights = [t for t in stream.get("tensor") if t["kind"] == "parameter"]
    assert sum(t["size_bytes"] for t in weights) == pytest.approx(6874.4e6, rel=1e-4)
    products = [n for n in stream.get("node") if n["op"] in ("MatMul", "Gemm")]
    assert sum(n["flop"] for n in products) == pytest.approx(2 * 2048 * 1.72e9, rel=0.2)
