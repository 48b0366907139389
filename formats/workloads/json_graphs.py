"""Graphs of other tools: JSON of three kinds, GML and graphs of networkx, task graphs (STG).

`node-link` is what networkx writes, by its old versions (`links`) and new ones (`edges`);
`dagbench` the task graph of an instance of SAGA, whose network is left out; `wfcommons` a workflow
with its run, in WfFormat 1.0 to 1.5. GML is what networkx reads.

Of task graphs of the Standard Task Graph Set (Tobita and Kasahara 2002) the first line has the
number of tasks, and perhaps that of processors, which is left out. A line a task follows: its name,
its time, the number of its predecessors, and these; or each of them on a line of its own with the
time of its transfer. `#` begins a comment. Times have no unit; dummy tasks for entry and exit are
tasks like others, which the first line need not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from typing import Any

from dnnp.core.model.errors import FormatError, UnavailableError
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.inputs.checked_json import Fields, parse_json
from dnnp.formats.limits import DEEP, Room, deep_line
from dnnp.formats.workloads.drawn import Drawn, Edge, Item, values_of

_MEMBERS = {
    "node-link": {"links", "directed", "multigraph"},
    "wfcommons": {"workflow"},
    "dagbench": {"task_graph"},
    "piper": {"mbsInBatch", "maxDevices", "maxMemoryPerDevice"},
    "msr-json": {"maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes"},
}
"""Format -> members of which its documents have one, and those of formats before it none."""
_KB = 1000
"""Bytes of a KB of memory in WfFormat before 1.4."""


def kind_of_json(data: bytes, file: str) -> str:
    """Format of a graph in JSON; FormatError: not JSON, or none of those that are read."""
    document = parse_json(data, file)
    names = document.keys() if isinstance(document, dict) else ()
    for kind, members in _MEMBERS.items():
        if not members.isdisjoint(names):
            return kind
    raise FormatError(f"JSON of none of the formats that are read: {', '.join(_MEMBERS)}", file)


def read_json_graph(kind: str, data: bytes, file: str, ours: Mapping[str, str]) -> Drawn:
    """Read a graph of a format above; `ours`: attribute of dnnp -> what the graph calls it.

    FormatError: not such a graph; the message names the field, as in `nodes[3].time`.
    """
    document = Fields(parse_json(data, file), "", file)
    drawn = Drawn(file, Room(file, len(data)), ours)
    if kind == "wfcommons":
        _read_workflow(document.fields("workflow"), drawn)
    elif kind == "dagbench":
        graph = document.fields("task_graph")
        _read_lists(graph.objects("tasks"), "name", graph.objects("dependencies"), drawn)
    elif not document.flag("directed", False):
        raise document.fault("directed", "is not true, but edges need directions")
    else:
        edges = document.objects("links" if "links" in document else "edges")
        _read_lists(document.objects("nodes"), "id", edges, drawn)
    return drawn


def _read_lists(nodes: Sequence[Fields], key: str, edges: Sequence[Fields], drawn: Drawn) -> None:
    """Nodes and edges that have their attributes beside what they are."""
    for node in nodes:
        drawn.add(_key(node, key), _item(node, _attributes(node, key)))
    for edge in edges:
        ends = _key(edge, "source"), _key(edge, "target")
        drawn.join(Edge(*ends, _item(edge, _attributes(edge, "source", "target"))))


def _item(fields: Fields, values: dict[str, Any]) -> Item:
    return Item(values, f"{fields.file}: {fields.place('')}")


def _attributes(fields: Fields, *without: str) -> dict[str, Any]:
    """Attributes that have one value."""
    found = {n: fields.get(n) for n in fields.names() if n not in without}
    return values_of({n: v for n, v in found.items() if not isinstance(v, list | dict)})


def _key(fields: Fields, name: str) -> Hashable:
    """The key of a node; a tuple of Python is a list in JSON."""
    value = fields.get(name)
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, str | int | float):
            raise fields.fault(name, f"{shown(value)} is not a key of a node")
    return tuple(value) if isinstance(value, list) else value


def _read_workflow(workflow: Fields, drawn: Drawn) -> None:
    """Tasks, files that one writes and another reads, and other dependencies."""
    part = workflow.fields("specification") if "specification" in workflow else workflow
    runs: dict[str, Fields] = {}
    if "execution" in workflow:
        runs = {run.text("id"): run for run in workflow.fields("execution").objects("tasks")}
    tasks: dict[str, Fields] = {}
    for task in part.objects("jobs" if "jobs" in part else "tasks"):
        key = task.text("id" if "id" in task else "name")
        drawn.add(key, _item(task, _task(task, runs.get(key, task))))
        tasks[key] = task
    named = Counter(task.text("name", key) for key, task in tasks.items())
    keys = {task.text("name", key): key for key, task in tasks.items()}
    keys = {name: key for name, key in keys.items() if named[name] == 1} | {k: k for k in tasks}
    sizes = {file.text("id"): file.number("sizeInBytes") for file in part.objects("files", [])}
    writer: dict[str, str] = {}
    for key, task in tasks.items():
        for name in _files(task, "output", sizes):
            if writer.setdefault(name, key) != key:
                two = f"{shown(name)}, which {shown(writer[name])} writes, too"
                raise task.fault("outputFiles" if "outputFiles" in task else "files", two)
    joined = set()
    for key, task in tasks.items():
        for name in dict.fromkeys(_files(task, "input", sizes)):
            if writer.get(name, key) != key:
                values = {"tensor": name, "size_bytes": sizes.get(name, 0)}
                drawn.join(Edge(writer[name], key, _item(task, values)))
                joined.add((writer[name], key))
    for key, task in tasks.items():
        pairs = [(keys.get(name, name), key) for name in task.texts("parents")]
        for pair in pairs + [(key, keys.get(name, name)) for name in task.texts("children")]:
            if pair not in joined:
                drawn.join(Edge(*pair, _item(task, {})))
                joined.add(pair)


def _task(task: Fields, run: Fields) -> dict[str, Any]:
    """Name, time, memory and program of a task."""
    found: dict[str, Any] = {"name": task.text("name", ""), "op": task.text("category", "")}
    if "command" in run:
        found["op"] = found["op"] or run.fields("command").text("program", "")
    for ours, theirs, factor in (
        ("time_s", "runtime", 1), ("time_s", "runtimeInSeconds", 1),
        ("memory_bytes", "memory", _KB), ("memory_bytes", "memoryInBytes", 1),
    ):  # fmt: skip
        if theirs in run:
            found[ours] = factor * run.number(theirs)
    return values_of(found)


def _files(task: Fields, link: str, sizes: dict[str, float]) -> list[str]:
    """Files that a task reads or writes; `sizes` gets those that are stated with it."""
    names = [*task.texts(f"{link}Files")]
    for file in task.objects("files", []):
        if file.text("link") == link:
            names.append(file.text("name"))
            size = file.number("sizeInBytes" if "sizeInBytes" in file else "size")
            sizes.setdefault(names[-1], size)
    return names


_WHOLE = re.compile(r"^([ \t]*\w+[ \t]+[+-]?[0-9]+)([eE][+-]?[0-9]+[ \t\r]*)$", re.MULTILINE)
"""A number with an exponent but no point, which igraph writes and networkx cannot read."""

_FAULTS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors that networkx raises on malformed text, besides its own."""


