"""Graphs in GraphML."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import networkx
import pytest
from fuzz.own_graphs import GRAPHML
from hypothesis import given
from hypothesis import strategies as st
from import_.own import Own, edges_of, networkx_of, own_graphs, stream_of

from dnnp.core.model.errors import FormatError
from dnnp.formats.stream import Stream
from dnnp.formats.workloads.own_graphml import read_graphml
from support.run import dnnp

LETTERS = st.characters(
    codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"
)
"""Characters that XML admits."""


def read(data: bytes) -> Stream:
    return stream_of(read_graphml(data, "g.xml"))


def document(body: str, default: str = "directed", keys: str = "") -> bytes:
    """A graph with a key for times of nodes and one for sizes of edges, each on a line."""
    return (
        '<graphml><key id="t" for="node" attr.name="time" attr.type="double"/>'
        '<key id="s" for="edge" attr.name="size" attr.type="double"/>'
        f'{keys}<graph edgedefault="{default}">\n{body}</graph></graphml>'
    ).encode()


def test_keys_defaults_and_what_yed_adds():
    stream = read(GRAPHML)
    assert [(n["name"], n["op"], n["time_s"]) for n in stream.get("node")] == [
        ("a", "Conv <1>", {"accelerator": 2}),
        ("b", "", {"accelerator": 1.5}),
    ]
    assert [t["size_bytes"] for t in stream.get("tensor")] == [100]
    assert stream.header["units"] == {"time": "s"}
    assert len(stream.warnings) == 1
    assert "bandwidth" in stream.warnings[0]


def test_as_igraph_writes_it():
    stream = read(b"""<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"
         xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
         xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns
         http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
<!-- Created by igraph -->
  <key id="g_name" for="graph" attr.name="name" attr.type="string"/>
  <key id="v_name" for="node" attr.name="name" attr.type="string"/>
  <key id="v_time" for="node" attr.name="time" attr.type="double"/>
  <key id="e_weight" for="edge" attr.name="weight" attr.type="double"/>
  <graph id="G" edgedefault="directed">
    <data key="g_name">small</data>
    <node id="n0">
      <data key="v_name">x</data>
      <data key="v_time">1</data>
    </node>
    <node id="n1">
      <data key="v_name">y</data>
      <data key="v_time">2.5</data>
    </node>
    <edge source="n0" target="n1">
      <data key="e_weight">3</data>
    </edge>
  </graph>
