"""CostGraphDef as text, and the text format itself."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.model.errors import FormatError
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.costgraph import Message, Word, parse_text, read_costgraph
from support.run import dnnp

GRAPH = """
# two sources, a join, and a control edge
node { name: "_SOURCE" }
node { name: "a" id: 1 control_input: 0 compute_cost: 58
  output_info { size: 70 alias_input_port: -1 dtype: DT_FLOAT
    shape { dim { size: 5 name: "n" } dim { size: 2 } } }
  output_info { size: 8 alias_input_port: -1 dtype: DT_INT64_REF } }
node { name: "b" id: 7 compute_cost: 47 input_info { preceding_node: 1 preceding_port: 1 }
  output_info { alias_input_port: 0 } temporary_memory_size: 3 persistent_memory_size: 4 }
node { name: "c" id: 3 is_final: true control_input: [0, 1]
  input_info { preceding_node: 1 } input_info { preceding_node: 7 } input_info { preceding_node: 1 }
  output_info { size: 1 alias_input_port: -1 shape { unknown_rank: true } } }
cost { cost: 105.5 dimension: "time" }
"""


def read(text: str):
    return read_costgraph(text.encode(), "g.pbtxt")


def test_every_field():
    stream = read(GRAPH)
    assert stream.header["units"] == {"time": "unknown"}
    assert stream.header["source"]["kind"] == "costgraph"
    assert stream.get("device") == [
        {
            "type": "device",
            "class": "accelerator",
            "kind": "accelerator",
            "bandwidth_bytes_per_s": 1,
        }
    ]
    tensors = [
        (t["name"], t["size_bytes"], t.get("dtype"), t.get("shape"), t.get("output"))
        for t in stream.get("tensor")
    ]
    assert tensors == [
        ("a:0", 70, "float32", [5, 2], None),
        ("a:1", 8, "int64", None, None),
        ("b", 8, None, None, None),
        ("c", 1, None, None, True),
        ("^_SOURCE", 0, None, None, None),
        ("^a", 0, None, None, None),
    ]
    nodes = [
        (n["id"], n["inputs"], n["outputs"], n["time_s"], n.get("memory_bytes"))
        for n in stream.get("node")
    ]
    assert nodes == [
        (0, [], [4], {"accelerator": 0}, None),
        (1, [4], [0, 1, 5], {"accelerator": 58}, None),
        (7, [1], [2], {"accelerator": 47}, 7),
        (3, [0, 2, 4, 5], [3], {"accelerator": 0}, None),
    ]
    assert graph_of(stream).n == 4


def test_one_tensor_a_node():
    """`b` reads the second output of `a`; it gets the first, as do aliases."""
    stream = read_costgraph(GRAPH.encode(), "g.pbtxt", one_tensor=True)
    tensors = [(t["name"], t["size_bytes"], t.get("dtype")) for t in stream.get("tensor")]
    assert tensors == [
        ("a", 70, "float32"),
        ("b", 70, None),
        ("c", 1, None),
        ("^_SOURCE", 0, None),
        ("^a", 0, None),
    ]
    nodes = [(n["id"], n["inputs"], n["outputs"]) for n in stream.get("node")]
    assert nodes == [(0, [], [3]), (1, [3], [0, 4]), (7, [0], [1]), (3, [0, 1, 3, 4], [2])]
    assert graph_of(stream).n == 4
    wrong = GRAPH.replace("preceding_port: 1", "preceding_port: 2")
    with pytest.raises(FormatError, match="2; node 'a' has 2 outputs"):
        read_costgraph(wrong.encode(), "g.pbtxt", one_tensor=True)


def test_ids_that_repeat_on_other_devices():
    text = """node { name: "a" device: "/cpu" id: 1 output_info { size: 2 } }
        node { name: "b" device: "/gpu" id: 1 output_info { size: 3 } }
        node { name: "c" device: "/gpu" id: 2 input_info { preceding_node: 1 } }"""
    stream = read(text)
    assert [n["id"] for n in stream.get("node")] == [0, 1, 2]
    assert stream.get("node")[2]["inputs"] == stream.get("node")[1]["outputs"]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("id: 7", "id: 1", 8, "field 'id': 1 is already the id of the node in line 4"),
        ("preceding_node: 7", "preceding_node: 9", 11, "'preceding_node': there is no node 9"),
        ("preceding_port: 1", "preceding_port: 2", 8, "2; node 'a' has 2 outputs"),
        ("control_input: 0 ", "control_input: 5 ", 4, "field 'control_input': there is no node 5"),
        ("control_input: 0 ", "control_input: 1 ", 4, "a node reads its own output"),
        ("control_input: 0 ", "control_input: 3 ", 4, "cycle: 1 'a' -> 3 'c' -> 1 'a'"),
        ("compute_cost: 58", "compute_cost: -58", 4, "field 'compute_cost': -58 is not a number"),
        ("compute_cost: 58", "compute_cost: nan", 4, "field 'compute_cost'"),
        ("compute_cost: 58", "compute_cost: 1e999", 4, "field 'compute_cost'"),
        ("compute_cost: 58", 'compute_cost: "58"', 4, "field 'compute_cost'"),
        ("compute_cost: 58", "compute_cost: 5 compute_cost: 6", 4, "is given twice"),
        ("size: 70", "size: -70", 5, "field 'size'"),
        ("id: 1", "id: 1.5", 4, "field 'id': 1.5 is not an integer"),
        ("is_final: true", "is_final: maybe", 10, "field 'is_final'"),
        ("output_info { alias_input_port: 0 }", "output_info: 3", 9, "3 is not a message"),
        ('name: "b"', "name: b", 8, "field 'name': b is not a string"),
        ('name: "b"', 'name: "b', 8, "out of place"),
        ('name: "b"', 'name "b"', 8, "expected ':' or '{' after 'name'"),
        ('name: "b"', r'name: "\q"', 8, "bad escape"),
        ('name: "b"', "name: }", 8, "expected a value, not '}'"),
        ("cost {", "cost }", 13, "expected ':' or '{'"),
        ('"time" }', '"time"', 14, "expected a field name, not the end of the file"),
    ],
)
def test_faults_name_their_line(old, new, line, reason):
    assert GRAPH.count(old) >= 1
    with pytest.raises(FormatError) as caught:
        read(GRAPH.replace(old, new, 1))
    assert str(caught.value).startswith(f"g.pbtxt:{line}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["", "cost { cost: 1 }", "# nothing", "x: 1"])
def test_other_documents(text):
    with pytest.raises(FormatError, match="there are no nodes"):
        read(text)


def test_the_command(tmp_path: Path):
    path = tmp_path / "g.pbtxt"
    path.write_text(GRAPH)
    result = dnnp("import", path)
    assert (result.status, result.err) == (0, "")
    assert len(result.records("node")) == 4
    one = dnnp("import", "--one-tensor", path)
    assert [t["name"] for t in one.records("tensor")] == ["a", "b", "c", "^_SOURCE", "^a"]
    assert "--one-tensor" in one.one("header")["provenance"][0]["arguments"]
    other = path.rename(tmp_path / "g.other")
    assert dnnp("import", other).status == 3
    assert dnnp("import", other, "--from", "costgraph").status == 0
    assert dnnp("import", "-", "--from", "costgraph", stdin=GRAPH.encode()).status == 0
    bad = dnnp("import", "-", "--from", "costgraph", stdin=b"node {")
    assert bad.status == 3
    assert bad.err.startswith("dnnp-import: <stdin>:1: ")


def plain(message: Message) -> list:
    """A message as nested lists."""
    return [
        (name, plain(value) if isinstance(value, Message) else value)
        for name, value, _ in message.fields
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1 b: -2; c: 0x1F, d: 017 e: 0", [("a", 1), ("b", -2), ("c", 31), ("d", 15), ("e", 0)]),
        (
            "a: 1.5 b: .5 c: 5. d: 2f e: 1e3 f: -1.5E-2",
            [("a", 1.5), ("b", 0.5), ("c", 5.0), ("d", 2.0), ("e", 1000.0), ("f", -0.015)],
        ),
        ("a: inf b: -inf", [("a", math.inf), ("b", -math.inf)]),
        ("a: true b: DT_FLOAT", [("a", Word("true")), ("b", Word("DT_FLOAT"))]),
        ('a: "x" \'y\'\n"z"', [("a", "xyz")]),
        (
            r'a: "\n\t\"\'\\\?\x41\102\u00e9\U0001F600\303\251"',
            [("a", "\n\t\"'\\?AB\u00e9\U0001f600\u00e9")],
        ),
        ("a { b: 1 } a: < b: 2 > a <>", [("a", [("b", 1)]), ("a", [("b", 2)]), ("a", [])]),
        (
            "a: [1, 2] b: [] c: [{d: 1}, <d: 2>]",
            [("a", 1), ("a", 2), ("c", [("d", 1)]), ("c", [("d", 2)])],
        ),
        ("[x.y/z-w] { a: 1 }", [("[x.y/z-w]", [("a", 1)])]),
        ("a: 1 # b: 2\n# c\n", [("a", 1)]),
    ],
)
def test_the_text_format(text, expected):
    assert plain(parse_text(text.encode(), "t")) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        "a: {",
        "}",
        "a: 09",
        "a: [1",
        "a: [1 2]",
        "[a",
        "[",
        "a: -x",
        'a: -"x"',
        "a: @",
        'a: "\n"',
        'a: "\\xff"',
        'a: "\\ud800"',
        'a: "\\U00110000"',
        "1: 2",
        "a " * 3,
        "a: 1" + "1" * 5000,
        "a{" * 100 + "}" * 100,
    ],
)
def test_text_that_is_wrong(text):
    with pytest.raises(FormatError, match=r"^t:1: "):
        parse_text(text.encode(), "t")


def test_text_that_is_not_utf8():
    with pytest.raises(FormatError, match=r"^t:2: the text is not UTF-8"):
        parse_text(b"a: 1\nb: '\xff'", "t")


names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
scalars = (
    st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | names.filter(lambda n: n not in ("inf", "nan", "infinity")).map(Word)
)
messages = st.recursive(
    st.lists(st.tuples(names, scalars), max_size=4),
    lambda inner: st.lists(st.tuples(names, scalars | inner), max_size=4),
    max_leaves=12,
)


def quoted(text: str) -> str:
    """A string literal with every byte escaped that may need it."""
    kept = set(b"abcxyz 019_")
    return '"' + "".join(chr(b) if b in kept else f"\\{b:03o}" for b in text.encode()) + '"'


def written(fields: list) -> str:
    parts = []
    for name, value in fields:
        if isinstance(value, list):
            parts.append(f"{name} {{ {written(value)} }}")
        elif isinstance(value, str):
            parts.append(f"{name}: {quoted(value)}")
        else:
            parts.append(f"{name}: {value!r}")
    return "\n".join(parts)


@given(messages)
def test_what_is_written_is_read(fields):
    assert plain(parse_text(written(fields).encode(), "t")) == fields


@given(st.data())
def test_any_change_is_read_or_refused(data):
    """Cut, repeat or insert text anywhere; what is accepted makes a valid graph."""
    start = data.draw(st.integers(0, len(GRAPH)))
    stop = min(len(GRAPH), start + data.draw(st.integers(0, 20)))
    pieces = ["", "{", "}", "<", "[", ":", '"', "\\", "node { }", "id: 1", "-1", "size: 1e99", "\0"]
    text = GRAPH[:start] + data.draw(st.sampled_from(pieces)) + GRAPH[stop:]
    try:
        stream = read(text)
    except FormatError:
        return
    graph_of(stream)


@given(st.binary(max_size=60))
def test_bytes_are_read_or_refused(data):
    with contextlib.suppress(FormatError):
        parse_text(data, "t")
