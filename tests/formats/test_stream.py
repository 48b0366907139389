"""Reading and writing the stream."""

from __future__ import annotations

import copy

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.model.errors import FormatError
from dnnp.formats.graph import digest_of, graph_of, units_of
from dnnp.formats.records import RECORDS, json_schema
from dnnp.formats.stream import read_bytes
from support.graphs import header, random_stream, to_bytes
from support.run import dnnp


def lines(stream) -> list[dict]:
    return [orjson.loads(line) for line in to_bytes(stream).splitlines()]


def joined(records) -> bytes:
    return b"".join(orjson.dumps(r) + b"\n" for r in records)


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_round_trip_keeps_every_byte(seed, n):
    data = to_bytes(random_stream(seed, n, params=True, colors=True))
    assert to_bytes(read_bytes(data)) == data


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_schema_accepts_what_is_written(seed, n):
    validator = jsonschema.Draft202012Validator(json_schema())
    for record in lines(random_stream(seed, n, params=True, colors=True)):
        validator.validate(record)


def test_unknown_records_and_fields_pass_through():
    records = lines(random_stream(1, 4))
    records[1]["comment"] = {"a": [1, None]}
    records.insert(2, {"type": "note", "text": "kept", "odd": None})
    records[-1]["records"] += 1
    again = lines(read_bytes(joined(records)))
    assert {"type": "note", "text": "kept", "odd": None} in again
    assert again[1]["comment"] == {"a": [1, None]}
    assert len(again) == len(records)


ODD = b"[123456789012345678901234567890,-0,1.10,1E5,1e-400,0.1234567890123456789012,2.0,7,true]"


def test_numbers_that_nobody_here_knows_keep_every_digit():
    data = to_bytes(read_bytes(to_bytes(random_stream(1, 4))))
    data = data.replace(b'"id":1,', b'"id":1,"mine":{"deep":%b, "x":%b},' % (ODD, ODD))
    data = data.replace(
        b'"provenance":[]',
        b'"provenance":[{"tool":"t","version":"1",'
        b'"arguments":[],"mine":%b}],"also":%b' % (ODD, ODD),
    )
    body, end, _ = data.rsplit(b"\n", 2)
    note = b'{"type":"note","mine":%b}' % ODD
    count = b'{"type":"end","records":%d,"mine":%b}' % (body.count(b"\n") + 2, ODD)
    data = b"\n".join((body, note, count, b""))
    stream = read_bytes(data)
    assert stream.warnings == []
    again = to_bytes(stream)
    assert again.count(ODD) == data.count(ODD) - 1  # the last record is made anew
    assert again.splitlines()[:-1] == data.replace(b', "x"', b',"x"').splitlines()[:-1]
    assert end.startswith(b'{"type":"end"')


def test_numbers_in_records_that_a_command_changes():
    data = to_bytes(random_stream(1, 4)).replace(b'"id":1,', b'"id":1,"mine":%b,' % ODD)
    result = dnnp("coarsen", "--chains", stdin=data)
    assert result.status == 0, result.err
    split = dnnp("partition", "-q", "-k", "2", stdin=result.out)
    assert split.out.count(b'"mine":%b' % ODD) == data.count(ODD)
    assert dnnp("check", stdin=split.out).status == 0


def test_certificates_are_known_whatever_they_hold():
    record = {
        "type": "bound",
        "method": "m",
        "value": 1,
        "gap": 0,
        "status": "proven",
        "tried": [],
        "validity": "free",
        "digest": "0" * 64,
        "certificate": {"argument": "a", "weights": [1.5]},
    }
    data = joined([*lines(random_stream(1, 4))[:-1], record, {"type": "end", "records": 0}])
    stream = read_bytes(data.replace(b"[1.5]", b"[1.50]").replace(b'"tried":[]', b'"tried": []'))
    assert stream.get("bound")[0]["certificate"] == {"argument": "a", "weights": [1.5]}