def drawn_of(graph: Any, drawn: Drawn, where: str = "") -> Drawn:
    """Add the nodes and edges of a directed graph of networkx; `where`: its file, for messages."""
    for key, data in graph.nodes(data=True):
        drawn.add(key, Item(values_of(data), f"{where}node {shown(key)}"))
    for tail, head, data in graph.edges(data=True):
        pair = f"{where}edge {shown(tail)} -> {shown(head)}"
        drawn.join(Edge(tail, head, Item(values_of(data), pair)))
    return drawn


def read_gml(data: bytes, file: str, ours: Mapping[str, str]) -> Drawn:
    """Read a directed graph, whose nodes are called by their labels unless they have a name.

    UnavailableError: networkx is not installed. FormatError: not such a graph.
    """
    try:
        import networkx
    except ImportError:
        raise UnavailableError("GML needs networkx: pip install 'dnnp[graphs]'") from None
    line = deep_line(data)
    if line is not None:
        raise FormatError(f"no graph in GML that can be read: {DEEP}", file, line)
    try:
        text = _WHOLE.sub(r"\1.\2", data.decode("utf-8-sig"))
        graph = networkx.parse_gml(text.split("\n"), label="id")
    except (networkx.NetworkXException, *_FAULTS) as error:
        hint = what_it_is(data) or f": {shown(str(error) or type(error).__name__)}"
        raise FormatError(f"no graph in GML{hint}", file) from None
    if not graph.is_directed():
        raise FormatError("an undirected graph; its edges need directions: 'directed 1'", file)
    for _, values in graph.nodes(data=True):
        values.setdefault("name", values.get("label"))
    return drawn_of(graph, Drawn(file, Room(file, len(data)), ours), f"{file}: ")


_DUMMIES = 2


def read_stg(data: bytes, file: str) -> Drawn:
    """Read a task graph; FormatError: it is none, with file, line and field."""
    text = data.decode("utf-8-sig", errors="replace")
    rows = ((at, row.partition("#")[0].split()) for at, row in enumerate(text.split("\n"), 1))
    lines = ((at, words) for at, words in rows if words)
    at, head = next(lines, (1, []))
    if len(head) not in (1, 2):
        hint = what_it_is(data) or ": its first line has the number of tasks, and of processors"
        raise FormatError(f"no task graph (STG){hint}", file, at)
    tasks = _count(head[0], file, at, "tasks")
    drawn = Drawn(file, Room(file, len(data)))
    edges: list[Edge] = []
    for at, words in lines:
        if len(words) < 3:
            raise FormatError("expected a task, its time and its number of predecessors", file, at)
        drawn.add(words[0], Item({"time": words[1]}, file, at))
        count = _count(words[2], file, at, "predecessors")
        alone = len(words) == 3
        before = list(islice(lines, count)) if alone else [(at, [word]) for word in words[3:]]
        if len(before) != count or any(len(pair) != 1 + alone for _, pair in before):
            after = ", each on a line with its time" if alone else ""
            raise FormatError(f"{count} do not follow{after}", file, at, "predecessors")
        for line, pair in before:
            item = Item({"transfer": pair[1]} if alone else {}, file, line)
            edges.append(Edge(pair[0], words[0], item))
    if not tasks <= len(drawn.nodes) <= tasks + _DUMMIES:
        raise FormatError(f"{tasks} are stated, but {len(drawn.nodes)} follow", file, None, "tasks")
    for edge in edges:
        drawn.join(edge)
    return drawn


def _count(word: str, file: str, line: int, field: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise FormatError(f"{shown(word)} is not a number of {field}", file, line, field)
    return int(word)
