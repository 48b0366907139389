"""Reader of task graphs of the Standard Task Graph Set (Tobita and Kasahara 2002).

The first line has the number of tasks, and perhaps that of processors, which is left out. A line a
task follows: its name, its time, the number of its predecessors, and these; or each of them on a
line of its own with the time of its transfer. `#` begins a comment. Times have no unit; dummy tasks
for entry and exit are tasks like others, which the first line need not count.
"""

from __future__ import annotations

from itertools import islice

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import Room
from dnnp.formats.workloads.drawn import Drawn, Edge, Item

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
