"""Graphs as tables of nodes and edges."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from fuzz.own_graphs import EDGES, NODES
from hypothesis import given
from hypothesis import strategies as st
from import_.own import Own, edges_of, own_graphs, stream_of

import dnnp as package
from dnnp.core.model.errors import FormatError
from dnnp.formats.stream import Stream
from dnnp.formats.workloads.own_csv import Table, read_tables
from support.run import dnnp

PLAIN = b"name,time_s\na,1\nb,2\n"


def read(nodes: bytes, edges: bytes | None = None) -> Stream:
    return stream_of(
        read_tables(Table(nodes, "n.csv"), None if edges is None else Table(edges, "e.csv"))
    )


def test_every_column():
    stream = read(NODES, EDGES)
    assert stream.header["units"] == {"time": "s"}
    assert stream.header["training"] is True
    assert stream.get("device") == [
        {"type": "device", "class": "accelerator", "kind": "accelerator"},
        {"type": "device", "class": "cpu", "kind": "cpu"},
    ]
    assert stream.get("tensor") == [
        {
            "type": "tensor", "id": 0, "name": "t", "kind": "activation", "size_bytes": 100,
            "transfer_s": 0.5,
        },
        {"type": "tensor", "id": 1, "name": 'two, "2"', "kind": "activation", "size_bytes": 50},
    ]  # fmt: skip
    first, second, third = stream.get("node")
    assert first == {
        "type": "node", "id": 0, "name": "first", "op": "Conv", "inputs": [], "outputs": [0],
        "time_s": {"accelerator": 1.5, "cpu": 3}, "memory_bytes": 10, "color": 0,
    }  # fmt: skip
    assert (second["name"], second["time_s"]) == ('two, "2"', {"accelerator": 2})
    assert (third["name"], third["backward"], third["inputs"]) == ("c", True, [0, 1])
    assert [n.get("color") for n in (second, third)] == [0, None]


def test_bom_and_line_ends_of_windows():
    data = b"\xef\xbb\xbf" + NODES.replace(b"\n", b"\r\n")
    assert read(data, EDGES.replace(b"\n", b"\r\n")).records == read(NODES, EDGES).records


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0" * 5000 + "7", 7), (" 1e-3 ", 0.001), (".5", 0.5), ("-0", 0), ("1e100", 1e100),
        ("9007199254740993", 9007199254740992.0),
    ],
)  # fmt: skip
def test_numbers(text: str, time: float):
    node = read(f"name,time\na,{text}\n".encode()).get("node")[0]
    assert node["time_s"] == {"accelerator": time}


def test_many_edges():
    rows = "".join(f"{i},{i + step},{step}\n" for i in range(5_000) for step in (1, 2, 3, 4))
    stream = read(b"from,to,size\n" + rows.encode())
    assert len(stream.get("tensor")) == 20_000


def test_edges_alone_name_the_nodes():
    stream = read(b"source,target,weight\nx,y,3\nx,z,3\ny,z,4\n")
    assert [(n["name"], n["inputs"]) for n in stream.get("node")] == [
        ("x", []), ("y", [0]), ("z", [0, 1]),
    ]  # fmt: skip
    assert [t["size_bytes"] for t in stream.get("tensor")] == [3, 4]
    assert "no node has a time" in stream.warnings[0]


def test_edges_of_a_node_that_differ_are_tensors_of_their_own():
    stream = read(b"name\na\nb\nc\n", b"from,to,size\na,b,1\na,c,2\n")
    assert [(t["name"], t["size_bytes"]) for t in stream.get("tensor")] == [
        ("a to b", 1), ("a to c", 2),
    ]  # fmt: skip


def test_times_without_a_unit_come_with_a_link_of_one_byte():
    stream = read(b"name,cost:v100,cost:cpu\na,1,2\n")
    assert stream.header["units"] == {"time": "unknown"}
    assert [d.get("bandwidth_bytes_per_s") for d in stream.get("device")] == [1, None]
    assert stream.warnings == []


def test_what_is_not_understood_is_said():
    stream = read(b"name,time_s,memori,foo\na,1,2,3\nb,1,,\n", b"from,to,size\na,b,7\n")
    assert stream.warnings == [
        "attributes of nodes that mean nothing here: memori, foo; did you mean 'memory'?",
        "tensors have sizes, but links no bandwidth: transfers take no time unless "
        "dnnp-partition gets --bandwidth",
    ]


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (b"", None, "n.csv: the file is empty"),
        (b"nam,time\na,1\n", None, "n.csv:1: the first row names neither a column 'name', of nodes,"
         " nor columns 'from' and 'to', of edges; did you mean 'name' by 'nam'?"),
        (b"name;time\na;1\n", None, "n.csv:1: columns are separated by commas"),
        (b"name,time,time\na,1,2\n", None, "n.csv:1: field 'time': the column is there twice"),
        (b"name,time:\na,1\n", None, "n.csv:1: field 'time:': names no class of devices after ':'"),
        (b"name,time\n", None, "n.csv: there are no nodes"),
        (b"name,time\na,1,2\n", None, "n.csv:2: 3 values for 2 columns"),
        (b"name,time,time:accelerator\na,1,2\n", None,
         "n.csv: 'time' and 'time:accelerator' are times of the same class"),
        (b"name,time\n,1\n", None, "n.csv:2: field 'name': is empty"),
        (b'name,time\n"a\nb",1\n\nc,x\n', None,
         "n.csv:5: field 'time': 'x' is not a number from 0 to 1e+100"),
        (b"name,time\na,-1\n", None, "n.csv:2: field 'time': '-1' is not a number from 0 to"),
        (b"name,time\na,inf\n", None,
         "n.csv:2: field 'time': 'inf' is not a number from 0 to 1e+100"),
        (b"name,time\na,1\na,2\n", None, "n.csv:3: a second node 'a'; the first is in line 2"),
        (b"name,time\na,1\nb,\n", None,
         "n.csv:3: field 'time': node 'b' has no time, but others have one"),
        (b"name,backward\na,maybe\n", None,
         "n.csv:2: field 'backward': 'maybe' is not true or false"),
        (b'name,time\n"a,1\n', None,
         "n.csv:2: not a table of comma-separated values: unexpected end of data"),
        (b"name\n\xff\n", None, "n.csv: no comma-separated values: the text is not UTF-8"),
        (b"PK\x03\x04", None, "n.csv: no comma-separated values; it is a zip archive; unzip it"),
        (PLAIN, b"from,size\na,1\n", "e.csv:1: the first row names no column 'to'"),
        (PLAIN, b"from,to\na,\n", "e.csv:2: field 'to': is empty"),
        (PLAIN, b"from,to\na,bb\n", "e.csv:2: there is no node 'bb'"),
        (PLAIN, b"from,to\na,a\n", "e.csv:2: an edge from node 'a' to itself"),
        (PLAIN, b"from,to\na,b\na,b\n", "e.csv:3: a second edge 'a' -> 'b'; the first is in"),
        (PLAIN, b"from,to\na,b\nb,a\n", "e.csv:2: the graph has a cycle: 'a' -> 'b' -> 'a'"),
        (PLAIN, b"from,to,size\na,b,lots\n", "e.csv:2: field 'size': 'lots' is not a number"),
        (PLAIN, b"from,to,transfer\na,b,1\n",
         "e.csv:2: field 'transfer': has no unit, but times of nodes are in seconds"),
        (b"name\na\nb\nc\n", b"from,to,size,tensor\na,b,1,t\na,c,2,t\n",
         "e.csv:3: field 'size': 2, but 1 on another edge of tensor 't'"),
        (b"from,to\na,b\n", b"from,to\na,b\n",
         "n.csv:1: is a list of edges too; the first file must name nodes"),
    ],
)  # fmt: skip
def test_faults_name_file_line_and_column(nodes, edges, message):
    with pytest.raises(FormatError) as caught:
        read(nodes, edges)
    assert str(caught.value).startswith(message)


def written(own: Own) -> tuple[bytes, bytes]:
    """The graph as two tables."""
    nodes, edges = io.StringIO(), io.StringIO()
    rows = csv.writer(nodes)
    rows.writerow(["id", "name", "time", "memory_bytes"])
    for i, (name, time, memory) in enumerate(own.nodes):
        rows.writerow([f"k{i}", name, time, memory])
    rows = csv.writer(edges)
    rows.writerow(["from", "to", "size_bytes", "tensor"])
    for tail, head, size, tensor in edges_of(own):
        rows.writerow([f"k{tail}", f"k{head}", size, tensor])
    return nodes.getvalue().encode(), edges.getvalue().encode()


@given(own_graphs(st.characters(codec="utf-8")))
def test_what_is_written_is_read(own: Own):
    own.compare(read(*written(own)))


def test_the_command_and_python(tmp_path: Path):
    (tmp_path / "n.csv").write_bytes(NODES)
    (tmp_path / "e.csv").write_bytes(EDGES)
    done = dnnp("import", tmp_path / "n.csv", "--edges", tmp_path / "e.csv")
    assert (done.status, done.err.count("\n")) == (0, 1)
    with pytest.warns(package.DnnpWarning, match="bandwidth"):
        graph = package.load(tmp_path / "n.csv", edges=tmp_path / "e.csv")
    assert [dict(r) for r in graph.nodes] == done.records("node")
    source = done.one("header")["source"]
    assert (source["kind"], source["edges"]["path"]) == ("csv", str(tmp_path / "e.csv"))
    planned = dnnp("partition", "-q", "-k", "1", "--cpus", "0", "--bandwidth", "8", stdin=done.out)
    assert planned.one("plan")["value"] == 3.75


def test_options_that_do_not_fit(tmp_path: Path):
    for words, says in (
        (["w.json", "--edges", "e.csv"], "--edges is for csv, not for json"),
        (["--synthetic", "--edges", "e.csv"], "--edges is for files, not for --synthetic"),
        (
            ["--from", "csv", "-", "--edges", "-"],
            "--edges and MODEL cannot both be standard input",
        ),
    ):
        done = dnnp("import", *words)
        assert (done.status, done.err) == (2, f"dnnp-import: {says}\n")
    (tmp_path / "n.csv").write_bytes(PLAIN)
    missing = dnnp("import", tmp_path / "n.csv", "--edges", tmp_path / "none.csv")
    assert missing.status == 1
    bad = dnnp("import", tmp_path / "n.csv", "--edges", "-", stdin=b"from\n")
    assert (bad.status, bad.err) == (
        3, "dnnp-import: <stdin>:1: the first row names no column 'to'\n",
    )  # fmt: skip
