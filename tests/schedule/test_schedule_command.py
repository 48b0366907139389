"""dnnp-schedule from the outside."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.graphs import random_stream, to_bytes
from support.run import dnnp, interrupted

TRAINING = {
    # period, memory, span, and what a makespan is beyond the periods (TARGETS of the issue)
    "V": (4, 4, 16, 12), "X": (8, 4, 20, 6), "M": (6, 5, 36, 12), "NN": (8, 6, 46, 12),
    "K": (6, 3, 16, 4),
}  # fmt: skip
INFERENCE = {"V": 1, "X": 2, "M": 2, "NN": 3, "K": 2}
PARETO = {
    "V": {4: 4, 3: 8, 2: 8, 1: 16},
    "M": {5: 6, 4: 7, 3: 10, 2: 10, 1: 18},
    "NN": {6: 8, 5: 9, 4: 9, 3: 12, 2: 12, 1: 20},
    "K": {3: 6, 2: 8},
    "X": {4: 8, 3: 9, 2: 13},
}
CLASSICS = ("sequential", "gpipe", "1f1b", "1f1b+")


def schedule(*arguments: object, stdin: bytes = b"") -> dict:
    """The schedule record, after the checker has agreed with the stream."""
    result = dnnp("schedule", *map(str, arguments), stdin=stdin)
    assert result.status == 0, result.err
    checked = dnnp("check", stdin=result.out)
    assert checked.status == 0, checked.err
    return result.one("schedule")


def plan(n: int = 12, *options: object, seed: int = 3, **kinds: object) -> bytes:
    """A random graph that was split."""
    result = dnnp(
        "partition",
        "-q",
        "-k",
        3,
        *map(str, options),
        stdin=to_bytes(random_stream(seed, n, **kinds)),
    )
    assert result.status == 0, result.err
    return result.out


@pytest.mark.parametrize("name", TRAINING)
def test_shapes_in_training(name: str) -> None:
    period, memory, span, beyond = TRAINING[name]
    record = schedule("--shape", name, "-n", 8)
    repetend = record["repetend"]
    assert repetend["status"] == "optimal"
    assert (repetend["period_s"], repetend["memory_bytes"], repetend["span_s"]) == (
        period,
        memory,
        span,
    )
    assert record["makespan_s"] <= 8 * period + beyond + (name == "X")
    assert max(unit["peak_bytes"] for unit in record["units"]) <= memory or name == "X"


@pytest.mark.parametrize("name", INFERENCE)
def test_shapes_in_inference(name: str) -> None:
    record = schedule("--shape", name, "--inference", "-n", 6)
    assert record["repetend"]["period_s"] == INFERENCE[name]
    assert record["repetend"]["status"] == "optimal"
    assert record["rate_bound_s"] == INFERENCE[name]


@pytest.mark.parametrize("name", PARETO)
def test_trade_off(name: str) -> None:
    record = schedule("--shape", name, "-n", 4, "--pareto", "--unroll", 1)
    points = [(p["memory_bytes"], p["period_s"], p["period_bound_s"]) for p in record["pareto"]]
    assert points == sorted(points)
    for memory, period in PARETO[name].items():
        # Whole periods are known; fractions may be shorter.
        assert min(p for m, p, _ in points if m <= memory) <= period
    assert all(bound == period for _, period, bound in points)


def test_unrolling_beats_one_micro_batch() -> None:
    record = schedule("--shape", "V", "--memory", 3, "--unroll", 3, "-n", 9)
    assert math.isclose(record["repetend"]["period_s"] / 3, 16 / 3)
    assert math.isclose(record["rate_bound_s"], 16 / 3)
    assert schedule("--shape", "V", "--memory", 3, "-n", 9)["repetend"]["unroll"] == 3


@pytest.mark.parametrize("method", CLASSICS)
def test_recipes(method: str) -> None:
    record = schedule("--shape", "V", "--method", method, "-n", 6)
    assert record["method"] == method
    assert "repetend" not in record
    expected = {"sequential": 6 * 16}.get(method, 9 * 4)
    assert record["makespan_s"] == expected
    assert record["rate_s"] == {"sequential": 16}.get(method, 4)


def test_optimal_is_no_longer_than_auto() -> None:
    best = schedule("--shape", "V", "--devices", 2, "--method", "optimal", "-n", 3)
    found = schedule("--shape", "V", "--devices", 2, "-n", 3)
    assert best["status"] == "optimal"
    assert best["makespan_s"] <= found["makespan_s"]


def test_auto_is_no_longer_than_recipes() -> None:
    """Within the memory of its own repetend; ZB-H1 is hard to complete to from that."""
    split = ("--shape", "V", "--split-backward", 0.3, "-n", 8)
    found = schedule(*split)
    assert found["makespan_s"] <= schedule(*split, "--method", "zb-h1")["makespan_s"]


def test_tessel_finds_the_same_period() -> None:
    ours = schedule("--shape", "V", "--memory", 4, "-n", 6)
    theirs = schedule("--shape", "V", "--memory", 4, "-n", 6, "--method", "tessel")
    assert theirs["repetend"]["period_s"] == ours["repetend"]["period_s"]


@pytest.mark.parametrize("options", [(), ("--comm", "duplex"), ("--validity", "free")])
def test_plans(options: tuple[str, ...]) -> None:
    made = plan(12, *options)
    value = json.loads(next(x for x in made.splitlines() if b'"type":"plan"' in x))["value"]
    record = schedule("-n", 10, stdin=made)
    assert math.isclose(record["repetend"]["period_s"], value)
    assert record["repetend"]["status"] == "optimal"


def test_plans_in_training() -> None:
    made = plan(14, training=True)
    record = schedule("-n", 5, stdin=made)
    assert {p["kind"] for p in record["passes"]} == {"forward", "backward"}


def test_replicas_take_turns() -> None:
    made = plan(9, "--max-replicas", 2, seed=5)
    record = schedule("-n", 8, stdin=made)
    assert record["repetend"]["unroll"] % max(len(p["homes"]) for p in record["passes"]) == 0


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
def test_transfers(mode: str) -> None:
    base = schedule("--shape", "V", "-n", 4)
    moved = schedule("--shape", "V", "-n", 4, "--transfers", mode, "--transfer-time", 0.5)
    assert [p["kind"] for p in moved["passes"]].count("transfer") == 6
    assert moved["makespan_s"] > base["makespan_s"]
    links = [u for u in moved["units"] if u.get("link")]
    assert len(links) == (6 if mode == "non-blocking" else 0)


def test_a_new_schedule_replaces_the_old_one() -> None:
    first = dnnp("schedule", "-n", "4", stdin=plan())
    second = dnnp("schedule", "-n", "3", stdin=first.out)
    assert second.one("schedule")["micro_batches"] == 3
    assert len(second.records("block")) == 3 * len(second.one("schedule")["passes"])
    dropped = dnnp("partition", "-k", "2", stdin=second.out)
    assert not dropped.records("schedule") + dropped.records("block")


def test_same_bytes_again() -> None:
    arguments = ("schedule", "--shape", "K", "-n", "7")
    assert dnnp(*arguments).out == dnnp(*arguments).out


def test_pictures(tmp_path: Path) -> None:
    picture = tmp_path / "v.svg"
    result = dnnp("schedule", "--shape", "V", "-n", "4", "--chart", "--svg", picture)
    assert result.status == 0, result.err
    rows = [line for line in result.err.splitlines() if line.startswith("device/")]
    assert len(rows) == 4
    assert rows[0].split("|")[1].split()[:2] == ["0", "1"]
    svg = "{http://www.w3.org/2000/svg}"
    titles = [t.text or "" for t in ElementTree.parse(picture).iter(f"{svg}title")]
    assert sum(" of micro-batch " in text for text in titles) == 4 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "K", "--devices", 3), "shape K needs an even number of devices, not 3"),
        (("--shape", "V", "--devices", 0), "a shape needs at least 1 device, not 0"),
        (("--shape", "V", "--devices", 10**9), "--devices: 1000000000 is above 4096"),
        (("--shape", "V", "-n", 0), "0 is too small"),
        (("--shape", "V", "-n", 10**9), "at most 1000000 are scheduled"),
        (("--shape", "Z"), "invalid choice: 'Z'"),
        (("--shape", "V", "--placement", "x"), "give --shape or --placement, not both"),
        (("--shape", "V", "x.dnnp"), "give a stream or --shape, not both"),
        (("--devices", 3), "--devices is for --shape"),
        (("--inference",), "--inference is for --shape"),
        (("--shape", "V", "--latency", 1), "--latency is for --transfers"),
        (("--shape", "V", "--method", "gpipe", "--unroll", 2), "--unroll is for --method auto"),
        (("--shape", "V", "--eager"), "--eager is for --method tessel"),
        (("--shape", "K", "--method", "1f1b"), "1f1b"),
    ],
)
def test_usage(arguments: tuple, message: str) -> None:
    result = dnnp("schedule", *map(str, arguments))
    assert result.status == 2
    assert message in result.err
    assert not result.out


def test_streams_that_cannot_be_scheduled() -> None:
    unplanned = dnnp("schedule", stdin=to_bytes(random_stream(1, 5)))
    assert unplanned.status == 2
    assert "no plan to schedule" in unplanned.err
    lone = dnnp("schedule", stdin=b"garbage\n")
    assert lone.status == 3


@pytest.mark.parametrize(
    ("limit", "method", "message"),
    [
        (0.5, "auto", "device/0 may hold 0.5 B, but block 'F0' alone needs 1 B"),
        (2, "gpipe", "gpipe holds 4 B on device/0, its limit is 2 B"),
        (2, "1f1b", "1f1b holds"),
    ],
)
def test_limits(limit: float, method: str, message: str) -> None:
    result = dnnp("schedule", "--shape", "V", "-n", "4", "--memory", str(limit), "--method", method)
    assert result.status == 4
    assert message in result.err


def test_placement_files(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    forward = {"name": "F", "devices": [0], "time_s": 1, "memory_bytes": 1}
    keeps = {"devices": 1, "blocks": [forward]}
    path.write_text(json.dumps(keeps))
    assert schedule("--placement", path, "-n", 3)["makespan_s"] == 3
    path.write_text(json.dumps({**keeps, "memory_bytes": 2}))
    result = dnnp("schedule", "--placement", path)
    assert result.status == 4
    assert "leave" in result.err
    missing = dnnp("schedule", "--placement", tmp_path / "none.json")
    assert missing.status == 1
    path.write_text("{")
    assert dnnp("schedule", "--placement", path).status == 3


def test_a_limit_keeps_what_there_is() -> None:
    """Too little time to search: still a valid schedule."""
    result = dnnp("schedule", "--shape", "NN", "--devices", "8", "-n", "12", "--time-limit", "0")
    assert result.status in (0, 5)
    if result.status == 0:
        assert dnnp("check", stdin=result.out).status == 0


def test_interrupted_search(tmp_path: Path) -> None:
    result = interrupted(
        "schedule",
        "-v",
        "--shape",
        "X",
        "--devices",
        "8",
        "--memory",
        "6",
        "-n",
        "24",
        "--method",
        "optimal",
        "--effort",
        "1000",
        after="searching",
    )
    assert result.status == 130
    assert result.one("schedule")["status"] == "interrupted"
