"""dnnp-partition --objective latency from the outside."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from dnnp.core.methods.splits import LATENCY
from dnnp.samples.build import write as write_sample
from support.graphs import random_stream, to_bytes
from support.run import dnnp, interrupted

HERE = [
    m
    for m in LATENCY.values()
    if m.name not in ("cpsat", "scotch") and (m.name != "placeto" or find_spec("torch"))
]
"""Methods that need nothing that may be missing."""
BLOCKS = [method.name for method in HERE if "blocks" in method.kinds]
OPERATORS = [method.name for method in HERE if "operators" in method.kinds]

CLUSTER = [
    {"class": "dev", "kind": "accelerator", "count": 2, "memory_bytes": 1e9},
    {"class": "other", "kind": "accelerator", "count": 1, "memory_bytes": 1e9},
    {"type": "link", "from": "dev", "to": "dev", "bandwidth_bytes_per_s": 20},
    {"type": "link", "from": "dev/1", "to": "other", "bandwidth_bytes_per_s": 5,
     "back_bandwidth_bytes_per_s": 4, "latency_s": 0.5},
]  # fmt: skip


def stream(n: int = 9, seed: int = 3) -> bytes:
    """A random graph, priced on `dev`, `other` and `cpu`."""
    made = random_stream(seed, n, classes=["other", "cpu"], memory=True)
    for node in made.get("node"):
        for name in ("dev", "other", "cpu"):
            node["time_s"].setdefault(name, 2.0)
    return to_bytes(made)


def cluster(folder: Path, records: list[dict]) -> Path:
    path = folder / "cluster.json"
    path.write_text(json.dumps(records))
    return path


def partition(*arguments: object, stdin: bytes = b""):
    return dnnp("partition", "--objective", "latency", *map(str, arguments), stdin=stdin)


@pytest.mark.parametrize("method", OPERATORS)
def test_operators(method: str, tmp_path: Path) -> None:
    devices = cluster(tmp_path, CLUSTER)
    result = partition("--devices", devices, "--method", method, stdin=stream())
    assert result.status == 0, result.err
    plan = result.one("plan")
    assert (plan["objective"], plan["execution"], plan["congestion"]) == (
        "latency",
        "operators",
        "device",
    )
    # Both directions of both records: dev/0 - dev/1, dev/1 - other/0.
    assert len(plan["links"]) == 4
    assert plan["bound"] <= plan["value"] * (1 + 1e-9)
    assert plan["bound_method"]
    checked = dnnp("check", stdin=result.out)
    assert checked.status == 0, checked.err


@pytest.mark.parametrize("execution", ["blocks", "operators"])
def test_bounds_without_time(execution: str) -> None:
    """The plan names the proof of its bound whatever the time limit."""
    for words in ((), ("--method", "ip"), ("--method", "greedy")):
        result = partition(
            "-k", 3, "--execution", execution, "--time-limit", 0, *words, stdin=stream()
        )
        assert result.status == 0, result.err
        plan = result.one("plan")
        assert 0 < plan["bound"] <= plan["value"]
        assert plan["bound_method"]
        checked = dnnp("check", stdin=result.out)
        assert checked.status == 0, checked.err


@pytest.mark.parametrize("method", BLOCKS)
def test_blocks(method: str, tmp_path: Path) -> None:
    records = [*CLUSTER[:2], {"class": "cpu", "kind": "cpu", "count": 4}]
    devices = cluster(
        tmp_path, [{**r, "bandwidth_bytes_per_s": 10.0} for r in records[:2]] + records[2:]
    )
    result = partition("--devices", devices, "--method", method, stdin=stream())
    if method == "max-load" and result.status == 4:
        assert "is invoked" in result.err
        return
    assert result.status == 0, result.err
    assert result.one("plan")["execution"] == "blocks"
    checked = dnnp("check", stdin=result.out)
    assert checked.status == 0, checked.err


def test_methods_are_ordered_by_value(tmp_path: Path) -> None:
    """auto is never worse than the methods it starts from, and no bound is above any value."""
    devices = cluster(tmp_path, CLUSTER)
    for seed in range(3):
        data = stream(12, seed)
        plans = {
            method: partition("--devices", devices, "--method", method, stdin=data).one("plan")
            for method in ("auto", "heft", "m-etf", "m-sct", "getf", "single")
        }
        for plan in plans.values():
            assert plans["auto"]["value"] <= plan["value"] * (1 + 1e-12)
            assert plan["bound"] <= plans["auto"]["value"] * (1 + 1e-12)


def test_same_bytes_again(tmp_path: Path) -> None:
    devices = cluster(tmp_path, CLUSTER)
    first, second = (partition("--devices", devices, stdin=stream()) for _ in range(2))
    assert first.out == second.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c[2].update({"from": "dev/7"}), "'dev/7' is not among the devices"),
        (lambda c: c[2].update(to="none"), "field 'to': 'none' is not among the devices"),
        (lambda c: c[3].update(bandwidth_bytes_per_s=0), "bandwidth_bytes_per_s"),
        (lambda c: c[3].update(back_bandwidth_bytes_per_s=-1), "back_bandwidth_bytes_per_s"),
        (lambda c: c[3].update(latency_s=-1), "latency_s"),
        (lambda c: c[3].pop("to"), "field 'to': is missing"),
        (lambda c: c.pop(), "no path from"),
        (lambda c: c.append(dict(c[3])), "a second link between"),
        (lambda c: c.append({**c[3], "from": "dev/0", "to": "dev/0"}), "from a device to itself"),
        (lambda c: c.append({"type": "wire"}), "neither 'device' nor 'link'"),
    ],
)
def test_bad_clusters(change, message: str, tmp_path: Path) -> None:
    records = [dict(record) for record in CLUSTER]
    change(records)
    result = partition("--devices", cluster(tmp_path, records), stdin=stream())
    assert (result.status, result.out) == (3, b""), result.err
    assert message in result.err
    assert "cluster.json" in result.err or "no path" in message
    assert len(result.err.strip().splitlines()) == 1


def test_exact_links_replace_those_of_classes(tmp_path: Path) -> None:
    records = [
        *CLUSTER,
        {"type": "link", "from": "dev/0", "to": "dev/1", "bandwidth_bytes_per_s": 77},
    ]
    plan = partition(
        "--devices", cluster(tmp_path, records), "--method", "heft", stdin=stream()
    ).one("plan")
    speeds = {(x["from"], x["to"]): x["bandwidth_bytes_per_s"] for x in plan["links"]}
    assert speeds["dev/0", "dev/1"] == speeds["dev/1", "dev/0"] == 77
    assert speeds["other/0", "dev/1"] == 4


def test_more_memory_needed_than_there_is(tmp_path: Path) -> None:
    small = [{**r, "memory_bytes": 5} if r.get("kind") else r for r in CLUSTER]
    result = partition("--devices", cluster(tmp_path, small), stdin=stream())
    assert result.status == 4
    assert " B" in result.err
    need = sum(
        json.loads(line)["memory_bytes"]
        for line in stream().splitlines()
        if json.loads(line)["type"] == "node"
    )
    most = max(
        json.loads(line)["memory_bytes"]
        for line in stream().splitlines()
        if json.loads(line)["type"] == "node"
    )
    tight = [{**r, "memory_bytes": max(most, need / 4)} if r.get("kind") else r for r in CLUSTER]
    short = partition("--devices", cluster(tmp_path, tight), stdin=stream())
    if max(most, need / 4) * 3 < need:
        assert short.status == 4
        assert "all devices together have" in short.err
        assert "devices of" in short.err


def test_a_node_that_nothing_supports(tmp_path: Path) -> None:
    lines = []
    for line in stream().splitlines():
        record = json.loads(line)
        if record["type"] == "node" and record["id"] == 2:
            record["time_s"] = {"cpu": 1.0}
        lines.append(json.dumps(record))
    result = partition("--devices", cluster(tmp_path, CLUSTER), stdin="\n".join(lines).encode())
    assert result.status == 4
    assert "node 2 is not supported on any device" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "slice"], "method slice is not for --objective latency"),
        (["--method", "heft", "--execution", "blocks"], "method heft is for --execution operators"),
        (["--execution", "blocks", "--congestion", "none"], "--congestion is for"),
        (["--execution", "operators", "--invocations", "2"], "--invocations is for"),
        (["--execution", "operators", "--charge-io"], "--charge-io is for"),
        (["--memory-mode", "overflow"], "no --memory-mode overflow"),
        (["--max-replicas", "2"], "no --max-replicas"),
        (["--validity", "ordered"], "not validity"),
        (["--invocations", "0"], "0 is too small"),
        (["--charge-io", "--execution", "blocks", "--transfers", "edge"], "--charge-io needs"),
    ],
)
def test_bad_options(arguments: list[str], message: str) -> None:
    result = partition("-k", 2, *arguments, stdin=stream())
    assert (result.status, result.out) == (2, b"")
    assert message in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--execution", "blocks"], "--execution is for --objective latency"),
        (["--transfers", "edge"], "--transfers is for --objective latency"),
        (["--method", "heft"], "method heft is for --objective latency"),
        (["--memory-model", "weights"], "--memory-model weights is for --objective latency"),
    ],
)
def test_options_of_latency_alone(arguments: list[str], message: str) -> None:
    result = dnnp("partition", "-k", "2", *arguments, stdin=stream())
    assert (result.status, result.out) == (2, b"")
    assert message in result.err


def test_more_devices_than_nodes(tmp_path: Path) -> None:
    result = partition("-k", 2**53 - 1, "--method", "heft", stdin=stream())
    assert result.status == 0, result.err
    assert dnnp("check", stdin=result.out).status == 0
    many = [{**CLUSTER[0], "count": 5000}, *CLUSTER[1:]]
    linked = partition("--devices", cluster(tmp_path, many), stdin=stream())
    assert linked.status == 3
    assert "links are for up to 1024 devices" in linked.err


def test_split_made_elsewhere(tmp_path: Path) -> None:
    split = tmp_path / "split.json"
    split.write_text(json.dumps([[0, 1, 2, 3], [4, 5, 6, 7, 8]]))
    for execution in ("blocks", "operators"):
        result = partition("-k", 2, "--execution", execution, "--eval", split, stdin=stream())
        assert result.status == 0, result.err
        assert result.one("plan")["method"] == "given"
        assert dnnp("check", stdin=result.out).status == 0
    limited = partition("-k", 2, "--memory", 1, "--eval", split, stdin=stream())
    assert limited.status == 4
    assert "without this limit its latency is" in limited.err


@pytest.mark.parametrize(
    ("name", "k", "value"), [("layer_bert24", 6, 111.94), ("layer_gnmt", 6, 293.40)]
)
def test_expert_splits(shared_workloads: Path, name: str, k: int, value: float) -> None:
    data = dnnp(
        "import", "--from", "msr-json", shared_workloads / "latency" / f"{name}_inference.json"
    ).out
    split = shared_workloads / "expert" / f"{name.removeprefix('layer_')}_inference_expert.json"
    result = partition("-k", k, "--eval", split, stdin=data)
    if name == "layer_gnmt":
        assert result.status == 4
        assert "fpga/5 needs" in result.err
        assert "its latency is 293.40" in result.err
        result = partition("-k", k, "--memory", "2G", "--eval", split, stdin=data)
    assert result.one("plan")["value"] == pytest.approx(value, abs=0.005)


def test_memory_of_a_model_is_its_weights(tmp_path: Path) -> None:
    data = dnnp("profile", stdin=dnnp("import", write_sample("gnmt-small", tmp_path)).out).out
    by_weights, summed = (
        partition("-k", 1, "--method", "single", *words, stdin=data)
        for words in (("--memory-model", "weights"), ("--memory-model", "sum"))
    )
    assert by_weights.one("plan")["memory_model"] == "weights"
    read = {t for r in by_weights.records("node") for t in r["inputs"]}
    held = sum(
        t["size_bytes"]
        for t in by_weights.records("tensor")
        if t["id"] in read and t["kind"] in ("parameter", "constant")
    )
    least = by_weights.one("stage")["memory_bytes"]
    assert held <= least <= summed.one("stage")["memory_bytes"]
    for result in (by_weights, summed):
        assert dnnp("check", stdin=result.out).status == 0
    few = ["--memory", str(held / 3), "--memory-model", "weights"]
    short = partition("-k", 2, *few, stdin=data)
    assert short.status == 4
    assert "devices of" in short.err


def test_a_model_runs_as_planned(tmp_path: Path) -> None:
    """Operators of a real model, back and forth between two cores, give the same outputs."""
    model = write_sample("gnmt-small", tmp_path)
    data = dnnp("profile", stdin=dnnp("import", model).out).out
    planned = partition("-k", 2, "--method", "m-etf", "--bandwidth", "1T", stdin=data)
    assert planned.status == 0, planned.err
    result = dnnp("run", "--verify", "-n", "4", "--warmup", "1", stdin=planned.out)
    assert result.status == 0, result.err
    record = result.one("run")
    assert record["verified"]
    assert record["latency_predicted_s"] == planned.one("plan")["value"]
    assert "predicted" in result.err
    assert {s["stage"] for s in record["stages"]} == {0, 1}


def test_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "graph.dnnp"
    path.write_bytes(stream(300, 1))
    result = interrupted(
        "partition",
        "-v",
        "--objective",
        "latency",
        "-k",
        "4",
        "--time-limit",
        "60",
        path,
        after="annealing",
    )
    assert result.status == 130
    assert dnnp("check", stdin=result.out).status == 0