def test_of_names_that_stand_twice_the_last_value_is_kept():
    data = to_bytes(random_stream(1, 4))
    twice = data.replace(b'"id":1,', b'"id":1,"mine":1.10,"b":0,"mine":1e1,')
    once = data.replace(b'"id":1,', b'"id":1,"mine":1e1,"b":0,')
    assert to_bytes(read_bytes(twice)) == once


def test_known_numbers_stay_numbers():
    data = to_bytes(random_stream(1, 4)).replace(b'"id":1,', b'"id":1,"mine":1.10,')
    data = data.replace(b'"time_s":{"dev":', b'"time_s":{"dev":0.1234567890123456789e1,"x":')
    times = [record["time_s"]["dev"] for record in read_bytes(data).get("node")]
    assert times == [1.2345678901234567] * len(times)


def test_count_that_differs_is_a_warning():
    records = lines(random_stream(1, 4))
    records[-1]["records"] = 3
    (warning,) = read_bytes(joined(records), "f").warnings
    assert warning == f"f: the end record counts 3 records, there are {len(records) - 1}"


def edit(change) -> bytes:
    """A small stream after `change(records)`."""
    records = lines(random_stream(5, 4))
    change(records)
    return joined(records)


def first(records, kind):
    return next(r for r in records if r["type"] == kind)