</graphml>
""")
    assert [(n["name"], n["time_s"]["accelerator"]) for n in stream.get("node")] == [
        ("x", 1), ("y", 2.5),
    ]  # fmt: skip
    assert [t["size_bytes"] for t in stream.get("tensor")] == [3]
    assert stream.warnings == []


def test_what_a_plan_says_about_nodes_is_left_out():
    keys = "".join(
        f'<key id="{name}" for="node" attr.name="{name}" attr.type="string"/>'
        for name in ("time:a", "time:cpu", "stage", "device", "label", "fillcolor", "op", "flop")
    )
    keys += '<key id="x" for="edge" attr.name="transfer_s" attr.type="double"/>'
    said = {"time:a": 1, "time:cpu": 2, "stage": 0, "device": "a/0", "label": "l", "flop": 5}
    data = "".join(f'<data key="{key}">{value}</data>' for key, value in said.items())
    body = f'<node id="a">{data}</node><node id="b">{data}</node>'
    body += '<edge source="a" target="b"><data key="x">0.5</data></edge>'
    stream = read(document(body, keys=keys))
    assert stream.warnings == []
    assert stream.get("node")[0] == {
        "type": "node", "id": 0, "name": "a", "op": "", "inputs": [], "outputs": [0], "flop": 5,
        "time_s": {"a": 1, "cpu": 2},
    }  # fmt: skip
    assert stream.get("tensor")[0]["transfer_s"] == 0.5
    assert stream.header["units"] == {"time": "unknown"}


def test_edges_before_nodes_and_directions_of_their_own():
    body = '<edge source="a" target="b" directed="true"/><node id="b"/><node id="a"/>'
    assert [n["name"] for n in read(document(body, "undirected")).get("node")] == ["b", "a"]


NODES = '<node id="a"/><node id="b"/>\n'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "g.xml: the file is empty"),
        (b"\n a", "g.xml:2: no graph in GraphML: syntax error"),
        (b"\x1f\x8b", "g.xml:1: no graph in GraphML: not well-formed (invalid token); it is comp"),
        (b"<html/>", "g.xml:1: no graph in GraphML: the file is <html>, not <graphml>"),
        (b"<graphml>\n", "g.xml:2: no graph in GraphML: no element found"),
        (b"<graphml/>", "g.xml: there is no graph"),
        (b'<?xml version="1.0" encoding="none"?><a/>', "g.xml"),
        (document(""), "g.xml: there are no nodes"),
        (b'<?xml version="1.0"?>\n<!DOCTYPE graphml [<!ENTITY a "b">]><graphml/>',
         "g.xml:2: a <!DOCTYPE>, which dnnp does not read; leave it out"),
        (document("&a;"), "g.xml:2: no graph in GraphML: undefined entity"),
        (document("</graph>\n<graph>"), "g.xml:3: a second graph in the file"),
        (document('<node id="a">\n<graph/></node>'), "g.xml:3: a <graph> inside a node or an edge"),
        (document("<hyperedge/>"), "g.xml:2: a hyperedge; edges that carry one tensor name it"),
        (document('<node id="a"><port/></node>'), "g.xml:2: a port; edges end at nodes"),
        (document("<node/>"), "g.xml:2: a <node> without 'id'"),
        (document('<edge source="a"/>'), "g.xml:2: a <edge> without 'target'"),
        (b'<graphml>\n<node id="a"/></graphml>', "g.xml:2: a <node> outside a graph"),
        (document('<node id="a"><data key="q"/></node>'), "g.xml:2: there is no <key> with the id"),
        (document("", keys='<key id="t"/>'), "g.xml:1: a second <key> with the id 't'"),
        (document(NODES + '<edge source="a" target="b"/>', "undirected"),
         "g.xml:3: the edge 'a' -> 'b' is undirected; the graph needs edgedefault='directed'"),
        (document(NODES + '<edge source="a" target="b" directed="false"/>'),
         "g.xml:3: the edge 'a' -> 'b' is undirected;"),
        (document(NODES + '<edge source="a" target="c"/>'), "g.xml:3: there is no node 'c'"),
        (document(NODES + '<edge source="a" target="a"/>'), "g.xml:3: an edge from node 'a' to it"),
        (document(NODES + '<edge source="a" target="b"/>\n<edge source="b" target="a"/>'),
         "g.xml:3: the graph has a cycle: 'a' -> 'b' -> 'a'"),
        (document(NODES + '<edge source="a" target="b"/>\n' * 2),
         "g.xml:4: a second edge 'a' -> 'b'; the first is in line 3; edges"),
        (document('<node id="a"/>\n<node id="a"/>'),
         "g.xml:3: a second node 'a'; the first is in line 2"),
        (document('<node id="a">\n<data key="t">x</data></node>'),
         "g.xml:2: field 'time': 'x' is not a number from 0 to 1e+100"),
        (document(NODES + '<edge source="a" target="b"><data key="s">1e101</data></edge>'),
         "g.xml:3: field 'size': '1e101' is not a number"),
        (document('<node id="b"/>\n<node id="a"><data key="t">1</data></node>'),
         "g.xml:2: field 'time': node 'b' has no time, but others have one"),
    ],
)  # fmt: skip
def test_faults_name_file_and_line(data: bytes, message: str):
    with pytest.raises(FormatError) as caught:
        read(data)
    assert str(caught.value).startswith(message)


@given(own_graphs(LETTERS))
def test_what_is_written_is_read(own: Own):
    keys = "".join(
        f'<key id="{name}" for="all" attr.name="{name}" attr.type="string"/>'
        for name in ("name", "memory_bytes", "tensor")
    )
    body = [
        f'<node id="k{i}"><data key="name">{escape(name)}</data><data key="t">{time!r}</data>'
        f'<data key="memory_bytes"> {memory!r} </data></node>'
        for i, (name, time, memory) in enumerate(own.nodes)
    ]
    body += [
        f'<edge source="k{tail}" target="k{head}"><data key="tensor">{tensor}</data>'
        f'<data key="s">{size!r}</data></edge>'
        for tail, head, size, tensor in edges_of(own)
    ]
    own.compare(read(document("\n".join(body), keys=keys)))


@given(own_graphs(LETTERS))
def test_what_networkx_writes_is_read(own: Own):
    own.compare(read("\n".join(networkx.generate_graphml(networkx_of(own))).encode()))


def test_encodings_bom_and_line_ends_of_windows():
    expected = read(GRAPHML).records
    assert read(b"\xef\xbb\xbf" + GRAPHML.replace(b"\n", b"\r\n")).records == expected
    other = GRAPHML.decode().replace("utf-8", "utf-16").encode("utf-16")
    assert read(other).records == expected


def test_many_edges():
    body = "".join(f'<node id="{i}"/>' for i in range(25_004))
    body += "".join(
        f'<edge source="{i}" target="{i + step}"><data key="s">{step}</data></edge>'
        for i in range(5_000)
        for step in (1, 2, 3, 4)
    )
    assert len(read(document(body)).get("tensor")) == 20_000


def test_the_command(tmp_path: Path):
    (tmp_path / "g.graphml").write_bytes(GRAPHML)
    done = dnnp("import", tmp_path / "g.graphml")
    assert (done.status, done.err.count("\n")) == (0, 1)
    header = done.one("header")
    assert (header["source"]["kind"], header["model"]) == ("graphml", "g")
    checked = dnnp("check", "-q", stdin=done.out)
    assert checked.status == 0, checked.err
