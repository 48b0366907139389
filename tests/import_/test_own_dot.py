"""Graphs in DOT."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.own_graphs import DOT
from hypothesis import given
from hypothesis import strategies as st
from import_.own import Own, edges_of, own_graphs, stream_of

from dnnp.core.model.errors import FormatError
from dnnp.formats.stream import Stream
from dnnp.formats.workloads.own_dot import DEPTH, read_dot
from support.run import dnnp


def read(text: str | bytes) -> Stream:
    return stream_of(read_dot(text.encode() if isinstance(text, str) else text, "g.dot"))


def pairs(stream: Stream) -> list[tuple[str, str]]:
    """Names of the ends of all edges, by the nodes that read."""
    nodes = stream.get("node")
    writer = {t: n["name"] for n in nodes for t in n["outputs"]}
    return [(writer[t], n["name"]) for n in nodes for t in n["inputs"]]


def test_as_people_write_it():
    stream = read(DOT)
    assert stream.warnings == []
    assert [d["class"] for d in stream.get("device")] == ["accelerator", "cpu"]
    assert stream.header["units"] == {"time": "unknown"}
    assert [(n["name"], n["op"], n["time_s"]) for n in stream.get("node")] == [
        ("a", "Conv", {"accelerator": 1.5, "cpu": 2}),
        ("b", "Relu", {"accelerator": 2}),
        ("c", "Relu", {"accelerator": 0.5}),
        ("d", "Conv", {"accelerator": 0.001}),
    ]
    assert stream.get("node")[0]["memory_bytes"] == 10
    assert pairs(stream) == [("a", "b"), ("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")]
    assert [(t["name"], t["size_bytes"]) for t in stream.get("tensor")] == [
        ("x", 4), ("a", 7), ("x", 4), ("x", 4),
    ]  # fmt: skip


def test_as_graphviz_writes_it():
    stream = read("""digraph G {
	graph [bb="0,0,54,108"];
	node [label="\\N"];
	a	[height=0.5,
		pos="27,90",
		time_s=1,
		width=0.75];
	b	[height=0.5, pos="27,18", time_s=2, width=0.75];
	a -> b	[pos="e,27,36 27,71",
		size_bytes=8];
}
""")
    assert pairs(stream) == [("a", "b")]
    assert [n["time_s"]["accelerator"] for n in stream.get("node")] == [1, 2]
    assert "bandwidth" in stream.warnings[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a A _b é 1 -.5 1. 1e3", ["a", "A", "_b", "é", "1", "-.5", "1.", "1e3"]),
        (r'"a b" "say \"x\"" "\\" "l\n" ""', ["a b", 'say "x"', r"\\", r"l\n", ""]),
        ('"one \\\nline" "a" + "b"', ["one line", "ab"]),
        ("<<b>x</b>> <a>", ["<<b>x</b>>", "<a>"]),
        ('"node" "}" "->"', ["node", "}", "->"]),
        ("a//x\nb/* c\n*/d\n# e\nf", ["a", "b", "d", "f"]),
        ("x=1; rankdir=LR a; graph [b=c]; ;", ["a"]),
        ("a:p b:p:ne", ["a", "b"]),
    ],
)
def test_names(text: str, names: list[str]):
    text = text.replace("; ;", ";")
    assert [n["name"] for n in read(f"DiGraph {{{text}}}").get("node")] == names


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("a->b->c", ["ab", "bc"]),
        ("a->{b;c}->d", ["ab", "ac", "bd", "cd"]),
        ("{a b}->subgraph x{c}", ["ac", "bc"]),
        ("subgraph x{b} subgraph x{c} a->subgraph x{}", ["ab", "ac"]),
        ("{a->b}->c", ["ab", "ac", "bc"]),
        ("a->{}", []),
    ],
)
def test_edges(text: str, edges: list[str]):
    assert sorted("".join(pair) for pair in pairs(read(f"digraph{{{text}}}"))) == edges


def test_defaults_are_for_what_comes_later_and_end_with_their_subgraph():
    stream = read(
        'digraph{a; node[op=X] edge[size=1] b {node[op=Y] edge[size=2] c; d[op=Z]; b->c} e[op=""];'
        "a[layer=1]; a->b; a->d}"
    )
    assert [(n["name"], n["op"]) for n in stream.get("node")] == [
        ("a", ""), ("b", "X"), ("c", "Y"), ("d", "Z"), ("e", ""),
    ]  # fmt: skip
    assert [t["size_bytes"] for t in stream.get("tensor")] == [1, 2]
    assert stream.get("node")[0]["layer"] == "1"


def test_a_strict_graph_has_one_edge_a_pair():
    stream = read("strict digraph{edge[size=1] a->b[size=2]; a->b; a->b[tensor=t]}")
    assert [(t["name"], t["size_bytes"]) for t in stream.get("tensor")] == [("t", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "g.dot: the file is empty"),
        (" \n", "g.dot: the file is empty"),
        (b"\xff\xfe", "g.dot: no graph in DOT: the text is not UTF-8"),
        (b"\x1f\x8b", "g.dot: no graph in DOT; it is compressed by gzip"),
        ("digraph{}", "g.dot: there are no nodes"),
        ("graph {a -- b}", "g.dot:1: an undirected graph; its edges need directions: 'digraph'"),
        ("strict graph {}", "g.dot:1: an undirected graph;"),
        ("a -> b", "g.dot:1: expected 'digraph', but found 'a'"),
        ("digraph{\na -- b}", "g.dot:2: '--' has no direction; edges of a digraph are '->'"),
        ("digraph{\na ->", "g.dot:2: expected a node, an edge or '}', but the file ends"),
        ("digraph{a", "g.dot:1: expected a node, an edge or '}', but the file ends"),
        ("digraph{a [time 1]}", "g.dot:1: expected '=' after 'time', but found '1'"),
        ("digraph{a [time:x=1]}", "g.dot:1: expected '=' after 'time', but found ':'; a name with"),
        ("digraph{a [time=]}", "g.dot:1: expected a value, but found ']'"),
        ("digraph{node}", "g.dot:1: expected '[', but found '}'"),
        ("digraph{subgraph}", "g.dot:1: expected a node, an edge or '}', but found '}'"),
        ("digraph{}\ndigraph{}", "g.dot:2: expected the end of the file after the graph, but"),
        ('digraph{\n"a\n}', "g.dot:2: a quoted name that does not end"),
        ("digraph{/*\n}", "g.dot:1: a comment that does not end"),
        ("digraph{<a}", "g.dot:1: '<' without its '>'"),
        ("digraph{\na.b}", "g.dot:2: 'a.b' is neither a name nor a number; such names need quotes"),
        ("digraph{conv-1}", "g.dot:1: 'conv-1' is neither a name nor a number"),
        ("digraph{1x}", "g.dot:1: '1x' is neither a name nor a number"),
        ("digraph{" + "{" * (DEPTH + 1), f"g.dot:1: more than {DEPTH} subgraphs inside each other"),
        ("digraph{a\nb[time=x]}", "g.dot:2: field 'time': 'x' is not a number from 0 to 1e+100"),
        ("digraph{a->b\nb->c[size=1e101]}", "g.dot:2: field 'size': '1e101' is not a number"),
        ("digraph{a[time=1]\nb}", "g.dot:2: field 'time': node 'b' has no time, but others have"),
        ("digraph{a->b\na->b}", "g.dot:2: a second edge 'a' -> 'b'; the first is in line 1; edges"),
        ("digraph{\na->a}", "g.dot:2: an edge from node 'a' to itself"),
        ("digraph{a->b\nb->a}", "g.dot:1: the graph has a cycle: 'a' -> 'b' -> 'a'"),
    ],
)  # fmt: skip
def test_faults_name_file_and_line(text: str | bytes, message: str):
    with pytest.raises(FormatError) as caught:
        read(text)
    assert str(caught.value).startswith(message)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


@given(own_graphs(st.characters(codec="utf-8", exclude_characters="\\")))
def test_what_is_written_is_read(own: Own):
    lines = [
        f"k{i} [name={quoted(name)} time={time!r}, memory_bytes={memory!r}]"
        for i, (name, time, memory) in enumerate(own.nodes)
    ]
    lines += [
        f"k{tail} -> k{head} [size_bytes={size!r}; tensor={tensor}];"
        for tail, head, size, tensor in edges_of(own)
    ]
    own.compare(read("\n".join(["digraph G {", *lines, "}"])))


def test_bom_and_line_ends_of_windows():
    assert read(b"\xef\xbb\xbf" + DOT.replace(b"\n", b"\r\n")).records == read(DOT).records


def test_many_edges():
    lines = (f"{i} -> {i + step} [size={step}]" for i in range(5_000) for step in (1, 2, 3, 4))
    assert len(read("digraph {\n" + "\n".join(lines) + "}").get("tensor")) == 20_000


def test_the_command(tmp_path: Path):
    (tmp_path / "g.gv").write_bytes(DOT)
    done = dnnp("import", tmp_path / "g.gv")
    assert (done.status, done.err) == (0, "")
    header = done.one("header")
    assert (header["source"]["kind"], header["model"]) == ("dot", "g")
    other = dnnp("import", "--from", "dot", "-", stdin=DOT)
    assert other.records("node") == done.records("node")
    planned = dnnp("partition", "-q", "-k", "2", "--cpus", "0", stdin=done.out)
    assert planned.one("plan")["status"] == "optimal"
