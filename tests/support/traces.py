"""A reader of timelines in the Trace Event Format, by its rules and by those of Perfetto's reader.

Perfetto drops arrows whose ids are no numbers, arrows that begin or end outside every slice, and
slices that partly overlap others of their thread.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

Span = tuple[int, int]
"""Begin and end, in nanoseconds."""


def ns(us: float) -> int:
    return round(us * 1000)


@dataclass
class Read:
    """Contents of a trace, by the rules of its format."""

    about: dict[str, Any]
    slices: dict[str, list[tuple[str, int, Span]]] = field(default_factory=dict)
    """Thread of `devices` -> (stage, sample, when), by time."""
    spans: dict[str, dict[str, list[tuple[int, Span]]]] = field(default_factory=dict)
    """Process -> name -> (sample, when) of slices that may overlap."""
    arrows: list[tuple[tuple[str, str, int], tuple[str, str, int]]] = field(default_factory=list)
    """(thread, stage, sample) of the slices at both ends."""
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Name -> (when, count)."""
    warmup: set[int] = field(default_factory=set)


def parsed(data: bytes) -> Read:
    """Read a trace; whatever its format does not allow, or Perfetto drops, fails."""
    whole = json.loads(data)
    assert whole.keys() == {"otherData", "traceEvents"}
    events = whole["traceEvents"]
    read = Read(whole["otherData"])
    processes, threads = {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            assert event["pid"] not in processes
            processes[event["pid"]] = event["args"]["name"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in threads
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    assert len(set(threads.values())) == len(threads)
    opened: dict[tuple[Any, ...], tuple[int, int]] = {}
    leaves: dict[int, tuple[str, int]] = {}
    reaches: dict[int, tuple[str, int]] = {}
    for event in events:
        kind = event["ph"]
        at = 0 if kind == "M" else ns(event["ts"])
        if kind == "X":
            thread, sample = threads[event["pid"], event["tid"]], event["args"]["sample"]
            span = (at, at + ns(event["dur"]))
            read.slices.setdefault(thread, []).append((event["name"], sample, span))
            if event["cat"] == "warm-up":
                read.warmup.add(sample)
        elif kind in "be":
            key = (event["pid"], event["cat"], event["id"], event["name"])
            if kind == "b":
                assert key not in opened
                opened[key] = (event["args"]["sample"], at)
                continue
            sample, begin = opened.pop(key)
            rows = read.spans.setdefault(processes[event["pid"]], {})
            rows.setdefault(event["name"], []).append((sample, (begin, at)))
        elif kind in "sf":
            ends = leaves if kind == "s" else reaches
            assert type(event["id"]) is int
            assert event["id"] not in ends
            assert kind == "s" or event["bp"] == "e"
            ends[event["id"]] = (threads[event["pid"], event["tid"]], at)
        elif kind == "C":
            row = read.counters.setdefault(event["name"], [])
            row.append((at, event["args"]["samples"]))
        else:
            assert kind == "M", event
    assert not opened
    assert leaves.keys() == reaches.keys()
    for rows in read.slices.values():
        rows.sort(key=lambda row: row[2])
        assert all(a[2][1] <= b[2][0] for a, b in itertools.pairwise(rows))
    for number, (thread, at) in leaves.items():
        there, then = reaches[number]
        read.arrows.append((around(read, thread, at), around(read, there, then)))
    return read


def around(read: Read, thread: str, at: int) -> tuple[str, str, int]:
    """The one slice of a thread that something lies in; its end belongs to the next one."""
    found = [
        (thread, name, sample)
        for name, sample, (begin, end) in read.slices[thread]
        if begin <= at < end or begin == at
    ]
    assert len(found) >= 1
    return found[-1]
