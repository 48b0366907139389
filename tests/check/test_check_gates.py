"""Gates on memory, throughput and latency: by hand, of plans, schedules and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

import dnnp as api
from dnnp.formats.plan import plan_digest
from support.graphs import header, node, tensor
from support.run import Result, dnnp
from support.seeds import encode


def chain(times: Sequence[dict[str, float]] | None = None, **fields: object) -> bytes:
    """Three operators of 2, 4 and 1 s and of 40, 60 and 20 bytes; 10 and 20 bytes between them."""
    times = times or [{"dev": time} for time in (2, 4, 1)]
    tensors = [
        tensor(0, "input", 0, name="x"),
        *(tensor(i, "activation", size) for i, size in ((1, 10), (2, 20), (3, 0))),
    ]
    nodes = [
        node(i, "Op", [i], [i + 1], time_s=time, memory_bytes=memory)
        for i, (time, memory) in enumerate(zip(times, (40, 60, 20), strict=True))
    ]
    return encode([header(**fields), *tensors, *nodes])


THERE_AND_BACK = chain([{"dev": 2, "slow": 40}, {"slow": 8}, {"dev": 1, "slow": 20}])
"""A chain of which an accelerator cannot run the middle."""


@pytest.fixture
def platform(tmp_path: Path) -> Path:
    """A file with an accelerator of 100 bytes, and a CPU."""
    path = tmp_path / "devices.json"
    dev = {"class": "dev", "kind": "accelerator", "count": 1, "memory_bytes": 100}
    slow = {"class": "slow", "kind": "cpu", "count": 1}
    path.write_bytes(orjson.dumps([{**dev, "bandwidth_bytes_per_s": 10}, slow]))
    return path


def planned(*words: str, data: bytes | None = None) -> bytes:
    """The chain on two devices: 2 s and 1 s out in 40 bytes, then 1 s in and 5 s in 80 bytes."""
    place = ("-k", "2", "--memory", "100", "--bandwidth", "10")
    result = dnnp("partition", "-q", *place, *words, stdin=data or chain())
    assert result.status == 0, result.err
    return result.out


@pytest.fixture(scope="module")
def plan() -> bytes:
    """For throughput."""
    return planned()


def gates(result: Result) -> dict[str, dict]:
    """Verdicts of each gate in --json."""
    return {gate["gate"]: gate for gate in orjson.loads(result.out)["gates"]}


def test_what_a_plan_keeps_to(plan: bytes) -> None:
    words = ("--max-memory", "0.8", "--min-throughput", "0.166/s", "--max-latency", "9s")
    result = dnnp("check", "--json", *words, stdin=plan)
    assert result.status == 0, result.err
    found = gates(result)
    values = {name: gate["value"] for name, gate in found.items()}
    expected = {"max-memory": 0.8, "min-throughput": 1 / 6, "max-latency": 9}
    assert values == pytest.approx(expected)
    assert all(gate["holds"] and gate["unjudged"] == [] for gate in found.values())
    assert found["max-memory"]["subject"] == "stage 1 on dev/1"


def test_all_that_fail_are_on_one_line(plan: bytes) -> None:
    words = ["--max-memory", "0.5", "--min-throughput", "1", "--max-latency", "500ms"]
    result = dnnp("check", "-q", *words, "--max-gap", "0", stdin=plan)
    assert result.status == 8
    assert result.err == (
        "dnnp-check: stage 1 on dev/1 needs 0.8 of its memory (80 B of 100 B), above 0.5 "
        "(--max-memory); the throughput of the plan is 0.166667 samples/s, below 1 "
        "(--min-throughput); "
        "the latency of the plan is 9 s, above 500 ms (--max-latency)\n"
    )
    found = gates(dnnp("check", "--json", *words, "--max-gap", "0", stdin=plan))
    assert [name for name, gate in found.items() if gate["holds"]] == ["max-gap"]
    graph = api.Graph.from_bytes(plan)
    with pytest.raises(api.GateError, match=r"^the latency of the plan is 9 s, above 8 s"):
        api.check(graph, max_latency=8, max_memory=0.9)


@pytest.mark.parametrize(("limit", "status"), [("80", 0), ("79", 8), ("0.07Ki", 8), ("1Gi", 0)])
def test_memory_in_bytes(plan: bytes, limit: str, status: int) -> None:
    assert dnnp("check", "--max-memory", limit, stdin=plan).status == status


def test_stages_of_one_device_need_memory_together(platform: Path) -> None:
    """An accelerator is invoked before and after the CPU; its blocks come first."""
    words = ("--objective", "latency", "--execution", "blocks", "--invocations", "2")
    result = dnnp("partition", "--devices", platform, *words, stdin=THERE_AND_BACK)
    assert result.status == 0, result.err
    gate = ("--max-memory", "0.5", "--max-latency", "14s")
    checked = dnnp("check", "--json", *gate, stdin=result.out)
    assert checked.status == 8
    found = gates(checked)
    assert found["max-latency"]["value"] == pytest.approx(2 + 1 + 8 + 2 + 1)
    assert found["max-memory"]["value"] == pytest.approx((40 + 20) / 100)
    assert found["max-memory"]["subject"] == "stage 0 and 1 on dev/0"


def test_devices_without_a_capacity_are_named(platform: Path) -> None:
    """The CPU has none; where no device has one, there is nothing to compare with."""
    result = dnnp("partition", "--devices", platform, stdin=THERE_AND_BACK)
    assert {s["class"] for s in result.records("stage")} == {"dev", "slow"}
    checked = dnnp("check", "--json", "--max-memory", "1", stdin=result.out)
    assert checked.status == 0
    assert "no capacity is known, so --max-memory does not judge: slow/0\n" in checked.err
    assert gates(checked)["max-memory"]["unjudged"] == ["slow/0"]
    bare = dnnp("partition", "-k", "2", "--bandwidth", "10", stdin=chain())
    refused = dnnp("check", "--max-memory", "0.9", stdin=bare.out)
    assert refused.status == 3
    assert "states no memory" in refused.err
    assert "give --max-memory bytes" in refused.err
    assert dnnp("check", "--max-memory", "100", stdin=bare.out).status == 0


def test_the_time_of_a_sample_is_that_of_a_latency_plan() -> None:
    data = planned("--objective", "latency")
    assert dnnp("check", "--max-latency", "8s", stdin=data).status == 0
    late = dnnp("check", "-q", "--max-latency", "7.9s", stdin=data)
    assert late.status == 8
    assert late.err.endswith("the latency of the plan is 8 s, above 7.9 s (--max-latency)\n")
    none = dnnp("check", "--min-throughput", "1", stdin=data)
    assert none.status == 3
    assert "is for the latency of one sample, so no throughput is known" in none.err


def test_a_schedule_counts_before_its_plan(plan: bytes) -> None:
    """Four samples of 3 s and then 6 s, where stages take a sample each."""
    result = dnnp("schedule", "-q", "-n", "4", "--method", "gpipe", stdin=plan)
    assert result.status == 0, result.err
    words = ("--json", "--min-throughput", "0.1", "--max-latency", "1000s", "--max-memory", "1")
    found = gates(dnnp("check", *words, stdin=result.out))
    blocks, passes = result.records("block"), result.one("schedule")["passes"]
    first = {n: min(b["start_s"] for b in blocks if b["micro_batch"] == n) for n in range(4)}
    last = {n: max(b["end_s"] for b in blocks if b["micro_batch"] == n) for n in range(4)}
    assert [p["time_s"] for p in passes] == [3, 6]
    assert found["min-throughput"]["value"] == pytest.approx(4 / (3 + 4 * 6))
    assert found["max-latency"]["value"] == pytest.approx(max(last[n] - first[n] for n in last))
    assert found["max-latency"]["subject"] == found["min-throughput"]["subject"] == "schedule"
    units = result.one("schedule")["units"]
    needed = [0.4, 0.8, *(u["peak_bytes"] / u["memory_bytes"] for u in units)]
    assert found["max-memory"]["value"] == pytest.approx(max(needed))
    assert dnnp("check", "-q", "--min-throughput", "0.15", stdin=result.out).status == 8
    alone = [b for b in result.out.splitlines() if b'"type":"node"' not in b]
    kept = [r for r in map(orjson.loads, alone) if r["type"] in ("header", "schedule", "block")]
    kept[1].pop("digest")
    lone = encode(kept)
    assert dnnp("check", "--min-throughput", "0.14", stdin=lone).status == 0
    assert dnnp("check", "--max-gap", "0.1", stdin=lone).status == 3


def test_measured(plan: bytes) -> None:
    """A run counts where that is asked for, the last of the pipeline."""
    records = [orjson.loads(line) for line in plan.splitlines()]
    made = next(r for r in records if r["type"] == "plan")
    digest = plan_digest(made, [r for r in records if r["type"] == "stage"])
    same = {"type": "run", "provider": "cpu", "samples": 40, "digest": digest}
    figures = [("pipeline", 80, 0.5, 9.5), ("whole", 20, 2, 0.5)]
    names = ("mode", "elapsed_s", "throughput_per_s", "latency_p99_s")
    runs = [{**same, **dict(zip(names, row, strict=True))} for row in figures]
    data = encode([*records[:-1], *runs])
    words = ("--min-throughput", "0.4/s", "--max-latency", "9.2s")
    assert "the throughput of the plan" in dnnp("check", *words, stdin=data).err
    result = dnnp("check", "-q", "--measured", *words, stdin=data)
    assert result.status == 8
    assert result.err == (
        "dnnp-check: the latency of the run is 9.5 s, above 9.2 s (--max-latency)\n"
    )
    none = dnnp("check", "--measured", *words, stdin=plan)
    assert (none.status, "no record of a run of the plan" in none.err) == (3, True)
    cut = data.replace(b'"mode":"pipeline"', b'"mode":"pipeline","interrupted":true')
    none = dnnp("check", "--measured", *words, stdin=cut)
    assert (none.status, "the run was interrupted, so no throughput" in none.err) == (3, True)


def test_measured_memory(plan: bytes) -> None:
    """Measured memory of stages in the last run counts, not the plan's statement."""
    records = [orjson.loads(line) for line in plan.splitlines()]
    stages = [r for r in records if r["type"] == "stage"]
    digest = plan_digest(next(r for r in records if r["type"] == "plan"), stages)
    rows = [
        {"stage": s["id"], "device": s["device"], "predicted_s": 1, "resident_bytes": held}
        for s, held in zip(stages, (70, 95), strict=True)
    ]
    run = {"type": "run", "mode": "pipeline", "provider": "cpu", "samples": 4, "digest": digest}
    threads = encode([*records[:-1], {**run, "stages": rows}])
    data = threads.replace(b'"mode":"pipeline"', b'"mode":"pipeline","workers":"process"')
    assert dnnp("check", "-q", "--max-memory", "0.9", stdin=data).status == 0
    result = dnnp("check", "-q", "--measured", "--max-memory", "0.9", stdin=data)
    assert result.status == 8
    assert "stage 1 on dev/1 needs 0.95 of its memory (95 B of 100 B), above 0.9" in result.err
    assert dnnp("check", "-q", "--measured", "--max-memory", "95", stdin=data).status == 0
    assert dnnp("check", "-q", "--measured", "--max-memory", "94", stdin=data).status == 8
    for other in (plan, threads):  # a thread's memory is that of its session before it ran
        none = dnnp("check", "--measured", "--max-memory", "94", stdin=other)
        assert (none.status, "resident_bytes" in none.err) == (3, True)


