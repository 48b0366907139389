"""Soft memory: every method of dnnp-partition pays for what does not fit (MTPP, Eq. 2)."""

from __future__ import annotations

import orjson
import pytest

from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.errors import UnavailableError
from dnnp.formats.stream import Stream
from support.graphs import header, node, random_stream, tensor, to_bytes
from support.run import Result, dnnp

ORDERED = ("auto", "exact", "slice", "dpl", "ip", "pipedream")
FREE = ("anneal", "local-search")
"""Methods that look for the least load, overflow included."""


def weighted_chain(*bytes_of_node: float) -> Stream:
    """A chain of nodes of time 1 with parameters; tensors between them have no size."""
    tensors, nodes = [], []
    for i, size in enumerate(bytes_of_node):
        made = 2 * i + 1
        tensors.append(tensor(2 * i, "parameter", size, name=f"w{i}"))
        tensors.append(tensor(made, "activation", 0, name=f"t{i}"))
        reads = [2 * i] + ([2 * i - 1] if i else [])
        nodes.append(node(i, "Op", reads, [made], time_s={"dev": 1}))
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def split(stream: Stream, method: str, memory: float, bandwidth: float, *more: str) -> Result:
    """Partition over two devices with soft memory; skip if the method is not installed."""
    result = dnnp(
        "partition",
        "-k",
        "2",
        "--method",
        method,
        "--memory",
        str(memory),
        "--bandwidth",
        str(bandwidth),
        "--memory-mode",
        "overflow",
        *more,
        stdin=to_bytes(stream),
    )
    if result.status == UnavailableError.exit_status:
        pytest.skip(result.err.strip())
    assert result.status == 0, result.err
    return result


@pytest.mark.parametrize("method", SPLITS)
@pytest.mark.parametrize("model", ["sum", "peak"])
def test_overflow_is_counted(method: str, model: str) -> None:
    few = ("--generations", "3") if "generations" in SPLITS[method].heeds else ()
    for seed in (3, 8):
        made = random_stream(seed, 9, params=True)
        result = split(made, method, 30, 2, "--memory-model", model, *few)
        stages = result.records("stage")
        for stage in stages:
            excess = max(stage["memory_bytes"] - 30, 0) / 2
            assert stage["overflow_s"] == pytest.approx(excess)
            parts = sum(stage[f"{part}_s"] for part in ("in", "compute", "overflow", "out"))
            assert stage["load_s"] == pytest.approx(parts)
        assert any(stage["overflow_s"] for stage in stages)
        assert result.one("plan")["value"] == pytest.approx(max(s["load_s"] for s in stages))
        report = dnnp("check", "--json", stdin=result.out)
        assert orjson.loads(report.out)["violations"] == []


@pytest.mark.parametrize("method", [*ORDERED, *FREE])
def test_overflow_decides_where_to_cut(method: str) -> None:
    # Two heavy nodes fit. Even halves of the chain would stream 30 bytes in 3 s; without an order
    # there are others.
    result = split(weighted_chain(30, 30, 30, 0, 0, 0), method, 60, 10)
    assert result.one("plan")["value"] == pytest.approx(3 if method in FREE else 4)
    assert all(stage["overflow_s"] == 0 for stage in result.records("stage"))


@pytest.mark.parametrize("method", ORDERED)
def test_a_little_overflow_beats_an_uneven_split(method: str) -> None:
    # Halves stream 5 bytes in 0.5 s; any other cut computes for 4 s.
    result = split(weighted_chain(30, 30, 5, 0, 0, 0), method, 60, 10)
    assert result.one("plan")["value"] == pytest.approx(3.5)


def test_fast_memory_is_the_capacity() -> None:
    stream = weighted_chain(30, 30, 30, 0, 0, 0)
    stream.records["device"] = [
        {
            "type": "device",
            "class": "dev",
            "kind": "accelerator",
            "memory_bytes": 1e9,
            "fast_memory_bytes": 60,
            "bandwidth_bytes_per_s": 10,
        }
    ]
    data = to_bytes(stream)
    arguments = ("partition", "-k", "2", "--memory", "fast", "--memory-mode", "overflow")
    plan = dnnp(*arguments, stdin=data).one("plan")
    assert (plan["value"], plan["memory_mode"]) == (4, "overflow")
    (device,) = plan["devices"]
    assert device["memory_bytes"] == device["fast_memory_bytes"] == 60
    alone = dnnp("partition", "-k", "1", *arguments[3:], stdin=data)
    assert alone.records("stage")[0]["overflow_s"] == pytest.approx(3)
    assert dnnp("check", stdin=alone.out).status == 0
    hard = dnnp("partition", "-k", "1", "--memory", "fast", stdin=data)
    assert hard.status == 4


def test_a_class_without_fast_memory_is_refused() -> None:
    result = dnnp(
        "partition", "-k", "2", "--memory", "fast", stdin=to_bytes(weighted_chain(1, 2, 3))
    )
    assert result.status == 2
    assert "--memory fast: class 'dev' states no fast_memory_bytes" in result.err
    assert dnnp("partition", "-k", "2", "--memory", "slow", stdin=b"").status == 2


def test_classes_each_have_their_own_fast_memory(tmp_path) -> None:
    stream = random_stream(2, 6)
    for row in stream.get("node"):
        row["time_s"] = {"v100": 1, "a100": 1}
    file = tmp_path / "devices.json"
    file.write_bytes(orjson.dumps([{"class": "v100"}, {"class": "a100", "count": 2}]))
    result = dnnp(
        "partition",
        "--devices",
        str(file),
        "--memory",
        "fast",
        "--memory-mode",
        "overflow",
        stdin=to_bytes(stream),
    )
    capacities = {d["class"]: d["memory_bytes"] for d in result.one("plan")["devices"]}
    assert capacities == {"v100": 6 * 2**20, "a100": 40 * 2**20}
