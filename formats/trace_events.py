"""Timelines of runs in the Trace Event Format, which Perfetto and chrome://tracing show.

Every device is a thread of the process `devices`, with a slice for each sample of each stage;
arrows lead from the slice that makes tensors to the one that reads them. Every pair of devices
that hand over is a track of `links`, with a slice from when a sample was ready to when it was taken
on, and a counter of how many of them wait. What arrives at its own pace has a slice in `samples`,
from its arrival to its last output. Times are microseconds from the first one.

Of what the format allows, Perfetto reads only numbers (or hexadecimal texts) as ids of arrows, and
older versions scale all times by `displayTimeUnit`; so ids are whole numbers, and milliseconds,
the default, are not asked for.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

Times = NDArray[np.int64]
"""i64[samples], nanoseconds."""

DEVICES, LINKS, SAMPLES = 1, 2, 3
"""Processes of the trace."""

CHUNK = 4096
"""Samples that are written at once."""


class Work(NamedTuple):
    """Work of a stage."""

    name: str
    tracks: Times
    """Track of each sample."""
    start_ns: Times
    end_ns: Times


class Edge(NamedTuple):
    """Tensors that go from one stage to another: positions of both."""

    tail: int
    head: int


class Move(NamedTuple):
    """A transfer of a schedule."""

    name: str
    start_ns: Times
    end_ns: Times


@dataclass(frozen=True)
class Timeline:
    """Times of every sample in each stage."""

    tracks: Sequence[str]
    """Devices, or what runs beside others on one."""
    works: Sequence[Work]
    edges: Sequence[Edge]
    done_ns: Times
    """End of each sample."""
    arrived_ns: Times | None = None
    """Arrival of each sample, at its own pace."""
    moves: Sequence[Move] = ()
    first: int = 0
    """Number of the first sample."""
    warmup: int = 0
    """Samples that do not count, at the begin."""

    @property
    def begin_ns(self) -> int:
        """The first time of all."""
        rows = [work.start_ns for work in self.works] + [move.start_ns for move in self.moves]
        if self.arrived_ns is not None:
            rows.append(self.arrived_ns)
        return min((int(row.min()) for row in rows if len(row)), default=0)


def write_trace(file: BinaryIO, timeline: Timeline, about: Mapping[str, object]) -> None:
    """Write a timeline; `about` is said of the trace as a whole."""
    file.write(b'{"otherData":' + orjson.dumps(dict(about)))
    file.write(b',"traceEvents":[\n')
    before = b""
    for part in _parts(timeline):
        text = ",\n".join(part)
        if text:
            file.write(before + text.encode())
            before = b",\n"
    file.write(b"\n]}\n")


def _parts(timeline: Timeline) -> Iterator[Iterable[str]]:
    """Events, a few thousand at a time."""
    yield _names(timeline)
    begin = timeline.begin_ns
    for a in range(0, len(timeline.done_ns), CHUNK):
        samples = slice(a, a + CHUNK)
        for work in timeline.works:
            yield _slices(timeline, work, samples, begin)
        for number, edge in enumerate(timeline.edges):
            yield _hands(timeline, number, edge, samples, begin)
        for number, move in enumerate(timeline.moves):
            rows = (timeline.first + a, move.start_ns[samples], move.end_ns[samples])
            yield _spans(LINKS, move.name, f"m{number}", rows, begin)
        if timeline.arrived_ns is not None:
            rows = (timeline.first + a, timeline.arrived_ns[samples], timeline.done_ns[samples])
            yield _spans(SAMPLES, "sample", "s", rows, begin)
    for edge in timeline.edges:
        yield from _waiting(timeline, edge, begin)


def _text(value: str) -> str:
    return orjson.dumps(value).decode()


def _us(ns: int) -> str:
    """Microseconds, to the nanosecond."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _names(timeline: Timeline) -> Iterator[str]:
    """Names of processes and threads."""
    processes = {DEVICES: "devices", LINKS: "links"}
    if timeline.arrived_ns is not None:
        processes[SAMPLES] = "samples"
    for pid, name in processes.items():
        yield f'{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":{_text(name)}}}}}'
        order = f'"args":{{"sort_index":{pid}}}'
        yield f'{{"ph":"M","name":"process_sort_index","pid":{pid},{order}}}'
    for tid, name in enumerate(timeline.tracks, 1):
        where = f'"pid":{DEVICES},"tid":{tid}'
        yield f'{{"ph":"M","name":"thread_name",{where},"args":{{"name":{_text(name)}}}}}'
        yield f'{{"ph":"M","name":"thread_sort_index",{where},"args":{{"sort_index":{tid}}}}}'


