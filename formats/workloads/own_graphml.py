"""Reader of a graph in GraphML, as networkx, igraph and yEd write it.

Keys with an `attr.name` and their defaults are read. What editors keep for drawing is in other
elements or under keys without such a name, and is left out. Declarations of types of documents,
and with them entities, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import ADDRESS, Room, length
from dnnp.formats.workloads.drawn import DRAWING, Drawn, Edge, Item

REFUSED = {
    "hyperedge": "a hyperedge; edges that carry one tensor name it (tensor)",
    "port": "a port; edges end at nodes",
}
_KINDS = ("node", "edge")


def read_graphml(data: bytes, file: str, ours: Mapping[str, str] | None = None) -> Drawn:
    """Read a directed graph; `ours`: attribute of ours -> what the graph calls it.

    Raises
    ------
    FormatError
        Not such a graph; the message names file and line.
    """
    if not data.strip():
        raise FormatError("the file is empty", file)
    reader = _Reader(file, len(data), ours or {})
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        hint = what_it_is(data)
        raise FormatError(f"no graph in GraphML: {reason}{hint}", file, error.lineno) from None
    except (ValueError, LookupError) as error:  # the encoding
        raise FormatError(f"no graph in GraphML: {error}", file) from None
    return reader.drawn()


class _Reader:
    """Handlers of what the parser tells."""

    def __init__(self, file: str, size: int, ours: Mapping[str, str]) -> None:
        self._ours = ours
        self._file = file
        self._room = Room(file, size)
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartNamespaceDeclHandler = self._start_namespace
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text_of
        self._open: list[str] = []
        self._names: dict[str, str] = {}
        """Key -> its name; empty: it has none."""
        self._defaults: dict[str, dict[str, str]] = {kind: {} for kind in _KINDS}
        """`node` or `edge` -> what those have that do not state it."""
        self._key = ""
        self._for: tuple[str, ...] = ()
        """Kinds of elements that the key is for."""
        self._graphs = 0
        self._directed = False
        self._item: Item | None = None
        self._text: list[str] | None = None
        """Of `data` or `default`; None outside."""
        self._depth = 0
        """Of that element; those inside it are an editor's."""
        self._found: dict[str, list[tuple[Any, Item]]] = {kind: [] for kind in _KINDS}

    def drawn(self) -> Drawn:
        """The graph; edges may stand before their nodes."""
        if not self._graphs:
            raise FormatError("there is no graph", self._file)
        drawn = Drawn(self._file, self._room, self._ours)
        for kind, found in self._found.items():
            usual = length(self._defaults[kind])
            for ends, item in found:
                self._room.take(usual, item.line)
                values = {**self._defaults[kind], **item.values}
                full = item._replace(values={k: v for k, v in values.items() if v})
                if kind == "node":
                    drawn.add(ends, full)
                else:
                    drawn.join(Edge(ends[0], ends[1], full))
        return drawn

    def _fault(self, reason: str) -> FormatError:
        return FormatError(reason, self._file, self.parser.CurrentLineNumber)

    def _refuse_doctype(self, *_: object) -> None:
        raise self._fault("a <!DOCTYPE>, which dnnp does not read; leave it out")

    def _start_namespace(self, _: str | None, address: str | None) -> None:
        if address and len(address) > ADDRESS:
            raise self._fault(f"a namespace of more than {ADDRESS} characters")

    def _start(self, tag: str, said: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        self._open.append(name)
        if len(self._open) == 1 and name != "graphml":
            raise self._fault(f"no graph in GraphML: the file is <{name[:60]}>, not <graphml>")
        if self._text is not None:
            return  # what editors keep
        if name in REFUSED:
            raise self._fault(REFUSED[name])
        if name in ("graph", *_KINDS) and self._item is not None:
            raise self._fault(f"a <{name}> inside a node or an edge")
        if name == "graph":
            self._start_graph(said)
        elif name == "key":
            self._start_key(said)
        elif name in _KINDS:
            self._start_item(name, said)
        elif name == "data":
            self._key = self._of(said, "key", "data")
            if self._item is not None and self._key not in self._names:
                raise self._fault(f"there is no <key> with the id {shown(self._key)}")
        if name in ("data", "default"):
            self._text, self._depth = [], len(self._open)

    def _start_graph(self, said: dict[str, str]) -> None:
        self._graphs += 1
        if self._graphs > 1:
            raise self._fault("a second graph in the file")
        self._directed = said.get("edgedefault") == "directed"

    def _start_key(self, said: dict[str, str]) -> None:
        self._key = self._of(said, "id", "key")
        if self._key in self._names:
            raise self._fault(f"a second <key> with the id {shown(self._key)}")
        self._names[self._key] = said.get("attr.name", "")
        kind = said.get("for", "all")
        self._for = _KINDS if kind == "all" else (kind,)

    def _start_item(self, kind: str, said: dict[str, str]) -> None:
        if not self._graphs:
            raise self._fault(f"a <{kind}> outside a graph")
        self._item = Item({}, self._file, self.parser.CurrentLineNumber)
        ends: Any
        if kind == "node":
            ends = self._of(said, "id", kind)
        else:
            ends = self._of(said, "source", kind), self._of(said, "target", kind)
            states = said.get("directed")
            if states != "true" and not (self._directed and states is None):
                pair = " -> ".join(map(shown, ends))
                reason = f"the edge {pair} is undirected; the graph needs edgedefault='directed'"
                raise self._fault(reason)
        self._found[kind].append((ends, self._item))

    def _of(self, said: dict[str, str], name: str, element: str) -> str:
        if name not in said:
            raise self._fault(f"a <{element}> without '{name}'")
        return said[name]

    def _text_of(self, text: str) -> None:
        if self._text is not None and len(self._open) == self._depth:
            self._text.append(text)

    def _end(self, tag: str) -> None:
        name, depth = self._open.pop(), len(self._open) + 1
        if self._text is None:
            if name in _KINDS:
                self._item = None
            return
        if depth > self._depth:
            return
        text, self._text = "".join(self._text), None
        attribute = self._names.get(self._key)
        if not attribute:
            return
        if name == "data" and self._item is not None:
            self._item.values[attribute] = text
        elif name == "default":
            for kind in self._for:
                if kind in self._defaults and (
                    attribute not in DRAWING or attribute in self._ours.values()
                ):
                    self._defaults[kind][attribute] = text
