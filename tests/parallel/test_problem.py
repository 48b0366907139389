"""From records to the problem of a parallel plan, and to its stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnp.core.model import plan as plans
from dnnp.formats.records import RECORDS
from dnnp.options import table
from support import graphs
from support.graphs import tensor
from support.run import dnnp
from support.seeds import encode

N = 4


def stream(**changes: Any) -> bytes:
    """Two nodes that work, forward and backward, on one or two devices; the second is larger."""
    records: list[dict[str, Any]] = [
        {
            "type": "header", "format": "dnnp", "version": 1, "model": "m",
            "units": {"time": "s"}, "provenance": [], "training": True,
        },
        {
            "type": "device", "class": "gpu", "kind": "accelerator", "count": 3,
            "memory_bytes": 100.0, "bandwidth_bytes_per_s": 1.0,
        },
    ]  # fmt: skip
    for i, name in enumerate(("x", "a", "b", "db", "da")):
        kind = "activation" if i else "input"
        records.append(tensor(i, kind, 2.0, name=name))
    rows: list[tuple[int, list[int], int, float, float, bool]] = [
        (0, [0], 1, 4.0, 10.0, False),
        (1, [1], 2, 12.0, 20.0, False),
        (2, [2], 3, 24.0, 6.0, True),
        (3, [3], 4, 8.0, 4.0, True),
    ]
    for v, reads, writes, time, memory, backward in rows:
        node = {
            "type": "node", "id": v, "name": f"n{v}", "op": "MatMul", "inputs": reads,
            "outputs": [writes], "time_s": {"gpu": time}, "memory_bytes": memory,
            "color": v if v < 2 else 3 - v,
            "shards": [
                {
                    "devices": 2, "time_s": {"gpu": time / 2}, "memory_bytes": memory / 2,
                    "held_bytes": 0.0 if backward else 2.0, "weight_bytes": 1.0,
                    "collectives": [{"kind": "all-reduce", "bytes": 1.0}],
                }
            ],
        }  # fmt: skip
        node |= {"backward": True, "of": 3 - v} if backward else {"held_bytes": 4.0}
        records.append(node | changes.get(f"n{v}", {}))
    return encode(records)


def stages(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The plan record, and those of its stages."""
    records = [json.loads(line) for line in data.splitlines()]
    (plan,) = (r for r in records if r["type"] == "plan")
    return plan, [r for r in records if r["type"] == "stage"]


def partition(*options: str, data: bytes | None = None) -> Any:
    return dnnp("partition", *options, stdin=stream() if data is None else data)


def test_the_larger_stage_takes_two_devices() -> None:
    result = partition("--tensor-parallel", "2", "--micro-batches", str(N))
    assert result.status == 0, result.err
    plan, (first, second) = stages(result.out)
    assert plan["parallel"]["tensor_parallel"] == 2
    # 18 of compute and two all-reduces of a byte on two devices; b goes nowhere, a and db cross.
    assert second["shards"] == 2
    assert second["compute_s"] == 18 + 2
    assert second["collective_s"] == 2
    assert second["in_s"] == 2
    assert second["out_s"] == 2
    assert plan["value"] == second["load_s"] == 24
    assert plan["status"] == "optimal"
    # Its own micro-batch, and of the first stage two under way.
    assert (first["in_flight"], second["in_flight"]) == (2, 1)
    assert first["memory_bytes"] == 14 - 4 + 2 * 4
    assert second["memory_bytes"] == 13
    # The wide stage has the first devices.
    assert (first["device"], second["device"]) == ("gpu/2", "gpu/0")


def test_recomputation_trades_time_for_memory() -> None:
    data = stream(n1={"memory_bytes": 8.0})
    tight = ("--tensor-parallel", "1", "--memory", "15", "-k", "2")
    result = partition(*tight, data=data)
    assert result.status == 4
    assert "no parallel plan fits" in result.err
    result = partition(*tight, "--recompute", "auto", data=data)
    assert result.status == 0, result.err
    _, (first, second) = stages(result.out)
    # 4 forward twice and 8 backward; what was held for each micro-batch is there once.
    assert first["recomputed"] == [0]
    assert first["compute_s"] == 16
    assert first["memory_bytes"] == 14
    assert "recomputed" not in second


def small(room: float, *nodes: dict[str, Any], size: float = 2.0) -> bytes:
    """A forward node and a backward one that reads what it makes, on two devices."""
    head = json.loads(stream().splitlines()[0])
    device = {
        "type": "device", "class": "gpu", "kind": "accelerator", "count": 2,
        "memory_bytes": room, "bandwidth_bytes_per_s": 100.0,
    }  # fmt: skip
    kinds = enumerate(("input", "activation", "activation"))
    tensors = [tensor(i, kind, size) for i, kind in kinds]
    rows = [
        graphs.node(i, "X", [i], [i + 1], **({"backward": True} if i else {}), **fields)
        for i, fields in enumerate(nodes)
    ]
    return encode([head, device, *tensors, *rows])


