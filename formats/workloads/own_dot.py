"""Reader of a graph in DOT, the language of Graphviz.

All of its published grammar is read; ports, and what is said about whole graphs, mean nothing
here. Numbers may have an exponent. The `weight` of an edge is for the layout, and no size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import shown
from dnnp.formats.files import what_it_is
from dnnp.formats.limits import DEPTH, PIECES, Room, length
from dnnp.formats.workloads.drawn import DRAWING, Drawn, Edge, Item

_KEYWORDS = frozenset(("strict", "graph", "digraph", "node", "edge", "subgraph"))
_DEFAULTS = ("graph", "node", "edge")
_LETTER = r"A-Za-z_\x80-\U0010ffff"
_SPACE = re.compile(r"(?:[ \t\r\n\f\v]+|//[^\n]*|/\*.*?\*/|^#[^\n]*)*", re.DOTALL | re.MULTILINE)
"""Comments, too; lines that begin with `#` are a preprocessor's."""
_TOKEN = re.compile(
    rf"""(?P<word>[{_LETTER}][{_LETTER}0-9]*)
    |(?P<mark>->|--|[{{}}\[\]=;,:+])
    |(?P<number>(?<![{_LETTER}0-9])-?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][+-]?[0-9]+)?
        (?![{_LETTER}0-9.]))
    |(?P<quoted>"[^"\\]*(?:\\.[^"\\]*)*")
    |(?P<html><)
    |(?P<end>\Z)""",
    re.VERBOSE | re.DOTALL,
)
_BRACKET = re.compile("[<>]")
_ESCAPE = re.compile(r'\\(?:(")|\r?\n|(\\))')
"""Of a quoted name; a backslash stays one unless it stands before a quote or ends a line."""


class _Token(NamedTuple):
    kind: str
    """`id`, `keyword`, `mark` or `end`."""
    text: str
    line: int


@dataclass
class _Scope:
    """A graph or a subgraph."""

    names: dict[str, None]
    """Nodes in it, in order."""
    node: dict[str, str] = field(default_factory=dict)
    """Attributes of nodes that are still to come."""
    edge: dict[str, str] = field(default_factory=dict)
    depth: int = 0


