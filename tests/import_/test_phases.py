"""Phases of decoders: as options name them, as streams hold them, and priced like imports alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dnnp import coarsen, load, profile, split
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.phases import Point, passes_of, sequences_of
from dnnp.formats.inputs.lengths import parse_workload, read_lengths
from dnnp.formats.onnx.phases import parse_phases
from dnnp.graph import Graph
from support.decoder_models import eager_decoder, grouped_decoder
from support.run import dnnp

PHASES = ["prompt:seq=4..40", "token:batch=2|8,past=4..60"]


def test_points_of_phases() -> None:
    found = parse_phases(["prompt:batch=2,seq=8..16,width=3", "token:past=5"])
    assert found == [
        (Point("prompt", 2, 8, 0), {"width": 3}), (Point("prompt", 2, 16, 0), {"width": 3}),
        (Point("token", 1, 1, 5), {}),
    ]  # fmt: skip
    several = parse_phases(["token:batch=4|1|4,past=2..9"])
    assert [(p.rows, p.past) for p, _ in several] == [(4, 2), (4, 9), (1, 2), (1, 9)]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["prompt"], "give NAME:batch=B"), (["promt:seq=4"], "did you mean 'prompt'"),
        (["prompt:seq"], "no KEY=VALUE"), (["prompt:seq=4,seq=5"], "no KEY=VALUE"),
        (["prompt:seq=9..4"], "is no range"), (["prompt:seq=1..4,past=0..9"], "one range"),
        (["prompt:batch=1..4"], "one range"), (["prompt:seq=0"], "seq must be at least 1"),
        (["token:seq=2"], "seq=1"), (["prompt:batch=1|2"], "no KEY=VALUE"),
        (["prompt:seq=4", "prompt:seq=5"], "is there twice"),
    ],
)  # fmt: skip
def test_malformed_phases(texts: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_phases(texts)


def test_times_of_each_phase_are_carried_over(tmp_path: Path) -> None:
    graph = load(grouped_decoder(tmp_path / "m.onnx"), phase=PHASES)
    start = profile(graph, device=["cpu-core"])
    found = profile(start, mode="scaled", device=["a100"], source="cpu-core").stream()
    right = profile(graph, device=["a100"]).stream().get("phase")[1:]
    for record, own, other in zip(
        found.get("phase")[1:], right, start.stream().get("phase")[1:], strict=True
    ):
        assert record["times"]["a100"] == pytest.approx(own["times"]["a100"])
        assert record["times"]["cpu-core"] == other["times"]["cpu-core"]
    assert len(right) == 5


@pytest.mark.parametrize("make", [eager_decoder, grouped_decoder])
def test_each_phase_is_priced_as_by_itself(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "m.onnx")
    priced = profile(load(path, phase=PHASES)).stream()
    records = priced.get("phase")
    assert [(r["name"], r["rows"], r["seq"], r["past"]) for r in records] == [
        ("prompt", 1, 4, 0), ("prompt", 1, 40, 0), ("token", 2, 1, 4), ("token", 2, 1, 60),
        ("token", 8, 1, 4), ("token", 8, 1, 60),
    ]  # fmt: skip
    for record in records[1:]:
        dims = {
            "batch_size": record["rows"], "sequence_length": record["seq"],
            "past_sequence_length": record["past"],
        }  # fmt: skip
        if make is grouped_decoder:
            dims["total_sequence_length"] = record["past"] + record["seq"]
        alone = profile(load(path, dims=dims)).stream()
        assert record["sizes"] == [t["size_bytes"] for t in alone.get("tensor")]
        times = [n["time_s"]["cpu-core"] for n in alone.get("node")]
        assert record["times"]["cpu-core"] == pytest.approx(times)


def test_shapes_that_differ_by_pass_are_found_in_each(tmp_path: Path) -> None:
    path = eager_decoder(tmp_path / "m.onnx")
    dims = {"batch_size": 1, "sequence_length": 4, "past_sequence_length": 0}
    taken = []
    for graph in (load(path, phase=PHASES), load(path, dims=dims)):
        nodes = profile(graph, device=["cpu-core-avx512"]).records("node")
        taken.append([n["time_s"]["cpu-core-avx512"] > 0 for n in nodes if n["op"] == "Shape"])
    assert taken == [[True, True], [False, False]]


def test_groups_are_priced_in_each_phase(tmp_path: Path) -> None:
    path = eager_decoder(tmp_path / "m.onnx")
    grouped = coarsen(load(path, phase=PHASES))
    priced = profile(grouped)
    records = priced.stream().get("phase")
    groups = len(priced.stream().get("group"))
    assert all(len(r["group_times"]["cpu-core"]) == groups for r in records[1:])
    again = coarsen(priced).stream().get("phase")
    assert all("group_times" not in r for r in again)
    plan = split(priced, k=2, workload=[(10, 9)]).stream()
    times = plan.get("phase")[1]["times"]["cpu-core"]
    times[times.index(max(times))] *= 2
    with pytest.raises(FormatError, match="priced; run dnnp-profile again"):
        split(Graph(plan), k=2, workload=[(10, 9)])


def test_passes_of_a_sequence() -> None:
    points = [Point("prompt", 1, 4, 0), Point("prompt", 1, 8, 0), Point("token", 2, 1, 4),
              Point("token", 2, 1, 12)]  # fmt: skip
    work = sequences_of([(5, 3), (7, 1)], points)
    assert (work.prompt, work.tokens, work.longest, work.rows) == (6.0, 2.0, 8, 2)
    assert work.token_past == pytest.approx((5 + 6) / 2)
    early, late = passes_of(points, work)[2:]
    assert passes_of(points, work)[:2] == (0.5, 0.5)
    assert early + late == pytest.approx(1)
    assert late == pytest.approx((5.5 - 4) / 8)
    chunks = [Point("prompt", 1, 4, 0), Point("prompt", 1, 4, 12)]
    work = sequences_of([(12, 1)], chunks)
    assert sum(passes_of(chunks, work)) == pytest.approx(3)
    assert work.prompt_past == pytest.approx(4)
    for lengths, reason in (
        ([(3, 1)], "phase 'prompt' is priced for 4..8"), ([(8, 9)], "priced for 4..12"), ([], "no"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=reason):
            sequences_of(lengths, points)


def test_lengths_of_sequences() -> None:
    assert parse_workload("prompt=5,tokens=7") == (5, 7)
    assert parse_workload("trace.csv") is None
    for text in ("prompt=5", "prompt=5,tokens=0", "prompt=5,tokens=x", "prompt=1,prompt=2"):
        with pytest.raises(UsageError, match="--workload"):
            parse_workload(text)
    trace = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n\n7 3\n"
    assert read_lengths(trace, "f") == [(4808, 10), (7, 3)]
    for data, reason in ((b"a b\n1 x\n", "f:2"), (b"", "no lengths"), (b"5 0\n", "f:1")):
        with pytest.raises(FormatError, match=reason):
            read_lengths(data, "f")


def test_what_is_refused(tmp_path: Path) -> None:
    path = eager_decoder(tmp_path / "m.onnx")
    priced = profile(load(path, phase=PHASES))
    plain = profile(load(path, dims={"batch_size": 1, "sequence_length": 1,
                                     "past_sequence_length": 4}))  # fmt: skip
    for graph, more, reason in (
        (plain, {"workload": [(5, 5)]}, "the graph has no phases"),
        (plain, {"max_tpot": 1.0}, "the graph has no phases"),
        (priced, {"comm": "overlap"}, "--comm overlap: not known"),
        (priced, {"objective": "gpipe"}, "--objective gpipe: not known"),
        (priced, {"max_replicas": 2}, "--max-replicas: not known"),
        (priced, {"max_length": 9, "workload": [(8, 8)]}, "the longest sequence has 16"),
    ):
        with pytest.raises(UsageError, match=reason):
            split(graph, k=2, **more)
    with pytest.raises(UsageError, match="--costs: not known where the graph has phases"):
        profile(load(path, phase=PHASES), costs=[tmp_path / "t.csv"])
    with pytest.raises(UsageError, match="no phases: no --phase"):
        load(path, phase=PHASES, training=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": 7}, "stands in place"), ({"sizes": []}, "0 values for"),
        ({"times": {}}, "price it by dnnp-profile"), ({"flop": [1.0]}, "1 values for"),
    ],
)  # fmt: skip
def test_forged_phases(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    stream = profile(load(eager_decoder(tmp_path / "m.onnx"), phase=["prompt:seq=4..8"])).stream()
    stream.get("phase")[1] |= change
    with pytest.raises(FormatError, match=reason):
        split(Graph(stream), k=2)


def test_the_commands(tmp_path: Path) -> None:
    path = grouped_decoder(tmp_path / "m.onnx")
    words = [word for phase in PHASES for word in ("--phase", phase)]
    first = dnnp("import", path, *words, "-o", tmp_path / "m.dnnp")
    assert first.status == 0, first.err
    trace = tmp_path / "trace.txt"
    trace.write_text("8 4\n20 9\n")
    made = dnnp("partition", "-k", "2", "--workload", trace, "--in-flight", "8",
                tmp_path / "m.dnnp", "-o", tmp_path / "plan.dnnp")  # fmt: skip
    assert made.status == 0, made.err
    assert "sequences a pass over tokens" in made.err
    assert "with 8 sequences under way, TTFT" in made.err
    shown = dnnp("check", tmp_path / "plan.dnnp", "--max-ttft", "100s", "--max-tpot", "1ns")
    assert shown.status == 8
    assert "its TPOT is" in shown.err
    for limit in ("--max-ttft", "--max-tpot"):
        none = dnnp("partition", "-k", "2", limit, "1ns", tmp_path / "m.dnnp", "-o", tmp_path / "x")
        assert (none.status, "without transfers it takes" in none.err) == (4, True)
    ran = dnnp("run", tmp_path / "plan.dnnp", "-o", tmp_path / "ran.dnnp")
    assert (ran.status, "--generate runs them" in ran.err) == (2, True)