def test_a_stage_of_the_backward_pass_alone_has_nothing_to_run_again() -> None:
    ahead = {"time_s": {"gpu": 1.0}, "memory_bytes": 7.0}
    behind = {"time_s": {"gpu": 3.0}, "memory_bytes": 10.0, "held_bytes": 4.0}
    # It keeps none of the 30 bytes that it reads for a pass that it has not got.
    data = small(12.0, ahead, behind, size=30.0)
    result = partition("--recompute", "full", data=data)
    assert result.status == 0, result.err
    _, rows = stages(result.out)
    assert [(s["nodes"], s.get("recomputed"), s["memory_bytes"]) for s in rows] == [
        ([0], [0], 7.0), ([1], None, 10.0),
    ]  # fmt: skip
    assert dnnp("check", stdin=result.out).status == 0


def test_what_runs_again_is_a_choice_of_each_node() -> None:
    def shard(time: float, memory: float, again: float, less: float) -> dict[str, Any]:
        recomputed = {"time_s": {"gpu": again}, "memory_bytes": less}
        times = {"time_s": {"gpu": time}, "memory_bytes": memory}
        return {"color": 0, **times, "shards": [{"devices": 1, **times, "recomputed": recomputed}]}

    # Of one colour, and so in one stage; 8 bytes hold them if the first alone runs again.
    data = small(8.0, shard(2.0, 6.0, 3.0, 2.0), shard(5.0, 6.0, 9.0, 5.0))
    result = partition("--recompute", "auto", data=data)
    assert result.status == 0, result.err
    plan, (only,) = stages(result.out)
    assert (plan["value"], plan["status"], only["recomputed"]) == (8.0, "optimal", [0])
    assert dnnp("check", stdin=result.out).status == 0


def test_replicas_share_a_batch() -> None:
    result = partition("--data-parallel", "3", "--micro-batches", "300", "--weight-sync", "server")
    plan, (only,) = stages(result.out)
    assert only["replicas"] == 3
    assert only["load_s"] == pytest.approx(48 / 3 + only["sync_s"])
    assert plan["parallel"]["weight_sync"] == "server"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "slice"), "no --method"),
        (("--max-replicas", "2"), "--data-parallel"),
        (("--objective", "gpipe"), "gpipe"),
        (("--memory-mode", "overflow"), "--memory-model sum"),
        (("--validity", "free"), "no --validity"),
        (("--memory-model", "peak"), "--memory-model peak"),
        (("--charge-io",), "no --charge-io"),
        (("--cluster-size", "3", "--inner-bandwidth", "0.5"), "bandwidth inside a cluster"),
    ],
)
def test_what_parallel_plans_do_not_know(options: tuple[str, ...], words: str) -> None:
    result = partition("--tensor-parallel", "2", *options)
    assert result.status == 2
    assert words in result.err
    assert result.err.count("\n") == 1


def test_a_degree_twice_is_refused() -> None:
    twice = [{"devices": 2, "time_s": {"gpu": 1.0}}, {"devices": 2, "time_s": {"gpu": 2.0}}]
    result = partition("--tensor-parallel", "2", data=stream(n0={"shards": twice}))
    assert result.status == 3
    assert "shards[1].devices" in result.err


@pytest.fixture
def planned() -> bytes:
    """A parallel plan with shards."""
    result: bytes = partition("--tensor-parallel", "2", "--micro-batches", str(N)).out
    return result


def test_schedules_keep_the_devices_of_a_stage_busy_together(planned: bytes) -> None:
    result = dnnp("schedule", "-n", "8", stdin=planned)
    assert result.status == 0, result.err
    records = [json.loads(line) for line in result.out.splitlines()]
    (schedule,) = (r for r in records if r["type"] == "schedule")
    assert schedule["repetend"]["period_s"] == 24
    assert [unit["name"] for unit in schedule["units"]] == ["gpu/0", "gpu/1", "gpu/2"]
    assert dnnp("check", stdin=result.out).status == 0
    assert dnnp("schedule", "--transfers", "blocking", stdin=planned).status == 0


def test_commands_for_stages_on_one_device_refuse_shards(planned: bytes, tmp_path: Path) -> None:
    export = ("export", "--to", "stages", "-o", str(tmp_path / "stages"))
    for command, *options in (("run",), ("bound",), export):
        result = dnnp(command, *options, stdin=planned)
        assert result.status in (2, 3), (command, result.err)
        assert result.err.count("\n") == 1


def test_views_say_how_many_devices_a_stage_has(planned: bytes) -> None:
    assert "gpu/0 / 2" in dnnp("view", "--as", "text", stdin=planned).out.decode()
    table = dnnp("view", "--as", "csv", "--table", "stages", stdin=planned).out.decode()
    header, _, second = (row.split(",") for row in table.splitlines())
    assert second[header.index("shards")] == "2"


def test_choices_are_the_same_wherever_they_are_stated() -> None:
    fields = RECORDS["plan"]["parallel"].fields
    assert fields is not None
    assert fields["recompute"].enum == table.RECOMPUTE == plans.RECOMPUTE
    assert fields["weight_sync"].enum == table.WEIGHT_SYNC == tuple(plans.WEIGHT_SYNC)
