"""Timelines of runs, read by a parser of our own and by Perfetto's, if installed."""

from __future__ import annotations

import importlib.util
import io
import shutil
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnp.core.runtime.report.statistics import Trace, timeline
from dnnp.formats.trace_events import Edge, Move, Timeline, Work, write_trace
from support.run import dnnp
from support.running import SPLIT, known_time, network, planned, run_pipeline, stage_of, step_of
from support.traces import Read, Span, parsed


def check(read: Read, trace: Trace, edges: list[tuple[int, int]], names: list[str]) -> None:
    """The parsed timeline equals the run."""
    begins = [trace.start_ns.min()]
    if trace.arrived_ns is not None:
        begins.append(trace.arrived_ns.min())
    zero = int(min(begins))
    seen: dict[tuple[str, int], tuple[str, Span]] = {}
    for thread, rows in read.slices.items():
        for name, sample, span in rows:
            assert (name, sample) not in seen
            seen[name, sample] = (thread, span)
    samples = range(trace.first, trace.done)
    assert len(seen) == len(names) * len(samples)
    for i, name in enumerate(names):
        for column, sample in enumerate(samples):
            begin, end = trace.start_ns[i, column] - zero, trace.end_ns[i, column] - zero
            assert seen[name, sample][1] == (begin, end)
    wanted = set()
    links: dict[str, set[tuple[int, Span]]] = defaultdict(set)
    for a, b in edges:
        changes = []
        for column, sample in enumerate(samples):
            (here, (_, ready)), (there, (taken, _)) = seen[names[a], sample], seen[names[b], sample]
            wanted.add(((here, names[a], sample), (there, names[b], sample)))
            changes += [(int(trace.end_ns[a, column]) - zero, 1)]
            changes += [(int(trace.start_ns[b, column]) - zero, -1)]
            if here != there:
                links[f"{here} to {there}"].add((sample, (ready, taken)))
        count, counts = 0, []
        for at, step in sorted(changes, key=lambda c: (c[0], -c[1])):
            count += step
            counts.append((at, count))
        assert read.counters[f"waiting from {names[a]} to {names[b]}"] == counts
        assert min(n for _, n in counts) >= 0
        assert counts[-1][1] == 0
    assert set(read.arrows) == wanted
    assert len(read.arrows) == len(wanted)
    found = {name: set(rows) for name, rows in read.spans.get("links", {}).items()}
    assert found == dict(links)
    if trace.arrived_ns is not None:
        times = zip(samples, trace.arrived_ns - zero, trace.done_ns - zero, strict=True)
        assert read.spans["samples"]["sample"] == [(s, (a, d)) for s, a, d in times]


def bytes_of(made: Timeline) -> bytes:
    out = io.BytesIO()
    write_trace(out, made, {"tool": "test"})
    return out.getvalue()


def test_a_timeline_is_what_happened() -> None:
    """A skip connection, and a stage with replicas."""
    steps = [
        step_of("stage 0", "x", ["a"], known_time(0.0002, ["a"])),
        step_of("stage 1", "a", ["b"], *[known_time(0.0005, ["b"])] * 2),
        step_of("stage 2", "ab", ["y"], known_time(0.0001, ["y"])),
    ]
    stages = [stage_of([0]), stage_of([1], 1, 2), stage_of([2], 3)]
    trace = run_pipeline(steps, [{"x": 1}], 21, ["y"])
    made = timeline(trace, steps, stages, ["y"], warmup=4)
    read = parsed(bytes_of(made))
    check(read, trace, [(0, 1), (0, 2), (1, 2)], ["stage 0", "stage 1", "stage 2"])
    assert sorted(read.slices) == [f"cpu-core/{i}" for i in range(4)]
    assert {s for _, s, _ in read.slices["cpu-core/2"]} == set(range(1, 21, 2))
    assert read.warmup == {0, 1, 2, 3}
    assert read.about == {"tool": "test"}


def random_timeline(count: int, rng: np.random.Generator, first: int = 0) -> tuple[Trace, Timeline]:
    """Two stages on two devices, and a third one on the first, at any times."""
    gaps = rng.integers(0, 5, (3, 2 * count)) * (rng.random((3, 2 * count)) < 0.8)
    start, end = np.zeros((3, count), dtype=np.int64), np.zeros((3, count), dtype=np.int64)
    for s in range(count):
        for i, before in enumerate((None, 0, 1)):
            # Stage 2 runs on the device of stage 0, after its part of the next sample.
            free = end[i, s - 1] if s else 0
            if i == 0:
                free = max(free, end[2, s - 1] if s else 0)
            if i == 2:
                free = max(free, end[0, s])
            ready = 0 if before is None else end[before, s]
            start[i, s] = max(free, ready) + gaps[i, 2 * s]
            end[i, s] = start[i, s] + gaps[i, 2 * s + 1] + 1
    arrived = start[0] - rng.integers(0, 9, count)
    arrived = np.minimum.accumulate(arrived[::-1])[::-1] + 10**12
    start, end = start + 10**12, end + 10**12
    ones = np.ones(3, dtype=np.int64)
    trace = Trace(start, end, end[2], ones, {}, False, first=first, arrived_ns=arrived)
    tracks = [np.full(count, i) for i in (0, 1, 0)]
    works = [Work(f'st"age\n{i}', tracks[i], start[i], end[i]) for i in range(3)]
    edges = [Edge(0, 1), Edge(1, 2), Edge(0, 2)]
    made = Timeline(["d/0", "d/1"], works, edges, end[2], arrived, first=first)
    return trace, made


