"""Small files that stand for very much are refused, with file, place and limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import closest
from dnnp.formats.inputs.rules import parse_rules
from dnnp.formats.limits import COLUMNS, DEPTH, FACTOR, FREE, PIECES, Room, deep_line
from dnnp.formats.stream import read_bytes
from dnnp.formats.workloads.costgraph import read_costgraph
from dnnp.formats.workloads.msr import read_split, read_workload
from dnnp.formats.workloads.piper import read_piper
from dnnp.loading import read_own
from support.run import dnnp


def words(letter: str, count: int) -> str:
    return " ".join(f"{letter}{i}" for i in range(count))


def many(count: int, value: str = "1") -> str:
    return ",".join(f"a{i}={value}" for i in range(count))


DOT = {
    "sets": f"subgraph A{{{words('n', 1000)}}} subgraph B{{{words('m', 1000)}}}\nA->B;"
    "subgraph A{}->subgraph B{}",
    "defaults of nodes": f"node[{many(1000)}]\n{words('n', 5000)}",
    "defaults of edges": f"edge[{many(1000)}]\n" + "->".join(words("n", 5000).split()),
    "a long default": f'node[op="{"x" * 100_000}"]\n{words("n", 3000)}',
    "attributes of sets": f"{{{words('n', 100)}}}->{{{words('m', 100)}}}\n[{many(500)}]",
    "scopes": f"node[{many(5000)}]\n" + "{}" * 100_000,
    "a set again and again": f"subgraph A{{{words('n', 20_000)}}}\n" + "subgraph A{}" * 10_000,
    "a set that grows": "\n".join(f"subgraph A{{n{i}}}" for i in range(20_000)),
    "names of tensors": f"subgraph A{{{'w' * 50_000}}}\n"
    + "".join(f"subgraph A{{}}->r{i}[size={i}]" for i in range(100)),
}
KEYS = '<graphml><key id="k" for="node" attr.name="op"><default>{}</default></key>'
NODES = '<graph edgedefault="directed">\n{}</graph></graphml>'


@pytest.mark.parametrize("name", DOT)
def test_dot(name: str) -> None:
    with pytest.raises(FormatError, match=r"^g\.dot:\d+: expands to more than \d+ characters, the"):
        read_own("dot", f"strict digraph{{\n{DOT[name]}}}".encode(), "g.dot", None)


def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "g.dot").write_text(f"digraph{{\n{DOT['sets']}}}")
    done = dnnp("import", tmp_path / "g.dot")
    assert (done.status, done.out, done.err.count("\n")) == (3, b"", 1)
    assert f"{tmp_path}/g.dot:3: expands to more than {FREE} characters" in done.err


def test_graphml() -> None:
    nodes = "".join(f'<node id="{i}"/>\n' for i in range(2000))
    text = KEYS.format("x" * 100_000) + NODES.format(nodes)
    with pytest.raises(FormatError, match=r"^g:\d+: expands to more than 13\d{5} characters, the"):
        read_own("graphml", text.encode(), "g", None)
    with pytest.raises(FormatError, match=r"^g:1: a namespace of more than 1000 characters$"):
        read_own("graphml", f'<graphml xmlns="{"u" * 1001}">'.encode(), "g", None)


def test_names_that_are_repeated() -> None:
    node = {"supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "size": 1}
    ids = range(1, 1000)
    workload = {
        "maxFPGAs": 2, "maxSizePerFPGA": 1, "maxCPUs": 1,
        "nodes": [{**node, "id": i, "name": "x" * (20_000 if i == 0 else 1)} for i in range(1000)],
        "edges": [{"sourceId": 0, "destId": i, "cost": i} for i in ids],
    }  # fmt: skip
    with pytest.raises(FormatError, match=r"^w: field 'edges': expands to more than"):
        read_workload(json.dumps(workload).encode(), "w")
    way = {"timePerSample": 1, "parameterSize": 1, "memoryUsageA": 1, "memoryUsageB": 1}
    first = {**way, "syncTimeFw": {}, "syncTimeBw": {str(i): 0 for i in ids}}
    other = {**way, "syncTimeFw": {"0": 0}, "syncTimeBw": {}}
    piper = {
        "maxDevices": 2, "maxMemoryPerDevice": 1, "bandwidth": 1, "mbsInBatch": 1,
        "nodes": [{"id": 0, "name": "x" * 20_000, "TMPCs": {"1": [first]}},
                  *({"id": i, "TMPCs": {"1": [other]}} for i in ids)],
        "edges": [{"sourceId": 0, "destId": i, "communicationCost": 1} for i in ids],
    }  # fmt: skip
    with pytest.raises(FormatError, match=r"^p: field 'edges': expands to more than"):
        read_piper(json.dumps(piper).encode(), "p")
    text = f'node {{ name: "{"x" * 20_000}" id: 0\n{"output_info { }" * 1000} }}'
    with pytest.raises(FormatError, match=r"^c:2: expands to more than"):
        read_costgraph(text.encode(), "c")


def test_depth_has_a_line_and_a_limit() -> None:
    for start, line in ((b'{"nodes":\n' + b"[" * 100_000, 2), (b'{"a":' * 100_000, 1)):
        with pytest.raises(FormatError, match=f"^w:{line}: .*: more than {DEPTH} lists and obj"):
            read_workload(start, "w")
    with pytest.raises(FormatError, match=r"^c:2: more than 64 messages inside each other"):
        read_costgraph(b"node {\n" + b"a {" * 1000, "c")
    for read in (read_bytes, read_split, parse_rules):
        with pytest.raises(
            FormatError, match=rf"^f(:1)?: not JSON.*: more than {DEPTH} lists and obj"
        ):
            read(b"[" * 5000, "f")
    assert deep_line(b'"' + b"[" * 1000 + b'"') is None
    joined = '"a"+' * 5000
    with pytest.raises(FormatError, match=rf"^g:2: more than {PIECES} strings joined by '\+'$"):
        read_own("dot", f'digraph{{\n{joined}"a"}}'.encode(), "g", None)


def test_columns() -> None:
    names = ",".join(f"c{i}" for i in range(COLUMNS))
    with pytest.raises(FormatError, match=f"^t:1: more than {COLUMNS} columns$"):
        read_own("csv", f"name,{names}\n".encode(), "t", None)
    wide = f"name,{names.partition(',')[2]}\nn{',' * (COLUMNS - 1)}\n"
    assert len(read_own("csv", wide.encode(), "t", None).get("node")) == 1
    with pytest.raises(FormatError, match=r"^t:1: field 'c7': the column is there twice$"):
        read_own("csv", b"name,c7,c8,c7\n", "t", None)


def test_classes_of_one_node_each_take_linear_time() -> None:
    text = "digraph{" + "".join(f'n{i}["time:c{i}"=1];' for i in range(5000)) + "}"
    found = read_own("dot", text.encode(), "g", None).get("node")
    assert [node["time_s"] for node in found] == [{f"c{i}": 1} for i in range(5000)]


def test_what_people_write_fits() -> None:
    """A large graph with defaults that are as long as its own lines, and what draws it."""
    style = 'shape=box,style="rounded,filled",fontname="Helvetica,Arial,sans-serif",fillcolor=white'
    text = f"digraph{{node[{style},op=Conv2D,time=0.001,memory=1000000]edge[{style},size=1000]"
    text += "->".join(words("n", 40_000).split()) + f"; {{{words('n', 300)}}}->{{end last}}}}"
    assert len(read_own("dot", text.encode(), "g", None).get("node")) == 40_002


def test_long_words_resemble_nothing() -> None:
    assert closest("exakt" * 30, ["exact" * 30]) is None


def test_room_grows_with_the_file() -> None:
    Room("f", FREE).take(FACTOR * FREE)
    with pytest.raises(FormatError, match=f"than {FACTOR * FREE} characters, the limit for {FREE}"):
        Room("f", FREE).take(FACTOR * FREE + 1)
    Room().take(10**18)
