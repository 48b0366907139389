"""Bytes that tensors take in the memory of a class that ONNX Runtime runs on a CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from dnnp.core.profile.residence import FLOAT16
from support.graphs import random_stream, to_bytes
from support.run import dnnp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from memory_factors import KINDS, measured, predicted

SETS = {"": 26, "com.microsoft": 1}


def test_float16_kernels_are_those_of_the_installed_version() -> None:
    found = set()
    for kernel in get_all_opkernel_def():
        first, last = kernel.version_range
        known = kernel.domain in SETS and first <= SETS[kernel.domain] <= last
        half = any("tensor(float16)" in types for types in kernel.type_constraints.values())
        copies = kernel.op_name.startswith("Memcpy")
        if kernel.provider == "CPUExecutionProvider" and known and half and not copies:
            found.add(f"{kernel.domain}:{kernel.op_name}".removeprefix(":"))
    assert found == FLOAT16


@pytest.mark.parametrize("kind", ["matmul-f16", "conv-f16", "gather-f16", "tied-f16", "cast-f16",
                                  "transpose-matmul", "tied", "conv", "split"])  # fmt: skip
def test_sessions_hold_what_is_predicted(kind: str, tmp_path: Path) -> None:
    model = KINDS[kind](16)
    whole = predicted(model, tmp_path)
    # A session has some hundred kilobytes of its own.
    assert measured(model, tmp_path) == pytest.approx(whole, rel=0.15)


def tied() -> onnx.ModelProto:
    """An embedding and a projection of one float16 table, with a layer between."""
    half = TensorProto.FLOAT16
    rng = np.random.default_rng(0)
    table = numpy_helper.from_array(rng.random((64, 32)).astype(np.float16), "table")
    inner = numpy_helper.from_array(rng.random((32, 32)).astype(np.float16), "inner")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "inner"], ["h"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "turned"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 4])
    y = helper.make_tensor_value_info("y", half, [1, 4, 64])
    graph = helper.make_graph(nodes, "tied", [ids], [y], [table, inner])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def records(data: bytes, kind: str) -> list[dict]:
    return [r for r in map(json.loads, data.splitlines()) if r["type"] == kind]


def imported(tmp_path: Path) -> bytes:
    onnx.save(tied(), tmp_path / "tied.onnx")
    return dnnp("import", "-q", tmp_path / "tied.onnx").out


def test_a_stage_holds_the_form_of_a_weight_that_it_reads(tmp_path: Path) -> None:
    priced = dnnp("profile", "-q", stdin=imported(tmp_path)).out
    bytes_of = {
        r["name"]: r.get("memory_bytes", r["size_bytes"]) for r in records(priced, "tensor")
    }
    assert bytes_of["table"] == 64 * 32 * 2
    assert bytes_of["turned"] == 64 * 32 * 4
    assert bytes_of["inner"] == 32 * 32 * 4
    assert [r["op"] for r in records(priced, "node") if r.get("folded")] == ["Transpose"]
    for k, weights in ((1, [64 * 32 * 6 + 32 * 32 * 4]), (2, [64 * 32 * 2, 64 * 32 * 4])):
        split = dnnp("partition", "-q", "-k", k, "--method", "uniform", stdin=priced).out
        stages = records(split, "stage")
        total = [s["memory_bytes"] - s["peak_bytes"] for s in stages]
        assert sum(total) == sum(weights) + (32 * 32 * 4) * (k - 1)
        assert dnnp("check", "-q", stdin=split).status == 0


def test_other_classes_hold_what_the_file_has(tmp_path: Path) -> None:
    source = imported(tmp_path)
    for device in ("h100", "cpu-core,h100"):
        priced = dnnp("profile", "-q", "--device", device, stdin=source).out
        assert b"memory_bytes" not in b"".join(
            line for line in priced.splitlines() if b'"type":"tensor"' in line
        )
        assert b"folded" not in priced
    # Pricing again takes away what another class said.
    again = dnnp("profile", "-q", "--device", "h100", stdin=dnnp("profile", "-q", stdin=source).out)
    assert b"folded" not in again.out


def spread_out(seed: int, n: int) -> bytes:
    """A random stream whose tensors take other bytes in memory, with folded nodes."""
    stream = random_stream(seed, n, params=True)
    rng = np.random.default_rng(seed)
    kind = {t["id"]: t["kind"] for t in stream.get("tensor")}
    static = [t for t, what in kind.items() if what == "parameter"]
    for node in rng.choice(stream.get("node"), n // 3, replace=False):
        node["inputs"] = sorted({int(rng.choice(static)), int(rng.choice(static))})
        node["folded"] = True
    for tensor in stream.get("tensor"):
        if rng.random() < 0.5:
            tensor["memory_bytes"] = int(rng.integers(0, 40))
    return to_bytes(stream)


@pytest.mark.parametrize("method", ["auto", "exact", "anneal", "ip", "local-search", "slice"])
def test_every_method_counts_them_as_the_checker_does(method: str) -> None:
    for seed in range(3):
        data = spread_out(seed, 9)
        for memory in ("60", "120", "1G"):
            words = ("-q", "-k", "3", "--bandwidth", "3", "--memory", memory, "--method", method)
            found = dnnp("partition", *words, "--memory-model", "peak", stdin=data)
            assert found.status in (0, 4, 5), found.err
            if found.status == 0:
                checked = dnnp("check", stdin=found.out)
                assert checked.status == 0, checked.err


@pytest.mark.parametrize("options", [(), ("--execution", "blocks"), ("--transfers", "edge")])
def test_latency_counts_them_as_the_checker_does(options: tuple[str, ...]) -> None:
    for seed in range(4):
        data = spread_out(seed, 8)
        for memory in ("80", "1G"):
            words = ("-q", "-k", "2", "--bandwidth", "3", "--memory", memory, *options)
            words = (*words, "--objective", "latency", "--memory-model", "peak")
            found = dnnp("partition", *words, stdin=data)
            assert found.status in (0, 4, 5), found.err
            if found.status == 0:
                checked = dnnp("check", stdin=found.out)
                assert checked.status == 0, checked.err


def test_contradictions_are_refused() -> None:
    stream = random_stream(1, 6, params=True)
    stream.get("node")[3]["folded"] = True
    result = dnnp("partition", "-k", "2", stdin=to_bytes(stream))
    assert result.status == 3
    assert "field 'folded': it reads tensor" in result.err
    stream = random_stream(1, 9, params=True, training=True)
    stream.get("tensor")[0]["memory_bytes"] = 1
    result = dnnp("partition", "-k", "2", stdin=to_bytes(stream))
    assert result.status == 3
    assert "field 'memory_bytes': not known where there is a backward pass" in result.err


def test_an_identity_of_a_weight_takes_nothing(tmp_path: Path) -> None:
    """Exporters write a tied weight as an Identity for each layer: ONNX Runtime holds it once."""
    weight = onnx.numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    nodes = []
    for i in range(5):
        nodes.append(helper.make_node("Identity", ["w"], [f"w{i}"]))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"x{i + 1}"]))
    ends = [helper.make_tensor_value_info(name, 1, [1, 64]) for name in ("x0", "x5")]
    graph = helper.make_graph(nodes, "tied", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    for steps in ((), ("coarsen",)):
        data = dnnp("import", "-q", tmp_path / "m.onnx").out
        for step in (*steps, "profile"):
            data = dnnp(step, "-q", stdin=data).out
        for k in (1, 2):
            split = dnnp("partition", "-q", "-k", k, "--method", "uniform", stdin=data).out
            stages = records(split, "stage")
            held = [s["memory_bytes"] - s["peak_bytes"] for s in stages]
            assert held == [64 * 64 * 4] * k
            assert all(s["peak_bytes"] < 64 * 64 for s in stages)
            assert dnnp("check", "-q", stdin=split).status == 0
