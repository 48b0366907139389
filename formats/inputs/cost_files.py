"""Costs that other programs found: a table, or the profile of ONNX Runtime or of trtexec.

The memory of nodes that ONNX Runtime writes for `session.collect_node_memory_stats_to_file` is a
table of bytes, without quotes; each name ends in a hash of the node.

The layers that `trtexec --exportProfile` writes: the number of runs, then a record a layer. The
name of a layer tells which nodes it joins: ` + ` and ` || ` stand between them, and some words
around them say what the layer is. Layers that TensorRT's compiler makes end in `_myl0_5` or the
like; those called `__myl_...` name operators but no node. What `trtexec --exportLayerInfo` writes,
of an engine built with `--profilingVerbosity=detailed`, names the nodes of each.

The profile that ONNX Runtime writes with `SessionOptions.enable_profiling`. A list of trace events:
one of category `Node`, called `<node>_kernel_time`, whenever a node has run, and one of category
`Session`, called `model_run`, for each run. Builds with GPU profiling put the kernels of a node
behind it, in category `Kernel`. Times are whole microseconds.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Floats
from dnnp.core.model.text import instead
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.inputs.checked_json import Fields, parse_json
from dnnp.formats.workloads.drawn import Item
from dnnp.formats.workloads.own_csv import Table, columns_of, rows_of


def read_costs(data: bytes, path: str) -> CostFile:
    """Read a file of costs; what it is is seen by its content.

    Raises
    ------
    FormatError
        It is none of them, or malformed; the message names the line or the entry, and the field.
    """
    if data.startswith(_MEMORY):
        return CostFile(path, "onnxruntime", (), whole=False, memory=read_memory(data, path))
    if data.lstrip()[:1] not in (b"[", b"{"):
        return CostFile(path, "csv", read_table(data, path), whole=False)
    document = _document(data, path)
    rows = document if isinstance(document, list) else []
    if _is_trtexec(rows):
        return CostFile(path, "tensorrt", read_layers(rows, path), whole=True)
    if isinstance(document, dict) and "Layers" in document:
        made_of = read_made_of(document, path)
        return CostFile(path, "tensorrt", (), whole=False, made_of=made_of)
    if any(isinstance(row, dict) and "cat" in row for row in rows):
        costs, caveat, said = read_events(rows, path)
        return CostFile(path, "onnxruntime", costs, whole=True, caveat=caveat, said=said)
    raise FormatError(
        "no file of costs: neither a profile of ONNX Runtime nor layers of trtexec "
        f"--exportProfile, nor a table with the columns name, class, seconds{what_it_is(data)}",
        path,
    )


def told_apart(files: Sequence[CostFile]) -> list[CostFile]:
    """The files that have costs, with what the others say that these join.

    Raises
    ------
    FormatError
        A file says what layers join, but no file of its kind has their times.
    """
    found = []
    for file in files:
        others = [other for other in files if other.made_of and other.kind == file.kind]
        made_of = {name: parts for other in others for name, parts in other.made_of.items()}
        costs = [
            replace(cost, parts=made_of[cost.name], span=None) if cost.name in made_of else cost
            for cost in file.costs
        ]
        if not file.made_of:
            found.append(replace(file, costs=tuple(costs)))
        elif not any(other.costs for other in files if other.kind == file.kind):
            reason = "says what layers are made of, not what they take: give the file of "
            raise FormatError(f"{reason}trtexec --exportProfile as well", file.path)
    return found


def _document(data: bytes, path: str) -> Any:
    """The JSON document; a profile of ONNX Runtime that was cut off lacks its last bracket.

    TensorRT writes what separates nodes as it is, which JSON does not allow.
    """
    if b'"Layers"' in data:
        data = data.replace(b"\x1e", b"\\u001e").replace(b"\x1f", b"\\u001f")
    try:
        return parse_json(data, path)
    except FormatError as error:
        whole, comma, _ = data.rstrip().rpartition(b",\n")
        if not comma or b'"cat"' not in data[:200]:
            raise error from None
        try:
            return json.loads(whole + b"]")
        except (ValueError, RecursionError):
            raise error from None


def _is_trtexec(rows: Sequence[Any]) -> bool:
    """True if these are what trtexec writes: the number of runs, then layers."""
    layers = [row for row in rows if isinstance(row, dict) and "name" in row]
    times = ("timeMs", "averageMs", "medianMs")
    return any(name in row for row in layers for name in times) and not any(
        "cat" in row for row in layers
    )


@dataclass(frozen=True)
class GivenCost:
    """Something that took time, as a file calls it."""

    name: str
    """As it stands in the file."""
    seconds: float
    parts: tuple[str, ...] = ()
    """Names of what it joins; empty: itself."""
    span: tuple[str, str] | None = None
    """Names of the first and the last of what it joins, where those between have none."""
    device: str | None = None
    """Device class; None: the file does not say."""
    line: int | None = None


@dataclass(frozen=True)
class CostFile:
    """Costs that a file states."""

    path: str
    kind: str
    """One of `records.COST_FILES`."""
    costs: tuple[GivenCost, ...]
    whole: bool
    """A profile: all that ran is in it."""
    caveat: str = ""
    """Warning about the times; empty: none."""
    said: str = ""
    """Changes of the times, in words; empty: none."""
    made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> names of what it joins, for the costs of other files of this kind; a file with any
    has no costs."""
    memory: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> bytes that it allocates for outputs, and meanwhile; a file with any has no costs."""


_MEMORY = b"#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations"


def read_memory(data: bytes, path: str) -> dict[str, tuple[int, int]]:
    """Memory of nodes, which what they read, and weights, belong to others; FormatError: none."""
    found: dict[str, tuple[int, int]] = {}
    for line, row in enumerate(data.decode(errors="replace").splitlines()[1:], 2):
        name, *sizes = row.rsplit(",", 4)
        if len(sizes) != 4 or not all(s.isascii() and s.isdigit() and len(s) < 17 for s in sizes):
            raise FormatError("expected a name and four numbers of bytes", path, line)
        found[re.sub(r"_\d+$", "", name)] = int(sizes[2]), int(sizes[3])
    if not found:
        raise FormatError("memory of no node: was anything run?", path)
    return found


COLUMNS = ("name", "class", "seconds")


def read_table(data: bytes, path: str) -> tuple[GivenCost, ...]:
    """Read comma-separated values with a header row; see `cost_files.read_costs`."""
    table = Table(data, path)
    columns = columns_of(table)
    for name in ("name", "seconds"):
        if name not in columns:
            raise FormatError(
                f"the first row names no column {name}; it must be name,class,seconds, "
                "where class may be left out",
                path, 1, name,
            )  # fmt: skip
    for name in columns:
        if name not in COLUMNS:
            raise FormatError(f"{shown(name)} is no column{instead(name, COLUMNS)}", path, 1)
    costs: dict[tuple[str, str], GivenCost] = {}
    for line, row in rows_of(table, columns):
        if "name" not in row:
            raise FormatError("is empty", path, line, "name")
        seconds = Item({"seconds": "", **row}, path, line).number("seconds")
        cost = GivenCost(row["name"], seconds, device=row.get("class"), line=line)
        first = costs.setdefault((cost.name, cost.device or ""), cost)
        if first is not cost:
            reason = f"{shown(cost.name)} has a cost in line {first.line} already"
            raise FormatError(reason, path, line, "name")
    return tuple(costs.values())


_AROUND = re.compile(
    r"Reformatting CopyNode for (?:Input|Output) Tensor \d+ to "
    r"|(?:copied_)?(?:un)?(?:reshape|squeeze|shuffle|transpose|cast)(?:_node)?_(?:before|after)_"
    r"|node_of_"
)
"""Words in front of the name of a node that a layer is part of."""
_FOREIGN = re.compile(r"\{ForeignNode\[(.*)\]\}", re.DOTALL)
"""Nodes that its compiler took together, by the first and the last name."""
_AFTER = re.compile(r"(?:_myl\d+(?:_\d+)*| copy)$")
"""Text after the name of a node that the compiler took, or of a tensor that is copied."""
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\s\x1e\x1f\[]|$)")
"""A node in what a layer is made of; separators stand between them."""
_BETWEEN = re.compile(r" \+ | \|\| |, ")


def read_layers(rows: Sequence[Any], path: str) -> tuple[GivenCost, ...]:
    """The time of every layer: the median over the runs where there is one, else the mean.

    See `cost_files.read_costs`.
    """
    costs = []
    runs = 0
    for i, row in enumerate(rows):
        fields = Fields(row, f"[{i}]", path)
        if "name" not in fields:
            runs = fields.count("count") or runs
            continue
        name = fields.text("name")
        for key in ("medianMs", "averageMs"):
            if key in fields:
                milliseconds = fields.number(key)
                break
        else:
            if not runs:
                raise FormatError("no count of runs before it to divide by", path, None,
                                  fields.place("timeMs"))  # fmt: skip
            milliseconds = fields.number("timeMs") / runs
        parts, span = layer_names(name)
        costs.append(GivenCost(name, milliseconds * 1e-3, parts, span))
    return tuple(costs)


def read_made_of(document: dict[str, Any], path: str) -> dict[str, tuple[str, ...]]:
    """Name of each layer of `trtexec --exportLayerInfo` -> names of the nodes that it is made of.

    Raises
    ------
    FormatError
        No layer says so.
    """
    found: dict[str, tuple[str, ...]] = {}
    rows = document["Layers"]
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("Name"), str):
            nodes = _NODE.findall(str(row.get("Metadata", "")))
            if nodes:
                found[row["Name"]] = tuple(dict.fromkeys(nodes))
    if not found:
        reason = "no layer says which nodes it is made of; build the engine with "
        raise FormatError(f"{reason}--profilingVerbosity=detailed", path, None, "Layers")
    return found


def layer_names(name: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Names that the name of a layer joins; or the first and the last one of a range.

    >>> layer_names("/a/Conv + PWN(/b/Relu, /b/Add)")
    (('/a/Conv', '/b/Relu', '/b/Add'), None)
    >>> layer_names("/a/MatMul_myl0_2")
    (('/a/MatMul',), None)
    >>> layer_names("{ForeignNode[/a/Add.../b/Softmax]}")
    ((), ('/a/Add', '/b/Softmax'))
    """
    name = _AFTER.sub("", name.strip())
    foreign = _FOREIGN.fullmatch(name)
    if foreign:
        first, dots, last = foreign[1].partition("...")
        return ((), (first, last)) if dots else ((foreign[1],), None)
    parts: dict[str, None] = {}
    for word in _BETWEEN.split(_AROUND.sub("", name, count=1)):
        plain = word.strip()
        while plain.startswith(("PWN(", "(")) or _AROUND.match(plain):
            plain = _AROUND.sub("", plain.removeprefix("PWN").removeprefix("("), count=1)
        plain = plain.rstrip(")") if "(" not in plain else plain
        if plain:
            parts[plain] = None
    return tuple(parts), None