def read_dot(data: bytes, file: str, ours: Mapping[str, str] | None = None) -> Drawn:
    """Read a directed graph; `ours`: attribute of ours -> what the graph calls it.

    Raises
    ------
    FormatError
        Not such a graph; the message names file and line.
    """
    hint = what_it_is(data)
    if hint:
        raise FormatError(f"no graph in DOT{hint}", file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError("no graph in DOT: the text is not UTF-8", file) from None
    if not text.strip():
        raise FormatError("the file is empty", file)
    return _Parser(text, file, Room(file, len(data)), ours or {}).drawn()


class _Parser:
    """One token ahead; a method for a rule of the grammar."""

    def __init__(self, text: str, file: str, room: Room, ours: Mapping[str, str]) -> None:
        self._ours = ours
        self._idle = DRAWING.difference(ours.values())
        self._file = file
        self._room = room
        self._tokens = _tokens(text, file)
        self._next = next(self._tokens)
        self._strict = False
        self._nodes: dict[str, Item] = {}
        self._edges: dict[object, Edge] = {}
        self._subgraphs: dict[str, dict[str, None]] = {}
        """Nodes of those that have a name."""

    def drawn(self) -> Drawn:
        """The graph of the file."""
        self._strict = self._skip("strict")
        if self._at("graph"):
            raise self._fault("an undirected graph; its edges need directions: 'digraph'")
        self._expect("digraph")
        if self._next.kind == "id":
            self._take()
        self._expect("{")
        self._statements(_Scope({}))
        if self._next.kind != "end":
            raise self._unexpected("the end of the file after the graph")
        drawn = Drawn(self._file, self._room, self._ours)
        for name, item in self._nodes.items():
            drawn.add(name, item._replace(values={k: v for k, v in item.values.items() if v}))
        layout = {"weight"}.difference(self._ours.values())
        for tail, head, item in self._edges.values():
            values = {k: v for k, v in item.values.items() if v and k not in layout}
            drawn.join(Edge(tail, head, item._replace(values=values)))
        return drawn

    def _statements(self, scope: _Scope) -> None:
        """Read statements up to and including the closing brace."""
        while not self._skip("}"):
            if self._next.kind == "keyword" and self._next.text in _DEFAULTS:
                what = self._take().text
                if not self._at("["):
                    raise self._unexpected("'['")
                stated = self._attributes()
                if what != "graph":
                    read = {name: each for name, each in stated.items() if name not in self._idle}
                    getattr(scope, what).update(read)
            else:
                self._statement(scope)
            self._skip(";")

    def _statement(self, scope: _Scope) -> None:
        """A node, edges, a subgraph, or an attribute of the graph."""
        line = self._next.line
        alone = ""
        if self._next.kind == "id":
            alone = self._identity()
            if self._skip("="):
                self._identity("a value")
                return
            ends = [self._node(alone, scope, line)]
        else:
            ends = [self._subgraph(scope)]
        while self._skip("->"):
            line = self._next.line
            named = self._next.kind == "id"
            ends.append(
                self._node(self._identity(), scope, line) if named else self._subgraph(scope)
            )
        if self._at("--"):
            raise self._fault("'--' has no direction; edges of a digraph are '->'")
        stated = self._attributes()
        if len(ends) > 1:
            self._join(ends, scope.edge, stated, line)
        elif stated and ends[0] == [alone]:
            self._nodes[alone].values.update(stated)
            self._nodes[alone] = self._nodes[alone]._replace(line=line)

    def _node(self, name: str, scope: _Scope, line: int) -> list[str]:
        """A node by its name, which has been read; its port is left out."""
        for _ in range(2):
            if self._skip(":"):
                self._identity("a port")
        if name not in self._nodes:
            self._room.take(length(scope.node), line)
            self._nodes[name] = Item(dict(scope.node), self._file, line)
        scope.names[name] = None
        return [name]

    def _subgraph(self, scope: _Scope) -> list[str]:
        """Nodes of a subgraph."""
        name = None
        if self._skip("subgraph") and self._next.kind == "id":
            name = self._identity()
        if not self._at("{"):
            raise self._unexpected("a node, an edge or '}'" if name is None else "'{'")
        if scope.depth == DEPTH:
            raise self._fault(f"more than {DEPTH} subgraphs inside each other")
        self._take()
        names = {} if name is None else self._subgraphs.setdefault(name, {})
        before = sum(map(len, names)) + length(scope.node) + length(scope.edge)
        self._room.take(before, self._next.line)
        self._statements(_Scope(names, dict(scope.node), dict(scope.edge), scope.depth + 1))
        scope.names.update(names)
        return list(names)

    def _join(
        self, ends: list[list[str]], usual: dict[str, str], stated: dict[str, str], line: int
    ) -> None:
        """Edges from each node of an end to each of the next; in a strict graph one a pair."""
        each = length(usual) + length(stated) + 6
        for tails, heads in pairwise(ends):
            named = len(heads) * sum(map(len, tails)) + len(tails) * sum(map(len, heads))
            self._room.take(len(tails) * len(heads) * each + named, line)
            for pair in product(tails, heads):
                key = pair if self._strict else len(self._edges)
                if key not in self._edges:
                    self._edges[key] = Edge(*pair, Item(dict(usual), self._file, line))
                self._edges[key].item.values.update(stated)

    def _attributes(self) -> dict[str, str]:
        """Any number of lists in brackets."""
        found: dict[str, str] = {}
        while self._skip("["):
            while not self._skip("]"):
                name = self._identity("an attribute or ']'")
                if not self._at("="):
                    quotes = "; a name with ':' needs quotes" if self._at(":") else ""
                    raise self._unexpected(f"'=' after {shown(name)}", quotes)
                self._take()
                found[name] = self._identity("a value")
                if not self._skip(","):
                    self._skip(";")
        return found

    def _identity(self, expected: str = "a name") -> str:
        """A name; quoted ones may be joined by `+`."""
        if self._next.kind != "id":
            raise self._unexpected(expected)
        pieces = [self._take().text]
        while self._skip("+"):
            if self._next.kind != "id":
                raise self._unexpected("the rest of a name")
            if len(pieces) == PIECES:
                raise self._fault(f"more than {PIECES} strings joined by '+'")
            pieces.append(self._take().text)
        return "".join(pieces)

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _at(self, text: str) -> bool:
        return self._next.text == text and self._next.kind != "id"

    def _skip(self, text: str) -> bool:
        found = self._at(text)
        if found:
            self._take()
        return found

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise self._unexpected(f"'{text}'")

    def _unexpected(self, expected: str, hint: str = "") -> FormatError:
        ended = self._next.kind == "end"
        found = "the file ends" if ended else f"found {shown(self._next.text)}"
        return self._fault(f"expected {expected}, but {found}{hint}")

    def _fault(self, reason: str) -> FormatError:
        return FormatError(reason, self._file, self._next.line)


def _tokens(text: str, file: str) -> Iterator[_Token]:
    """Tokens with their lines, and one for the end."""
    at, line, kind = 0, 1, None
    while kind != "end":
        start = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        line += text.count("\n", at, start)
        found = _TOKEN.match(text, start)
        if found is None:
            raise FormatError(_why_not(text, start), file, line)
        kind, at, word = found.lastgroup, found.end(), found[0]
        if kind == "html":
            at = _html_end(text, start)
            if not at:
                raise FormatError("'<' without its '>'", file, line)
            word = text[start:at]
        elif kind == "quoted":
            word = _ESCAPE.sub(_unescaped, word[1:-1])
        elif kind == "word" and word.lower() in _KEYWORDS:
            kind, word = "keyword", word.lower()
        yield _Token(kind if kind in ("mark", "keyword", "end") else "id", word, line)
        if kind in ("html", "quoted"):
            line += text.count("\n", start, at)


def _unescaped(found: re.Match[str]) -> str:
    return '"' if found[1] else "\\\\" if found[2] else ""


def _html_end(text: str, start: int) -> int:
    """End of what `<` begins; 0: nowhere."""
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] == "<" else -1
        if not depth:
            return bracket.end()
    return 0


def _why_not(text: str, at: int) -> str:
    """The reason why text is no token."""
    if text[at] == '"':
        return "a quoted name that does not end"
    if text.startswith("/*", at):
        return "a comment that does not end"
    before = re.search(f"[{_LETTER}0-9]*$", text[max(0, at - 60) : at])
    after = re.match(r"[^\s;,=\[\]{}]*", text[at : at + 60])
    near = "".join(part[0] for part in (before, after) if part)
    return f"{shown(near)} is neither a name nor a number; such names need quotes"
