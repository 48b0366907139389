"""Parallel plans with stages that all devices share: search, records, shapes M, NN and K."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dnnp.core.model.errors import LimitError
from dnnp.core.parallel.search import simple_bound
from dnnp.core.parallel.shared import plan_shared
from support import shapes
from support.hybrid import best_shared, disagreement, random_shared_problem
from support.run import dnnp

COUNT = 60
Record = dict[str, Any]


@pytest.mark.parametrize("seed", range(COUNT))
def test_equals_brute_force(seed: int) -> None:
    assert not disagreement(seed, 4, shared=True)


def test_what_is_cut_along_an_order_claims_no_more_than_all_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dnnp.core.parallel.shared.all_ends", lambda problem, most: None)
    compared = 0
    for seed in range(12):
        problem = random_shared_problem(seed, 4)
        best = best_shared(problem)
        if not np.isfinite(best):
            continue
        try:
            found = plan_shared(problem, [np.arange(problem.n)])
        except LimitError:
            continue
        assert found.value >= best * (1 - 1e-9)
        assert found.bound <= simple_bound(problem)
        compared += 1
    assert compared > 3


def planned(name: str, *options: str, training: bool = True, room: float = 60.0) -> bytes:
    """A stream of a shape, with its plan."""
    stream = shapes.shape_stream(name, training=training, room=room)
    result = dnnp("partition", "--shared-stages", "2", *options, stdin=stream)
    assert result.status == 0, result.err
    return bytes(result.out)


def records(data: bytes, kind: str) -> list[Record]:
    return [r for r in map(json.loads, data.splitlines()) if r["type"] == kind]


# Period, span of a micro-batch and makespan of 12, as the fourth paper's search proves them too;
# most bytes of a device: 4 + 25 of weights, and 5, 6 and 3 micro-batches.
PROVEN = [("M", 6, 36, 84, 34), ("NN", 8, 46, 108, 35), ("K", 6, 16, 76, 32)]


@pytest.mark.parametrize(("name", "period", "span", "makespan", "memory"), PROVEN)
def test_shapes_come_out(name: str, period: int, span: int, makespan: int, memory: int) -> None:
    plan = planned(name)
    (record,) = records(plan, "plan")
    assert record["status"] == "optimal"
    assert record["value"] == period
    assert record["parallel"]["shared_stages"] == 2
    own = [s for s in records(plan, "stage") if not s.get("shared")]
    assert sorted(s["device"] for s in own) == [f"gpu/{i}" for i in range(4)]
    result = dnnp("schedule", "-n", "12", stdin=plan)
    assert f"shape {name} on 4 devices" in result.err
    (schedule,) = records(result.out, "schedule")
    assert schedule["status"] == "optimal"
    assert schedule["makespan_s"] == makespan
    assert schedule["repetend"]["period_s"] == period
    assert schedule["repetend"]["span_s"] == span
    assert max(unit["peak_bytes"] for unit in schedule["units"]) == memory
    check = dnnp("check", stdin=result.out)
    assert check.status == 0, check.err


@pytest.mark.parametrize(("name", "period"), [("M", 2), ("NN", 3), ("K", 2)])
def test_shapes_of_inference_come_out(name: str, period: int) -> None:
    plan = planned(name, training=False)
    result = dnnp("schedule", "-n", "4", stdin=plan)
    assert f"shape {name} on 4 devices" in result.err
    assert records(result.out, "schedule")[0]["repetend"]["period_s"] == period


@pytest.mark.parametrize("how", ["blocking", "non-blocking"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["M", "NN", "K"])
def test_transfers_are_blocks_of_their_own_where_that_is_asked(
    name: str, training: bool, how: str
) -> None:
    """Those of the shape itself, as its tensors have no size."""
    words = ("-n", "5", "--transfers", how, "--transfer-time", "0.25")
    result = dnnp("schedule", *words, stdin=planned(name, training=training, room=200.0))
    assert result.status == 0, result.err
    (got,) = records(result.out, "schedule")
    sides = () if training else ("--inference",)
    shape = dnnp("schedule", "--shape", name, "--devices", "4", *sides, *words)
    (wanted,) = records(shape.out, "schedule")
    assert got["makespan_s"] == pytest.approx(wanted["makespan_s"])
    kinds = [[row["kind"] for row in one["passes"]] for one in (got, wanted)]
    assert sorted(kinds[0]) == sorted(kinds[1])
    check = dnnp("check", stdin=result.out)
    assert check.status == 0, check.err


def test_weights_that_are_read_twice_are_apart_only_where_they_are_shared() -> None:
    stages = records(planned("NN"), "stage")
    table = [s for s in stages if {0, 3} & {*s["nodes"]}]
    assert len(table) == 2
    assert all(s["shared"] for s in table)
    # One shared stage cannot hold both without what is between them.
    stream = shapes.shape_stream("NN")
    result = dnnp("partition", "--shared-stages", "1", stdin=stream)
    assert result.status == 0, result.err
    (record,) = records(result.out, "plan")
    assert record["value"] > 8


def test_a_device_has_room_for_its_stage_and_its_shares() -> None:
    # 25 of the table, 4 of weights, and four micro-batches in the first stage.
    plan = planned("M", room=33.0)
    assert records(plan, "plan")[0]["value"] == 6
    # A period of 6 takes a fifth; with four it is 7.
    result = dnnp("schedule", "-n", "8", stdin=plan)
    assert records(result.out, "schedule")[0]["repetend"]["period_s"] == 7
    result = dnnp("partition", "--shared-stages", "2", stdin=shapes.shape_stream("M", room=32.5))
    assert result.status == 4
    assert "no parallel plan fits" in result.err


def changed(data: bytes, kind: str, which: int, **fields: Any) -> bytes:
    """A stream with other fields in one record."""
    lines, count = [], 0
    for record in map(json.loads, data.splitlines()):
        if record["type"] == kind:
            record |= fields if count == which else {}
            count += 1
        lines.append(json.dumps(record).encode())
    return b"\n".join(lines) + b"\n"


@pytest.mark.parametrize(
    ("kind", "which", "fields", "words"),
    [
        ("stage", 0, {"shards": 2}, "not on all 4 devices"),
        ("stage", 0, {"replicas": 2}, "not on all 4 devices"),
        ("stage", 2, {"shared": True}, "not on all 4 devices"),
        ("stage", 0, {"shared": False}, "already used"),
        ("plan", 0, {"parallel": None}, "parallel"),
        ("stage", 1, {"device": "gpu/1"}, "already used"),
        ("stage", 0, {"load_s": 1.0}, "load"),
    ],
)
def test_false_stages_are_refused(kind: str, which: int, fields: Record, words: str) -> None:
    plan = planned("M")
    result = dnnp("check", stdin=changed(plan, kind, which, **fields))
    assert result.status in (3, 6), result.err
    assert words in result.err


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"shards": 2}, "all devices of its class, which are 4"), ({"replicas": 2}, "replica")],
)
def test_readers_refuse_shared_stages_on_some_devices(fields: Record, words: str) -> None:
    result = dnnp("schedule", stdin=changed(planned("M"), "stage", 0, **fields))
    assert result.status == 3
    assert words in result.err
    assert result.err.count("\n") == 1


def test_a_plan_says_how_many_stages_may_be_shared() -> None:
    plan = planned("NN")
    (record,) = records(plan, "plan")
    result = dnnp(
        "check", stdin=changed(plan, "plan", 0, parallel={**record["parallel"], "shared_stages": 1})
    )
    assert result.status in (3, 6)
    assert "2 stages are shared, the plan allows 1" in result.err


def test_fields_that_are_not_known_say_nothing_but_are_not_checkable() -> None:
    plan = planned("M")
    (record,) = records(plan, "plan")
    more = changed(plan, "plan", 0, parallel={**record["parallel"], "later": 1})
    assert dnnp("schedule", "-n", "2", stdin=more).status == 0
    result = dnnp("check", "-q", stdin=more)
    assert result.status == 9
    assert "no check covers the field 'parallel.later' of a parallel plan" in result.err


def test_nodes_say_what_they_take_on_all_devices() -> None:
    stream = shapes.shape_stream("M")
    result = dnnp("partition", "--shared-stages", "1", "-k", "3", stdin=stream)
    assert result.status == 2
    assert "nodes state nothing for 3 devices at once" in result.err


def test_views_show_shared_stages() -> None:
    plan = planned("M")
    text = dnnp("view", "--as", "text", stdin=plan).out.decode()
    assert "all 4" in text
    assert "balance" not in text or "100 %" in text
    assert "all 4" in dnnp("view", "--as", "svg", stdin=plan).out.decode()
    table = dnnp("view", "--as", "csv", "--table", "stages", stdin=plan).out.decode()
    header, first, second = (row.split(",") for row in table.splitlines()[:3])
    assert (first[header.index("shared")], second[header.index("shared")]) == ("1", "0")


def test_gates_judge_what_a_device_holds_with_its_shares() -> None:
    plan = planned("K")
    # The join takes 25 of weights and 1 of a micro-batch, the first stage 4 and five of these.
    assert dnnp("check", "--max-memory", "35", stdin=plan).status == 0
    result = dnnp("check", "--max-memory", "34.5", stdin=plan)
    assert result.status == 8
    assert "on gpu/0 needs 35 B" in result.err


def test_what_runs_on_one_device_refuses_shared_stages() -> None:
    plan = planned("M", training=False)
    for command in ("run", "bound"):
        result = dnnp(command, stdin=plan)
        assert result.status in (2, 3)
        assert result.err.count("\n") == 1