Record = dict[str, Any]

_SUFFIX = "_kernel_time"
_CPU = "CPUExecutionProvider"
_COARSE_US = 20.0
"""The profiler counts whole microseconds: below this a mean resolves more than a median."""
_OWN, _WITHIN, _MOST_US = 0.1, 0.75, 4.0
"""An empty node's share of what the profiler says of it; what the profiler adds to a node over what
it takes between two; the most it was seen to add. Of ONNX Runtime 1.32: 0.2 of 2 microseconds, 1.7
over 2.3, 4 microseconds."""


@dataclass(slots=True)
class Event:
    """One run of a node."""

    name: str
    op: str
    provider: str
    thread: str
    begin: float
    """Microseconds, as all here."""
    length: float
    kernels: float | None = None
    """Time of its kernels on a GPU; None: not recorded."""
    is_inner: bool = False
    """It ran within another one, in the body of a loop or a branch."""
    holds: int = 0
    """Events that ran within it."""

    @property
    def end(self) -> float:
        return self.begin + self.length


class Charge(NamedTuple):
    """Microseconds that a profiler adds to a node, and from one node to the next."""

    within: float = 0.0
    between: float = 0.0


class Spent(NamedTuple):
    """Microseconds of a node in each run that has nodes, and what the profiler added: f64[runs]."""

    op: str
    times: Floats
    added: Floats


