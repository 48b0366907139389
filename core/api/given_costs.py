"""Price a stream by costs that another program found; nodes without one stay as they were."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dnnp.callbacks import Callbacks, open_source
from dnnp.core.model.errors import DnnpError, FormatError, UsageError
from dnnp.core.model.text import called, counted, instead
from dnnp.core.runtime.model.fusions import optimised_model, regions_by_name
from dnnp.formats.edited_costs import forget_old_costs, summed_times
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.inputs.cost_files import CostFile, GivenCost, read_costs, told_apart
from dnnp.formats.inputs.devices import DeviceSpec, class_record, device_names, load_device
from dnnp.formats.stream import Stream
from dnnp.options.table import DEFAULT_DEVICE
from dnnp.pricing import check_units

ENOUGH = 0.95
"""Share of the time of a profile whose nodes must be known to say that others did not run."""

_NAMED = 4
"""Names that an error lists."""

Places = list[int]
"""Positions of nodes."""


def price_given(
    stream: Stream,
    paths: Sequence[str],
    devices: Sequence[str],
    model: str | None,
    caller: Callbacks,
) -> None:
    """Put the costs of files on nodes; what a later file says counts. Groups cost their sum.

    A node that a file does not name keeps the price that it has. In a profile all stands that ran:
    if the nodes of at least `ENOUGH` of its time are known, others take no time.

    Parameters
    ----------
    devices
        Classes that the stream prices, or devices by name or file; costs without a class are for
        the only one.
    model
        The source model, if it is not where the stream says.

    Raises
    ------
    UsageError
        It is not clear which class costs are for, or the stream's unit of time is unknown.
    FormatError
        A file is malformed, names no node or a class that is not known, or leaves nodes without any
        price.
    InputFileError
        A file cannot be read.
    """
    check_units(stream)
    clustering_of(stream, graph_of(stream), priced=False)
    nodes = stream.get("node")
    before = {name for record in nodes for name in record.get("time_s", {})}
    files = told_apart([read_costs(caller.read_input(path), path) for path in paths])
    classes = _Classes(stream, devices)
    given: dict[str, dict[int, float]] = {}
    entries = []
    for file in files:
        if file.memory:
            _add_memory(stream, file, caller)
        else:
            entries += _add_file(stream, file, classes, given, model, caller)
    for name, times in given.items():
        if name not in before and len(times) < len(nodes):
            _refuse(stream, name, times, files)
    _write(stream, given, classes, entries, caller)


class _Classes:
    """The device classes that costs may be for."""

    def __init__(self, stream: Stream, devices: Sequence[str]) -> None:
        self.records = {record["class"]: record for record in stream.get("device")}
        self._priced = sorted({c for node in stream.get("node") for c in node.get("time_s", {})})
        self.specs: dict[str, DeviceSpec] = {}
        self._named: list[str] = []
        for name in devices:
            if name in self.records or name in self._priced:
                self._named.append(name)
            else:
                spec = load_device(name)
                self.specs[spec.name] = spec
                self._named.append(spec.name)

    def of(self, cost: GivenCost, file: CostFile) -> str:
        """The class that a cost is for."""
        name = cost.device
        if name is None:
            choice = self._named or self._priced or [DEFAULT_DEVICE]
            if len(choice) > 1:
                raise UsageError(
                    f"--costs {file.path}: which class are its costs for? give one --device "
                    f"(there are {', '.join(choice)})"
                )
            name = choice[0]
        if name not in self.specs and name not in self.records:
            bundled = device_names()
            if name not in bundled and name not in self._priced:
                names = sorted({*bundled, *self.specs, *self.records})
                hint = instead(name, names, "or give its device file by --device")
                raise FormatError(f"unknown class '{name}'{hint}", file.path, cost.line, "class")
            if name in bundled:
                self.specs[name] = load_device(name)
        return name


def _add_memory(stream: Stream, file: CostFile, caller: Callbacks) -> None:
    """State the memory of all nodes: weights, outputs, and what was measured beyond these."""
    names, nodes = Names(stream), stream.get("node")
    size = {record["id"]: record["size_bytes"] for record in stream.get("tensor")}
    held = {r["id"] for r in stream.get("tensor") if r["kind"] in ("parameter", "constant")}
    measured = {i: m for name, m in file.memory.items()
                for i in names.places(GivenCost(name, 0.0), {}, set())}  # fmt: skip
    if not measured:
        raise FormatError(_about_another([*file.memory]), file.path)
    for i, record in enumerate(nodes):
        made, meanwhile = measured.get(i, (0, 0))
        written = max(sum(size[t] for t in record["outputs"]), made)
        weights = sum(size[t] for t in record["inputs"] if t in held)
        record["memory_bytes"] = min(weights + written + meanwhile, MAX_NUMBER)
    stream.replace("cost", nodes)
    known = f"memory of {len(measured)} of {counted(len(nodes), 'node')} was measured"
    caller.note(f"{file.path}: {known}; others count by the sizes of their tensors")


def _about_another(names: Sequence[str]) -> str:
    return (
        f"no node is called as any of its {counted(len(names), 'name')}"
        + (f", such as '{names[0]}'" if names else "")
        + ": is it about this model?"
    )


def _add_file(
    stream: Stream,
    file: CostFile,
    classes: _Classes,
    given: dict[str, dict[int, float]],
    model: str | None,
    caller: Callbacks,
) -> list[dict[str, Any]]:
    """Add the costs of a file to what is given; returns what the header says about it."""
    nodes = stream.get("node")
    pairs = matched(stream, file, model, caller)
    known = [(cost, places) for cost, places in pairs if places]
    strangers = [cost for cost, places in pairs if not places]
    if not known:
        raise FormatError(_about_another([cost.name for cost, _ in pairs]), file.path)
    times: dict[str, dict[int, float]] = {}
    for cost, places in known:
        own = times.setdefault(classes.of(cost, file), {})
        for place, seconds in _shared(nodes, places, cost.seconds, classes.of(cost, file)):
            own[place] = own.get(place, 0.0) + seconds
    total = sum(cost.seconds for cost in file.costs)
    found = sum(cost.seconds for cost, _ in known)
    whole = file.whole and found >= ENOUGH * total
    entries = []
    for name, own in times.items():
        mine = given.setdefault(name, {})
        mine.update(own)
        idle = [i for i in range(len(nodes)) if i not in mine] if whole else []
        mine.update(dict.fromkeys(idle, 0.0))
        kept = [i for i in range(len(nodes)) if i not in mine]
        entry = {
            # Paths that are not UTF-8 cannot stand in JSON as they are.
            "file": file.path.encode(errors="backslashreplace").decode(),
            "kind": file.kind,
            "class": name,
            "nodes": len(own),
            "idle": len(idle),
            "kept": len(kept),
            "unknown": len(strangers),
        }
        entries.append(entry)
        share = found / total if total else 1.0
        _say(stream, file, entry, (strangers, idle, kept), share, caller)
    if file.said:
        caller.note(f"{file.path}: {file.said}")
    if file.caveat:
        caller.warn(f"{file.path}: {file.caveat}")
    return entries


def _shared(
    nodes: Sequence[dict[str, Any]], places: Places, seconds: float, name: str
) -> list[tuple[int, float]]:
    """Share a time out to some nodes: by the prices that they had, or else equally."""
    prices = [float(nodes[i].get("time_s", {}).get(name, -1.0)) for i in places]
    total = sum(prices)
    if min(prices) < 0 or total <= 0:
        prices, total = [1.0] * len(places), float(len(places))
    return [(i, seconds * price / total) for i, price in zip(places, prices, strict=True)]


def _say(
    stream: Stream,
    file: CostFile,
    entry: dict[str, Any],
    lists: tuple[list[GivenCost], Places, Places],
    found: float,
    caller: Callbacks,
) -> None:
    """Tell what of a file was used, and of the nodes priced; with --verbose all of the rest."""
    strangers, idle, kept = lists
    nodes = stream.get("node")
    priced = f"{entry['nodes']} of {counted(len(nodes), 'node')}"
    text = f"{file.path}: {priced} priced on '{entry['class']}'"
    if idle:
        text += f", {len(idle)} did not run by themselves and take no time"
    if kept:
        text += f", {len(kept)} have no cost in it and stay priced as they were"
    if strangers:
        text += f"; {counted(len(strangers), 'name')} of {len(file.costs)} known to no node"
        text += f" ({1 - found:.1%} of the time)" if found < 1 else ""
    (caller.warn if kept or strangers else caller.note)(text)
    for cost in strangers:
        where = file.path if cost.line is None else f"{file.path}:{cost.line}"
        caller.detail(f"{where}: no node, or more than one, is called '{cost.name}'")
    for what, places in (("did not run by itself", idle), ("has no cost", kept)):
        for i in places:
            caller.detail(f"{file.path}: {_called(nodes[i])} {what}")


def _called(record: dict[str, Any]) -> str:
    return f"node {record['id']} ('{record['name']}', {record['op']})"


def _refuse(
    stream: Stream, name: str, times: dict[int, float], files: Sequence[CostFile]
) -> None:  # fmt: skip
    """Raise the error about nodes that have no price on a class."""
    nodes = stream.get("node")
    missing = [i for i in range(len(nodes)) if i not in times]
    some = ", ".join(_called(nodes[i]) for i in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    raise FormatError(
        f"{len(missing)} of {counted(len(nodes), 'node')} have no cost on '{name}', here or in the "
        f"stream: {some}{more}; price them first, by dnnp-profile --device {name}",
        ", ".join(file.path for file in files),
    )


def _write(
    stream: Stream,
    given: dict[str, dict[int, float]],
    classes: _Classes,
    entries: list[dict[str, Any]],
    caller: Callbacks,
) -> None:
    """Put what is given into the stream, and what follows from it."""
    nodes = stream.get("node")
    forget_old_costs(stream, given, keep=("costs",))
    for name, times in given.items():
        for i, seconds in times.items():
            nodes[i]["time_s"] = {**nodes[i].get("time_s", {}), name: round(seconds, 12)}
    dropped = stream.replace("cost", nodes)
    node = {record["id"]: record for record in nodes}
    for group in stream.get("group"):
        group["time_s"] = summed_times([node[v] for v in group["nodes"]])
        group["cost"] = "summed"
    added = [
        class_record(classes.specs[name])
        for name in given
        if name in classes.specs and name not in classes.records
    ]
    stream.replace("device", [*stream.get("device"), *added])
    header = {**stream.header, "units": {**stream.header["units"], "time": "s"}}
    stream.header = {**header, "costs": [*header.get("costs", []), *entries]}
    if dropped:
        caller.note(f"dropped what the old costs led to: {', '.join(dropped)} records")


Regions = Mapping[str, Sequence[int]]
"""Name of a fused node -> positions of the nodes that it stands for."""

_ADDED = re.compile(r"(_nchwc|_token_\d+|/MatMul\w+Fusion/?|_new_reshape)$")
"""Endings that ONNX Runtime appends to the name of a node or tensor that it makes."""
_LEVELS = ("extended", "basic")
"""Optimisation levels that a profile may have been made at; the next one changes layouts only."""


class Names:
    """Nodes of a stream by what they are called."""

    def __init__(self, stream: Stream) -> None:
        nodes, tensors = stream.get("node"), stream.get("tensor")
        title = {record["id"]: record["name"] for record in tensors}
        named: dict[str, list[int]] = {}
        for i, record in enumerate(nodes):
            own = called(record["op"], "", [title[t] for t in record["outputs"][:1]])
            names = [record["name"]] if record["name"] else []
            if record["name"] in ("", own):
                # Nodes without a name are called so by ONNX Runtime, and by TensorRT's parser.
                names.append(f"{record['op']}_{record['id']}")
            for name in names:
                named.setdefault(name, []).append(i)
        self._nodes = {name: places[0] for name, places in named.items() if len(places) == 1}
        self._written: dict[str, int] = {}
        self._read: dict[str, int] = {}
        for i, record in enumerate(nodes):
            for t in record["outputs"]:
                self._written.setdefault(title[t], i)
            for t in record["inputs"]:
                self._read.setdefault(title[t], i)

    def node(self, name: str) -> int | None:
        """The node that is called so, or that writes a tensor which is."""
        return self._nodes.get(name, self._written.get(name))

    def places(self, cost: GivenCost, regions: Regions, named: set[int]) -> list[int]:
        """Positions of the nodes that a cost is for, ascending; empty where there are none.

        `named` are those that have a cost by their own name; no range takes them.
        """
        if cost.span is not None:
            first = self.node(cost.span[0])
            first = self._read.get(cost.span[0]) if first is None else first
            last = self.node(cost.span[1])
            if first is None or last is None:
                return []
            return [i for i in range(first, last + 1) if i in (first, last) or i not in named]
        found: set[int] = set()
        for part in cost.parts or (cost.name,):
            found.update(self._part(part, regions))
        return sorted(found)

    def _part(self, name: str, regions: Regions) -> Iterable[int]:
        while True:
            if name in regions:
                return regions[name]
            place = self.node(name)
            if place is not None:
                return (place,)
            shorter = _ADDED.sub("", name).removeprefix("fused ")
            if shorter == name:
                return ()
            name = shorter


def matched(
    stream: Stream, file: CostFile, model: str | None, caller: Callbacks
) -> list[tuple[GivenCost, list[int]]]:
    """Each cost of a file with the nodes that it is for.

    Where ONNX Runtime has fused nodes, the model is opened to see which; without it a fused node
    stands for the one that it is named after.
    """
    names = Names(stream)
    regions: Regions = {}
    if file.kind == "onnxruntime" and any(names.node(cost.name) is None for cost in file.costs):
        regions = _regions(stream, file, model, caller)
    named = {
        place
        for cost in file.costs
        if cost.span is None
        for place in names.places(cost, regions, set())
    }
    return [(cost, names.places(cost, regions, named)) for cost in file.costs]


def _regions(stream: Stream, file: CostFile, model: str | None, caller: Callbacks) -> Regions:
    """Find what nodes of the optimised graph stand for, of that which knows most names."""
    position = {record["id"]: i for i, record in enumerate(stream.get("node"))}
    best: Regions = {}
    most = 0
    try:
        source, path, _ = open_source(caller, stream, model)
        for level in _LEVELS:
            found = regions_by_name(source, optimised_model(source, path.parent, level=level))
            known = sum(cost.name in found for cost in file.costs)
            if known > most:
                most = known
                best = {
                    name: [position[v] for v in region if v in position]
                    for name, region in found.items()
                }
    except DnnpError as error:
        caller.warn(
            f"{file.path}: what ONNX Runtime fused is told by names alone, without the model: "
            f"{error}"
        )
    return {name: region for name, region in best.items() if region}
