"""Splits of the forward pass alone, as experts make them, carried over to training."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dnnp.formats.workloads.msr import read_workload
from support import training
from support.graphs import to_bytes
from support.run import Result, dnnp
from support.seeds import encode


def priced(tmp_path: Path, split: object, **colors: int | None) -> Result:
    """Price a split of the graph of three layers and their gradients; `n3=None`: no colour."""
    records = training.graph_records()
    for record in records:
        name = f"n{record.get('id')}"
        if record["type"] == "node" and name in colors:
            record["color"] = colors[name]
            if colors[name] is None:
                del record["color"]
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps(split))
    return dnnp("partition", "--eval", file, stdin=encode(records))


def stages(result: Result) -> list[list[int]]:
    return sorted(sorted(stage["nodes"]) for stage in result.records("stage"))


def test_backward_nodes_follow_their_colours(tmp_path: Path) -> None:
    whole = priced(tmp_path, [[0, 5], [1, 4], [2, 3]])
    carried = priced(tmp_path, [[0], [1], [2]])
    assert stages(carried) == stages(whole) == [[0, 5], [1, 4], [2, 3]]
    assert carried.one("plan")["value"] == whole.one("plan")["value"]
    assert "3 backward nodes follow the forward nodes of their colours" in carried.err
    assert "follow" not in whole.err
    assert dnnp("check", stdin=carried.out).status == 0


def test_a_part_of_the_backward_nodes_may_be_stated(tmp_path: Path) -> None:
    assert stages(priced(tmp_path, [[0], [1, 4], [2]])) == [[0, 5], [1, 4], [2, 3]]


@pytest.mark.parametrize(
    ("split", "colors", "said"),
    [
        ([[0], [1], [2]], {"n4": None}, "leaves out backward node 4, and it has no colour"),
        ([[0], [1], [2]], {"n4": 9}, "leaves out backward node 4, and its colour 9 has no node"),
        ([[0], [1], [2]], {"n1": 2}, "backward node 3, and its colour 2 has nodes in two parts"),
        ([[0], [1]], {}, "node 2 is in no stage"),
    ],
)
def test_what_cannot_be_carried_over(
    tmp_path: Path, split: object, colors: dict[str, int | None], said: str
) -> None:
    result = priced(tmp_path, split, **colors)
    assert result.status == 3
    assert said in result.err


@pytest.mark.parametrize(("name", "value"), [("bert24", 49.40), ("gnmt", 137.15)])
def test_experts_of_inference_have_the_published_values_of_training(
    shared_workloads: Path, name: str, value: float
) -> None:
    path = shared_workloads / "throughput" / f"layer_{name}_training.json"
    split = shared_workloads / "expert" / f"{name}_inference_expert.json"
    data = to_bytes(read_workload(path.read_bytes(), str(path)))
    result = dnnp("partition", "--eval", split, stdin=data)
    assert round(result.one("plan")["value"], 2) == value
