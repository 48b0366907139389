"""The profile that ONNX Runtime writes with `SessionOptions.enable_profiling`.

A list of trace events: one of category `Node`, called `<node>_kernel_time`, whenever a node has
run, and one of category `Session`, called `model_run`, for each run. Builds with GPU profiling
put the kernels of a node behind it, in category `Kernel`. Times are whole microseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dnnp.core.model.errors import FormatError
from dnnp.formats.checked_json import Fields
from dnnp.formats.given_cost import GivenCost

Record = dict[str, Any]

_SUFFIX = "_kernel_time"
_CPU = "CPUExecutionProvider"


@dataclass
class _Event:
    """One run of a node."""

    name: str
    provider: str
    thread: object
    begin: float
    """Microseconds, as all here."""
    length: float
    kernels: float | None = None
    """What its kernels took on a GPU; None: not recorded."""

    @property
    def end(self) -> float:
        return self.begin + self.length


def read_events(rows: Sequence[Any], path: str) -> tuple[tuple[GivenCost, ...], str]:
    """The median time of every node over all runs, and a caveat; see `cost_files.read_costs`.

    What ran inside another node, in the body of a loop or a branch, is part of that one.
    """
    events, starts = _events(rows, path)
    if not events:
        raise FormatError("a profile without a node: was anything run?", path)
    inner = _inner(events)
    spent: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for i, event in enumerate(events):
        length = event.length if event.kernels is None else event.kernels
        run = bisect_right(starts, event.begin)
        spent[event.name][run] += 0.0 if i in inner else length
    count = max(len(starts), 1)
    costs = []
    for name, by_run in spent.items():
        times = [*by_run.values(), *[0.0] * (count - len(by_run))]
        costs.append(GivenCost(name, median(times) * 1e-6))
    return tuple(costs), _caveat(events)


def _events(rows: Sequence[Any], path: str) -> tuple[list[_Event], list[float]]:
    """Runs of nodes, in the order of the file; the beginnings of all runs, sorted."""
    events: list[_Event] = []
    starts: list[float] = []
    for i, row in enumerate(rows):
        fields = Fields(row, f"[{i}]", path)
        kind = fields.get("cat", "")
        if kind not in ("Node", "Session", "Kernel"):
            continue
        name = fields.text("name")
        if kind == "Session" and name == "model_run":
            starts.append(fields.number("ts"))
        elif kind == "Kernel" and events:
            events[-1].kernels = (events[-1].kernels or 0.0) + fields.number("dur")
        elif kind == "Node" and name.endswith(_SUFFIX):
            more = Fields(fields.get("args", {}), f"[{i}].args", path)
            events.append(
                _Event(
                    name.removesuffix(_SUFFIX),
                    more.text("provider", _CPU),
                    fields.number("tid", 0),
                    fields.number("ts"),
                    fields.number("dur"),
                )
            )
    return events, sorted(starts)


def _inner(events: Sequence[_Event]) -> set[int]:
    """Those that lie within another one of their thread."""
    order = sorted(
        range(len(events)), key=lambda i: (str(events[i].thread), events[i].begin, -events[i].end)
    )
    found: set[int] = set()
    outer: _Event | None = None
    for i in order:
        event = events[i]
        if outer is not None and outer.thread == event.thread and event.begin < outer.end:
            if event.length > 0 and event.end <= outer.end:
                found.add(i)
            continue
        outer = event
    return found


def with_kernels(rows: Sequence[Record]) -> list[Record]:
    """The same events, those of nodes with the time of their kernels where these were recorded."""
    found: list[Record] = []
    at, kernels = -1, False
    for row in rows:
        if row.get("cat") == "Node":
            at, kernels = len(found), False
        elif row.get("cat") == "Kernel" and at >= 0:
            before = found[at]["dur"] if kernels else 0
            found[at] = {**found[at], "dur": before + row["dur"]}
            kernels = True
        found.append(row)
    return found


def where_it_ran(rows: Sequence[Record], path: str) -> tuple[dict[str, set[str]], str]:
    """Nodes by the provider that ran them, and the caveat of `read_events`."""
    events, _ = _events(rows, path)
    found: dict[str, set[str]] = defaultdict(set)
    for event in events:
        found[event.provider].add(event.name)
    return dict(found), _caveat(events)


def _caveat(events: Sequence[_Event]) -> str:
    """What is wrong with times that the host took for another device."""
    others = sorted({e.provider for e in events if e.provider != _CPU and e.kernels is None})
    if not others:
        return ""
    return (
        f"times of {', '.join(others)} are those of the host, which may only start the work; "
        "ONNX Runtime built with profiling for the device has those of its kernels"
    )