def _slices(timeline: Timeline, work: Work, samples: slice, begin: int) -> Iterator[str]:
    """Slices of what a stage computed."""
    name = _text(work.name)
    rows = (work.tracks[samples], work.start_ns[samples] - begin, work.end_ns[samples] - begin)
    for i, (track, start, end) in enumerate(zip(*(row.tolist() for row in rows), strict=True)):
        place = samples.start + i
        category = "warm-up" if place < timeline.warmup else "stage"
        yield (
            f'{{"ph":"X","name":{name},"cat":"{category}","pid":{DEVICES},"tid":{track + 1},'
            f'"ts":{_us(start)},"dur":{_us(end - start)},'
            f'"args":{{"sample":{timeline.first + place}}}}}'
        )


def _hands(
    timeline: Timeline, number: int, edge: Edge, samples: slice, begin: int
) -> Iterator[str]:
    """Events of what was handed over: an arrow, and a slice of the link if devices differ."""
    tail, head = timeline.works[edge.tail], timeline.works[edge.head]
    rows = (
        tail.tracks[samples],
        head.tracks[samples],
        tail.start_ns[samples] - begin,
        tail.end_ns[samples] - begin,
        head.start_ns[samples] - begin,
    )
    first_id = number * (timeline.first + len(timeline.done_ns))
    for i, (a, b, start, ready, taken) in enumerate(
        zip(*(row.tolist() for row in rows), strict=True)
    ):
        sample = timeline.first + samples.start + i
        flow = f'"name":"tensors","cat":"flow","id":{first_id + sample},"pid":{DEVICES}'
        # The arrow begins within the slice that it leaves: its end belongs to what comes after.
        at = max(ready - 1, start)
        yield f'{{"ph":"s",{flow},"tid":{a + 1},"ts":{_us(at)}}}'
        yield f'{{"ph":"f","bp":"e",{flow},"tid":{b + 1},"ts":{_us(taken)}}}'
        if a != b:
            name = f"{timeline.tracks[a]} to {timeline.tracks[b]}"
            yield from _span(LINKS, name, f"{number}.{sample}", sample, (ready, taken))


def _spans(
    pid: int, name: str, prefix: str, rows: tuple[int, Times, Times], begin: int
) -> Iterator[str]:
    """Slices that may overlap, one a sample from `rows[0]` on."""
    first, starts, ends = rows
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        times = (start - begin, end - begin)
        yield from _span(pid, name, f"{prefix}.{first + i}", first + i, times)


def _span(pid: int, name: str, number: str, sample: int, times: tuple[int, int]) -> Iterator[str]:
    what = f'"name":{_text(name)},"cat":"{"link" if pid == LINKS else "sample"}","pid":{pid}'
    what += f',"tid":{pid},"id":"{number}"'
    yield f'{{"ph":"b",{what},"ts":{_us(times[0])},"args":{{"sample":{sample}}}}}'
    yield f'{{"ph":"e",{what},"ts":{_us(times[1])}}}'


def _waiting(timeline: Timeline, edge: Edge, begin: int) -> Iterator[Iterable[str]]:
    """Number of samples that wait between two stages, whenever that changes."""
    tail, head = timeline.works[edge.tail], timeline.works[edge.head]
    name = _text(f"waiting from {tail.name} to {head.name}")
    times = np.concatenate([tail.end_ns, head.start_ns])
    steps = np.ones(len(times), dtype=np.int64)
    steps[len(tail.end_ns) :] = -1
    # Where both happen at once, a sample comes before it goes.
    order = np.argsort(times, kind="stable")
    counts, times = np.cumsum(steps[order]), times[order] - begin
    for a in range(0, len(times), CHUNK):
        rows = zip(times[a : a + CHUNK].tolist(), counts[a : a + CHUNK].tolist(), strict=True)
        yield (
            f'{{"ph":"C","name":{name},"pid":{LINKS},"ts":{_us(at)},"args":{{"samples":{count}}}}}'
            for at, count in rows
        )