def test_what_says_nothing_is_refused() -> None:
    verbatim = planned(data=chain(units={"time": "unknown"}))
    for words in (("--min-throughput", "1"), ("--max-latency", "1s")):
        result = dnnp("check", *words, stdin=verbatim)
        assert result.status == 3
        assert "units.time is 'unknown', so no " in result.err
    assert dnnp("check", "--max-memory", "0.8", stdin=verbatim).status == 0
    for words in (("--min-throughput", "1"), ("--max-latency", "1s"), ("--max-memory", "1")):
        assert dnnp("check", *words, stdin=chain()).status == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--max-latency", "50"), "'50' is not a latency with its unit, such as 5us or 0.2ms"),
        (("--min-throughput", "100/h"), "'100/h' is not a number a second, such as 100/s"),
        (("--min-throughput", "1GB/s"), "'1GB/s' is not a number a second, such as 100/s"),
        (("--max-memory", "90%"), "'90%' is not a share or a size, such as 0.9 or 14Gi"),
        (("--max-memory", "0"), "'0' is not above 0"),
        (("--measured",), "--measured is for --min-throughput or --max-latency or --max-memory"),
    ],
)
def test_mistaken_limits(words: tuple[str, ...], reason: str, plan: bytes) -> None:
    result = dnnp("check", *words, stdin=plan)
    assert (result.status, result.out) == (2, b"")
    assert reason in result.err


def test_what_does_not_hold_comes_first(plan: bytes) -> None:
    """A wrong plan is that, whatever its gates say; they are judged by what is recomputed."""
    wrong = plan.replace(b'"compute_s":5.0', b'"compute_s":4.0')
    assert wrong != plan
    result = dnnp("check", "--json", "--max-latency", "1s", stdin=wrong)
    assert result.status == 3
    assert gates(result)["max-latency"]["value"] == pytest.approx(9)