@pytest.mark.parametrize("count", [1, 2, 30, 300])
def test_any_times(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.formats.trace_events.CHUNK", 64)
    rng = np.random.default_rng(count)
    for first in (0, 4096):
        trace, made = random_timeline(count, rng, first)
        edges = [(edge.tail, edge.head) for edge in made.edges]
        check(parsed(bytes_of(made)), trace, edges, [work.name for work in made.works])


def test_nothing_happened() -> None:
    none = np.zeros(0, dtype=np.int64)
    made = Timeline(["d/0"], [Work("stage 0", none, none, none)], [], none)
    assert parsed(bytes_of(made)).slices == {}


class Counted(io.RawIOBase):
    """Counts what is written, and keeps nothing."""

    size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)


def test_a_long_trace_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.formats.trace_events.CHUNK", 512)
    _, made = random_timeline(1_500, np.random.default_rng(0))
    move = Move("move", made.works[0].end_ns, made.works[1].start_ns)
    made = Timeline(made.tracks, made.works, made.edges, made.done_ns, moves=[move])
    out = Counted()
    tracemalloc.start()
    try:
        write_trace(out, made, {})  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert out.size > 5 << 19


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    (folder / "plan.dnnp").write_bytes(planned(network(), folder, SPLIT))
    return folder / "plan.dnnp"


def test_the_command_writes_one(plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    words = ["-n", "12", "--warmup", "2", "--trace", path]
    result = dnnp("run", *words, plan)
    assert result.status == 0, result.err
    read = parsed(path.read_bytes())
    assert sorted(read.slices) == [f"cpu-core/{i}" for i in range(3)]
    assert {len(rows) for rows in read.slices.values()} == {14}
    assert read.warmup == {0, 1}
    # An arrow for each of the three pairs that hand over, and each sample.
    assert len(read.arrows) == 3 * 14
    assert read.about["plan"] == result.one("plan")["digest"]
    rated = dnnp("run", *words, "--rate", "2000", plan)
    assert rated.status == 0, rated.err
    read = parsed(path.read_bytes())
    assert len(read.spans["samples"]["sample"]) == 12
    assert read.warmup == set()
    missing = dnnp("run", *words[:-1], tmp_path / "none" / "t.json", plan)
    assert (missing.status, missing.out) == (1, b"")
    same = dnnp("run", *words, "--save-outputs", path, plan)
    assert (same.status, "name the same file" in same.err) == (2, True)


@pytest.mark.parametrize("transfers", [[], ["--transfers", "non-blocking"]])
def test_a_schedule(plan: Path, tmp_path: Path, transfers: list[str]) -> None:
    path = tmp_path / "trace.json"
    scheduled = dnnp("schedule", "-n", "6", *transfers, plan)
    assert scheduled.status == 0, scheduled.err
    result = dnnp("run", "--trace", path, stdin=scheduled.out)
    assert result.status == 0, result.err
    read = parsed(path.read_bytes())
    assert sorted(read.slices) == [f"cpu-core/{i}" for i in range(3)]
    assert {len(rows) for rows in read.slices.values()} == {6}
    blocks = sorted(scheduled.records("block"), key=lambda block: block["start_s"])
    passes = scheduled.one("schedule")["passes"]
    for number in range(3):
        order = [
            b["micro_batch"] for b in blocks
            if passes[b["pass"]].get("stage") == number and passes[b["pass"]]["kind"] == "forward"
        ]  # fmt: skip
        assert [s for _, s, _ in read.slices[f"cpu-core/{number}"]] == order
    names = {p["name"] for p in passes if p["kind"] == "transfer"}
    assert names <= set(read.spans["links"])


@pytest.mark.skipif(
    importlib.util.find_spec("perfetto") is None or not shutil.which("trace_processor_shell"),
    reason="needs the package perfetto, and its trace_processor_shell on the path",
)
def test_perfetto_reads_it(tmp_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    _, made = random_timeline(50, np.random.default_rng(1))
    path = tmp_path / "trace.json"
    path.write_bytes(bytes_of(made))
    shell = shutil.which("trace_processor_shell")
    processor = TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=shell))
    try:
        faults = "select name, value from stats where severity = 'error' and value > 0"
        assert [(row.name, row.value) for row in processor.query(faults)] == []
        slices = "select count(*) as n from thread_track join slice on track_id = thread_track.id"
        assert [row.n for row in processor.query(slices)] == [150]
        assert [row.n for row in processor.query("select count(*) as n from flow")] == [150]
    finally:
        processor.close()
