"""dnnp-export --to torch-plan: where PyTorch is to split a module, and degrees of its stages."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest

from dnnp.core.training import Optimizer, train
from dnnp.formats.export.pytorch import torch_plan
from support import torch_stages
from support.graphs import node, tensor
from support.run import dnnp, output_of
from support.seeds import encode, header

LAYERS, WIDTH = 6, 4096


def chain() -> bytes:
    """Layers of a product and a Tanh, in training."""
    of = {"dtype": "float32", "shape": [WIDTH, WIDTH]}
    size = 4.0 * WIDTH * WIDTH
    tensors, nodes = [tensor(0, "input", size, **of)], []
    for i in range(LAYERS):
        weight, out = 100 + i, 2 * i + 2
        tensors.append(tensor(weight, "parameter", size, **of))
        tensors.append(tensor(out - 1, "activation", size, **of))
        last = {"output": True} if i == LAYERS - 1 else {}
        tensors.append(tensor(out, "activation", size, **of, **last))
        more = {"scope": f"/layers.{i}/0"}
        flop = 2.0 * WIDTH**3
        nodes.append(node(2 * i, "MatMul", [out - 2, weight], [out - 1], flop=flop, **more))
        more = {"scope": f"/layers.{i}/1"}
        nodes.append(node(2 * i + 1, "Tanh", [out - 1], [out], flop=float(WIDTH**2), **more))
    made = train(tensors, nodes, Optimizer("sgd"))
    return encode([header(training=True), *made.tensors, *made.nodes])


def planned(*words: str) -> bytes:
    priced = dnnp("profile", "-q", "--device", "a100", stdin=chain())
    plan = dnnp("partition", "-q", *words, "--micro-batches", "8", stdin=priced.out)
    assert plan.status == 0, plan.err
    return plan.out


def table(plan: bytes) -> list[dict[str, str]]:
    result = dnnp("export", "--to", "torch-plan", stdin=plan)
    assert (result.status, result.err) == (0, "")
    return list(csv.DictReader(io.StringIO(result.out.decode())))


def test_where_stages_begin() -> None:
    first, second, third = table(planned("-k", "3", "--data-parallel", "1"))
    assert [s["split_before"] for s in (first, second, third)] == ["", "layers.2", "layers.3.1"]
    assert [s["in_flight"] for s in (first, second, third)] == ["3", "2", "1"]
    for stage in (first, second, third):
        assert (stage["exact"], stage["shards"], stage["replicas"]) == ("1", "1", "1")
        assert (stage["recompute"], stage["micro_batches"]) == ("0.0", "8")


def test_degrees() -> None:
    rows = table(planned("-k", "4", "--data-parallel", "4", "--recompute", "full"))
    assert sum(int(row["replicas"]) * int(row["shards"]) for row in rows) == 4
    assert {int(row["micro_batches"]) * int(row["replicas"]) for row in rows} == {8}
    assert {row["recompute"] for row in rows} == {"1.0"}


def test_a_border_inside_a_module() -> None:
    nodes = [
        {"id": v, "scope": scope} for v, scope in enumerate(["/a,b/c", "/a,b/c", "/a,b/d", ""])
    ]
    stages = [{"device": f"x/{i}", "nodes": own} for i, own in enumerate(([0], [1, 2], [3]))]
    rows = list(csv.DictReader(io.StringIO(torch_plan({}, stages, nodes).decode())))
    assert [(row["split_before"], row["exact"]) for row in rows] == [
        ("", "1"), ("a,b.c", "0"), ("", "0"),
    ]  # fmt: skip


def test_a_plan_is_needed() -> None:
    result = dnnp("export", "--to", "torch-plan", stdin=chain())
    assert result.status == 2
    assert "no plan to export" in result.err


def test_torch_splits_by_it(tmp_path: Path) -> None:
    """Six layers on three ranks, with the communication that the schedule states."""
    pytest.importorskip("torch")
    plan = planned("-k", "3", "--data-parallel", "1")
    schedule = dnnp("schedule", "-q", "-n", "4", stdin=plan)
    for to in ("torch-comms-csv", "torch-plan"):
        result = dnnp("export", "--to", to, "-o", tmp_path / f"{to}.csv", stdin=schedule.out)
        assert result.status == 0, result.err
    words = [
        sys.executable, "-m", "support.torch_stages", tmp_path / "torch-comms-csv.csv",
        "--plan", tmp_path / "torch-plan.csv", "--layers", LAYERS,
    ]  # fmt: skip
    trained = output_of(words, cwd=Path(torch_stages.__file__).parents[1])
    assert all(f"{LAYERS // 3 * 2} gradients" in line for line in trained.splitlines())