FAULTS = {
    "not json": (b"{'a': 1}\n", "f:1: not JSON"),
    "empty": (b"", "f: empty stream"),
    "blank line": (b"\n", "f:1: empty line"),
    "nan": (b'{"type":"header","x":NaN}\n', "f:1: not JSON: NaN and Infinity"),
    "array": (b"[1]\n", "f:1: [1] is not a JSON object"),
    "no type": (b'{"a":1}\n', "f:1: field 'type': is missing"),
    "pretty-printed": (b'{\n  "type": "header"\n}\n', "f:1: not one record a line"),
    "invalid UTF-8": (b'{"type":"\xff"}\n', "f:1: not JSON"),
    "deep": (b"[" * 100_000 + b"\n", "f:1: not JSON"),
    "no header": (b'{"type":"node"}\n', "f:1: the first record is of type 'node'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_broken_lines(name):
    data, message = FAULTS[name]
    with pytest.raises(FormatError) as caught:
        read_bytes(data, "f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


EDITS = {
    "version": (lambda rs: rs[0].update(version=4), "f:1: field 'version': version 4 of the"),
    "format": (lambda rs: rs[0].update(format="x"), "f:1: field 'format': 'x' is not 'dnnp'"),
    "cut off": (lambda rs: rs.pop(), "the 'end' record is missing"),
    "two headers": (lambda rs: rs.insert(2, rs[0]), "f:3: 'header' record in the middle"),
    "two ends": (lambda rs: rs.insert(2, rs[-1]), "f:3: 'end' record in the middle"),
    "duplicate id": (lambda rs: rs.insert(-1, first(rs, "node")), "node 0 was already defined in"),
    "negative cost": (
        lambda rs: first(rs, "node").update(time_s={"dev": -1}),
        "field 'time_s.dev': -1 is not a number of at least 0",
    ),
    "null cost": (
        lambda rs: first(rs, "node").update(time_s={"dev": None}),
        "field 'time_s.dev': null (a NaN that went through jq?)",
    ),
    "missing name": (lambda rs: first(rs, "node").pop("name"), "field 'name': is missing"),
    "float id": (lambda rs: first(rs, "node").update(id=1.5), "field 'id': 1.5 is not an integer"),
    "bool id": (lambda rs: first(rs, "node").update(id=True), "field 'id': true is not an"),
    "repeated input": (
        lambda rs: first(rs, "node").update(inputs=[0, 0]),
        "field 'inputs': [0, 0] is not a list",
    ),
    "bad input id": (
        lambda rs: first(rs, "node").update(inputs=["a"]),
        "field 'inputs[0]': 'a' is not an integer",
    ),
    "bad kind": (lambda rs: first(rs, "tensor").update(kind="x"), "is not one of input, act"),
    "huge size": (lambda rs: first(rs, "tensor").update(size_bytes=1e200), "field 'size_bytes'"),
    "source": (lambda rs: rs[0].update(source={"kind": "onnx"}), "field 'source.path': is missing"),
    "provenance": (
        lambda rs: rs[0].update(provenance=[{"tool": "x"}]),
        "field 'provenance[0].version': is missing",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_faulty_records(name):
    change, message = EDITS[name]
    with pytest.raises(FormatError) as caught:
        read_bytes(edit(change), "f")
    assert message in str(caught.value)
    assert str(caught.value).startswith("f:")


def rewire(rs):
    """Let the first node read what the last one makes."""
    nodes = [r for r in rs if r["type"] == "node"]
    nodes[0]["inputs"] = [*nodes[0]["inputs"], nodes[-1]["outputs"][0]]
    nodes[-1]["inputs"] = [nodes[0]["outputs"][0]]


GRAPH_EDITS = {
    "dangling": (lambda rs: first(rs, "node").update(inputs=[99]), "there is no tensor 99"),
    "cycle": (rewire, "the graph has a cycle: node "),
    "two producers": (
        lambda rs: [r.update(outputs=[3]) for r in rs if r["type"] == "node"],
        "tensor 3 has 4 producers",
    ),
    "kind": (lambda rs: first(rs, "tensor").update(kind="activation"), "but has no producer"),
    "partly priced": (lambda rs: first(rs, "node").pop("time_s"), "field 'time_s': missing, but"),
    "captures": (lambda rs: first(rs, "node").update(captures=[9]), "field 'captures'"),
}


@pytest.mark.parametrize("name", GRAPH_EDITS)
def test_faulty_graphs(name):
    change, message = GRAPH_EDITS[name]
    with pytest.raises(FormatError, match="f") as caught:
        graph_of(read_bytes(edit(change), "f"))
    assert message in str(caught.value)


def test_groups_must_partition_the_nodes():
    stream = random_stream(5, 4)
    group = {"type": "group", "id": 0, "name": "g", "nodes": [0, 1, 2]}
    stream.records["group"] = [group]
    graph = graph_of(stream)
    with pytest.raises(FormatError, match="node 3 is in 0 groups"):
        units_of(stream, graph)
    stream.records["group"] = [group, {**group, "id": 1, "nodes": [2, 3]}]
    with pytest.raises(FormatError, match="node 2 is in 2 groups"):
        units_of(stream, graph)


def graph_digest(stream) -> str:
    graph = graph_of(stream)
    return digest_of(graph, units_of(stream, graph))


def test_digest_changes_with_costs_and_not_with_names():
    stream = random_stream(3, 6)
    before = graph_digest(stream)
    stream.get("node")[0]["name"] = "other"
    assert graph_digest(stream) == before
    changed = copy.deepcopy(stream)
    changed.get("node")[2]["time_s"]["dev"] += 1
    assert graph_digest(changed) != before


def test_replacing_drops_what_depends_on_it():
    stream = random_stream(3, 6)
    for kind in ("group", "plan", "stage", "bound", "schedule", "block", "run"):
        stream.records[kind] = [{"type": kind}]
    copied = copy.deepcopy(stream)
    assert copied.replace("group", []) == ["plan", "stage", "bound", "schedule", "block", "run"]
    copied = copy.deepcopy(stream)
    assert copied.replace("cost", stream.get("node"))[0] == "plan"
    assert copied.get("group")
    assert copy.deepcopy(stream).replace("run", []) == []


def test_header_is_described():
    assert set(RECORDS["header"]) >= set(header()) - {"type"}


def test_schema_can_be_printed():
    printed = orjson.loads(dnnp("check", "--schema").out)
    assert printed == json_schema()
    assert "$schema" in printed


def test_timings_are_in_the_header_only_when_asked():
    data = to_bytes(random_stream(1, 4))
    for option, expected in (("--timings", True), ("--quiet", False)):
        result = dnnp("partition", "-k", "2", option, stdin=data)
        assert ("elapsed_s" in result.one("header")["provenance"][0]) is expected