def net(times: Floats, added: Floats) -> float:
    """The typical time without what a profiler added; an empty node still takes a tenth."""
    time = typical(times)
    return max(time - float(added.mean()), _OWN * time)


def typical(micro: Sequence[float] | Floats) -> float:
    """The median; of times near the clock's resolution the mean of the middle half."""
    middle, count = float(np.median(micro)), len(micro)
    if middle >= _COARSE_US:
        return middle
    quarter = max(count // 4, min((count - 1) // 2, 1))
    return float(np.sort(micro)[quarter : count - quarter].mean())


def read_events(rows: Sequence[Any], path: str) -> tuple[tuple[GivenCost, ...], str, str]:
    """The time of every node, what the user must know of it, and what was taken off.

    See `cost_files.read_costs`. Runs without nodes tell what the others take without the profiler.
    """
    events, runs = node_events(rows, path)
    if not events:
        raise FormatError("a profile without a node: was anything run?", path)
    charge = charge_of(events, runs)
    spent, seen = spent_by(events, runs, charge)
    times = {name: net(one.times, one.added) for name, one in spent.items()}
    before = math.fsum(typical(one.times) for one in spent.values())
    after = math.fsum(times.values())
    said = f"the profiler added {charge.within:.1f} us to each node, {before - after:.0f} of "
    said = f"{said}{before:.0f} us in a run; that is taken off" if before > after else ""
    plain = [length for run, (_, length) in enumerate(runs) if run not in seen]
    if plain and after and all(event.kernels is None for event in events):
        times = {name: us * typical(plain) / after for name, us in times.items()}
        said += "; " * bool(said) + f"scaled to {typical(plain):.0f} us of a run without nodes"
    return tuple(GivenCost(n, us * 1e-6) for n, us in times.items()), _caveat(events), said


def charge_of(events: Sequence[Event], runs: Sequence[tuple[float, float]]) -> Charge:
    """Likely time that the profiler added, by the shortest nodes and the gaps between nodes."""
    outer = sorted((e for e in events if not e.is_inner), key=lambda e: (e.thread, e.begin))
    gaps = [b.begin - a.end for a, b in pairwise(outer) if a.thread == b.thread]
    if not gaps:
        return Charge()
    between = max(typical(gaps), 0.0)
    spent, _ = spent_by(outer, runs, Charge())
    shortest = sorted(typical(one.times) for one in spent.values())[len(spent) // 10]
    return Charge(min(shortest, _WITHIN * between, _MOST_US), between)


def spent_by(
    events: Sequence[Event], runs: Sequence[tuple[float, float]], charge: Charge
) -> tuple[dict[str, Spent], set[int]]:
    """Time of each node, and the runs that have nodes.

    What ran in the body of a node is part of that. Times of kernels have nothing of the profiler.
    """
    starts = [begin for begin, _ in runs]
    run_of = [max(bisect_right(starts, event.begin) - 1, 0) for event in events]
    place = {run: i for i, run in enumerate(sorted({*run_of}))}
    found: dict[str, Spent] = {}
    for event, run in zip(events, run_of, strict=True):
        if event.name not in found:
            found[event.name] = Spent(event.op, *np.zeros((2, len(place))))
        _, times, added = found[event.name]
        if not event.is_inner:
            times[place[run]] += event.length if event.kernels is None else event.kernels
        if not event.is_inner and event.kernels is None:
            added[place[run]] += charge.within + event.holds * sum(charge)
    return found, {*place}


def node_events(rows: Sequence[Any], path: str) -> tuple[list[Event], list[tuple[float, float]]]:
    """Runs of nodes, in the order of the file; beginning and length of all runs, sorted."""
    events: list[Event] = []
    runs: list[tuple[float, float]] = []
    for i, row in enumerate(rows):
        fields = Fields(row, f"[{i}]", path)
        kind = fields.get("cat", "")
        if kind not in ("Node", "Session", "Kernel"):
            continue
        name = fields.text("name")
        if kind == "Session" and name == "model_run":
            runs.append((fields.number("ts"), fields.number("dur", 0)))
        elif kind == "Kernel" and events:
            events[-1].kernels = (events[-1].kernels or 0.0) + fields.number("dur")
        elif kind == "Node" and name.endswith(_SUFFIX):
            more = Fields(fields.get("args", {}), f"[{i}].args", path)
            events.append(
                Event(
                    name.removesuffix(_SUFFIX),
                    str(more.get("op_name", "")),
                    more.text("provider", _CPU),
                    str(fields.number("tid", 0)),
                    fields.number("ts"),
                    fields.number("dur"),
                )
            )
    _find_inner(events)
    return events, sorted(runs)


def _find_inner(events: Sequence[Event]) -> None:
    """Mark those that lie within another one of their thread."""
    outer: Event | None = None
    for event in sorted(events, key=lambda e: (e.thread, e.begin, -e.end)):
        if outer is not None and outer.thread == event.thread and event.begin < outer.end:
            if event.length > 0 and event.end <= outer.end:
                event.is_inner = True
                outer.holds += 1
            continue
        outer = event


def where_it_ran(rows: Sequence[Record], path: str) -> tuple[dict[str, set[str]], str]:
    """Nodes by the provider that ran them, and the caveat of `read_events`."""
    events, _ = node_events(rows, path)
    found: dict[str, set[str]] = defaultdict(set)
    for event in events:
        found[event.provider].add(event.name)
    return dict(found), _caveat(events)


def _caveat(events: Sequence[Event]) -> str:
    """The caveat about times that the host took for another device."""
    others = sorted({e.provider for e in events if e.provider != _CPU and e.kernels is None})
    if not others:
        return ""
    return (
        f"times of {', '.join(others)} are those of the host, which may only start the work; "
        "ONNX Runtime built with profiling for the device has those of its kernels"
    )
