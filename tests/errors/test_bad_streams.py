"""Malformed streams: every command that reads one refuses it in the same words, status 3."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support import seeds
from support.run import dnnp

Records = list[dict[str, Any]]

COMMANDS: dict[str, tuple[str, ...]] = {
    "check": (),
    "coarsen": (),
    "profile": (),
    "partition": ("-k", "2"),
    "bound": (),
    "run": (),
    "export": ("--to", "msr-split"),
}


def of(records: Records, kind: str, index: int = 0) -> dict[str, Any]:
    """Record number `index` of a type."""
    return [r for r in records if r["type"] == kind][index]


def changed(kind: str, index: int = 0, /, **fields: Any) -> Callable[[], bytes]:
    """A valid stream with some fields of one record replaced."""

    def build() -> bytes:
        records = seeds.planned(groups=True)
        of(records, kind, index).update(fields)
        return seeds.encode(records)

    return build


def without(kind: str, index: int, field: str) -> Callable[[], bytes]:
    """A valid stream with one field of one record missing."""

    def build() -> bytes:
        records = seeds.planned(groups=True)
        del of(records, kind, index)[field]
        return seeds.encode(records)

    return build


def replaced(old: bytes, new: bytes) -> Callable[[], bytes]:
    """A valid stream with its text changed in one place."""

    def build() -> bytes:
        data = seeds.encode(seeds.planned(groups=True))
        assert old in data
        return data.replace(old, new, 1)

    return build


def text(change: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """A valid stream with its text changed as a whole."""
    return lambda: change(seeds.encode(seeds.planned(groups=True)))


def pretty() -> bytes:
    """A stream as `jq .` prints it, over many lines."""
    return b"\n".join(json.dumps(r, indent=2).encode() for r in seeds.planned())


def cycle() -> bytes:
    """Node 1 reads what node 4 makes of its output."""
    records = seeds.planned()
    of(records, "node", 1)["inputs"] = [1, 5, 7]
    return seeds.encode(records)


def first_lines(data: bytes) -> bytes:
    """All but the end record."""
    return b"".join(data.splitlines(keepends=True)[:-1])


FAULTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "<stdin>: empty stream"),
    "not JSON": (lambda: b"hello\n", "<stdin>:1: not JSON"),
    "an ONNX file": (lambda: b"\x08\x08\x12\x00:\x80", "<stdin>: not a stream; it is an ONNX"),
    "JSON of another kind": (lambda: b'{"nodes":[]}\n', "<stdin>:1: field 'type': is missing"),
    "a list": (lambda: b"[1]\n", "<stdin>:1: [1] is not a JSON object"),
    "pretty-printed": (pretty, "<stdin>:1: not one record a line"),
    "no header": (text(lambda d: d.split(b"\n", 1)[1]), "not 'header'; not a dnnp stream?"),
    "cut inside a line": (text(lambda d: d[:-20]), "<stdin>:28: not JSON"),
    "cut after a line": (text(first_lines), "cut off after line 27: the 'end' record is missing"),
    "two streams": (text(lambda d: d + d), "two streams joined?"),
    "byte order mark": (text(lambda d: b"\xef\xbb\xbf" + d), "<stdin>:1: not JSON"),
    "UTF-16": (text(lambda d: d.decode().encode("utf-16")), "<stdin>:1: not JSON"),
    "not UTF-8": (replaced(b'"n1"', b'"\xff"'), "<stdin>:14: not JSON"),
    "half a surrogate pair": (replaced(b'"n1"', b'"\\ud800"'), "<stdin>:14: not JSON"),
    "empty line": (replaced(b"\n", b"\n\n"), "<stdin>:2: empty line"),
    "deep nesting": (replaced(b'"n1"', b"[" * 5000), "<stdin>:14: not JSON"),
    "deep nesting that parses": (
        replaced(b'"name":"n1"', b'"name":"n1","x":' + b"[" * 150 + b"]" * 150),
        "<stdin>:14: nested more than 100 levels deep",
    ),
    "deep nesting that the same key hides": (
        replaced(b'"name":"n1"', b'"name":"n1","x":' + b"[" * 1010 + b"]" * 1010 + b',"x":1'),
        "<stdin>:14: nested more than 100 levels deep",
    ),
    "wrong version": (changed("header", version=4), "version 4 of the format"),
    "no version": (without("header", 0, "version"), "field 'version': is missing"),
    "other format": (changed("header", format="nnp"), "field 'format': 'nnp' is not 'dnnp'"),
    "unknown unit": (changed("header", units={"time": "ms"}), "field 'units.time': 'ms' is not"),
    "cycle": (cycle, "the graph has a cycle: node "),
    "dangling tensor": (
        changed("node", 2, inputs=[2, 99]),
        "<stdin>:15: field 'inputs': there is no tensor 99",
    ),
    "duplicate node": (
        changed("node", 2, id=1),
        "<stdin>:15: field 'id': node 1 was already defined in line 14",
    ),
    "duplicate tensor": (changed("tensor", 2, id=1), "tensor 1 was already defined in line 5"),
    "duplicate group": (changed("group", 2, id=1), "group 1 was already defined"),
    "duplicate device": (changed("device", 1, **{"class": "acc"}), "acc was already defined"),
    "two producers": (changed("node", 2, outputs=[3, 2]), "tensor 2 has 2 producers: nodes [1, 2]"),
    "no producer": (changed("node", 5, outputs=[]), "tensor 6 is of kind 'activation' but has no"),
    "produced input": (changed("node", 5, outputs=[6, 0]), "tensor 0 is of kind 'input' but has a"),
    "tensor twice": (changed("node", 4, inputs=[3, 3]), "<stdin>:17: field 'inputs': "),
    "negative id": (changed("node", 2, id=-1), "field 'id': -1 is not an integer from 0"),
    "id is text": (changed("node", 2, id="2"), "field 'id': '2' is not an integer from 0"),
    "id is a fraction": (changed("node", 2, id=2.0), "field 'id': 2.0 is not an integer"),
    "huge id": (changed("node", 2, id=2**63), "is not an integer from 0"),
    "negative cost": (
        changed("node", 1, time_s={"acc": -1.5}),
        "<stdin>:14: field 'time_s.acc': -1.5 is not a number of at least 0",
    ),
    "NaN cost": (
        replaced(b'"time_s":{"acc":2.0', b'"time_s":{"acc":NaN'),
        "<stdin>:14: not JSON: NaN and Infinity are not JSON numbers",
    ),
    "null cost": (
        changed("node", 1, time_s={"acc": None}),
        "<stdin>:14: field 'time_s.acc': null (a NaN that went through jq?) is not a number",
    ),
    "infinite cost": (replaced(b'"acc":2.0', b'"acc":1e999'), "<stdin>:14: not JSON"),
    "cost is text": (changed("node", 1, time_s={"acc": "1"}), "'1' is not a number of at least 0"),
    "cost is true": (changed("node", 1, time_s={"acc": True}), "true is not a number"),
    "cost too large": (
        changed("node", 1, time_s={"acc": 1e200}),
        "<stdin>:14: field 'time_s.acc': 1e+200 is above the maximum 1e+100",
    ),
    "costs in part": (without("node", 3, "time_s"), "<stdin>:16: field 'time_s': missing, but"),
    "negative size": (changed("tensor", 1, size_bytes=-1), "<stdin>:5: field 'size_bytes': -1"),
    "no size": (without("tensor", 1, "size_bytes"), "<stdin>:5: field 'size_bytes': is missing"),
    "unknown kind": (changed("tensor", 1, kind="weight"), "'weight' is not one of input"),
    "no bandwidth": (changed("device", 0, bandwidth_bytes_per_s=0), "bandwidth_bytes_per_s': 0"),
    "captures": (changed("node", 1, captures=[3]), "'captures': names tensors that are not inputs"),
    "no nodes": (lambda: seeds.encode([seeds.header()]), "the stream has no node records"),
}  # fmt: skip


GROUP_FAULTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "unknown node in a group": (changed("group", 0, nodes=[0, 77]), "there is no node 77"),
    "node in two groups": (changed("group", 0, nodes=[0, 1]), "node 1 is in 2 groups, not one"),
    "node in no group": (changed("group", 2, nodes=[2]), "node 3 is in 0 groups, not one"),
    "empty group": (changed("group", 2, nodes=[]), "a group without nodes"),
    "group against the order": (
        lambda: seeds.encode([*seeds.planned(), seeds.group(0, [1, 0, 2, 3, 4, 5])]),
        "node 1 stands before node 0, whose output it reads",
    ),
}


@pytest.mark.parametrize("name", [*FAULTS, *GROUP_FAULTS])
def test_malformed_stream(name: str) -> None:
    build, message = FAULTS.get(name) or GROUP_FAULTS[name]
    data = build()
    for command, arguments in COMMANDS.items():
        if command == "coarsen" and name in GROUP_FAULTS:
            continue  # it replaces the groups, whatever they are
        result = dnnp(command, *arguments, stdin=data)
        assert message in result.err, command
        assert result.err.startswith(f"dnnp-{command}: "), command
        assert result.err.count("\n") == 1, command
        assert (result.status, result.out) == (3, b""), command


def test_faults_name_the_file(tmp_path: Any) -> None:
    path = tmp_path / "bad.dnnp"
    path.write_bytes(changed("tensor", 1, size_bytes=-1)())
    result = dnnp("check", path)
    assert result.err == (
        f"dnnp-check: {path}:5: field 'size_bytes': -1 is not a number of at least 0\n"
    )


def test_sums_beyond_what_a_stream_holds_name_what_they_come_from() -> None:
    records = seeds.graph_records()
    for record in records:
        if record["type"] == "node":
            record["time_s"] = {"acc": 9e99, "cpu": 9e99}
    of(records, "node", 3)["time_s"] = {"acc": 1e100, "cpu": 9e99}
    result = dnnp("partition", "-q", "-k", "1", "--cpus", "0", stdin=seeds.encode(records))
    assert (result.status, result.out) == (3, b"")
    assert result.err == (
        "dnnp-partition: <stdin>:16: field 'time_s.acc': cannot write a plan record: its 'value', "
        "5.5e+100 is above the maximum 1e+100; the largest number read is 1e+100\n"
    )


def test_wrong_count_is_a_warning() -> None:
    records = seeds.planned()
    end = b'{"type":"end","records":3}\n'
    data = seeds.encode(records).rsplit(b"\n", 2)[0] + b"\n" + end
    result = dnnp("check", stdin=data)
    assert result.status == 0
    assert f"the end record counts 3 records, there are {len(records)}" in result.err


def test_unknown_records_and_fields_pass_through() -> None:
    records = [*seeds.graph_records(), {"type": "note", "text": "kept", "deep": {"a": [1, {}]}}]
    of(records, "node", 1)["mine"] = {"x": 1}
    result = dnnp("coarsen", "--chains", stdin=seeds.encode(records))
    assert result.status == 0
    assert result.one("note") == records[-1]
    assert result.records("node")[1]["mine"] == {"x": 1}


def test_line_ends_of_other_systems_are_read() -> None:
    data = seeds.encode(seeds.planned()).replace(b"\n", b"\r\n")
    assert dnnp("check", stdin=data).status == 0


STALE: dict[str, Callable[[Records], Any]] = {
    "size": lambda records: of(records, "tensor", 1).update(size_bytes=81),
    "cost": lambda records: of(records, "node", 1).update(time_s={"acc": 2.5}),
    "edge": lambda records: of(records, "node", 3).update(inputs=[2]),
    "node": lambda records: records.append(seeds.node(6, [6], [], 1.0)),
    "groups": lambda records: records.extend(seeds.group_records()),
}


@pytest.mark.parametrize("name", STALE)
@pytest.mark.parametrize("command", ["bound", "run", "export", "check"])
def test_plan_that_no_longer_fits(name: str, command: str) -> None:
    records = seeds.planned()
    STALE[name](records)
    result = dnnp(command, *COMMANDS[command], stdin=seeds.encode(records))
    assert result.status == 3
    assert result.out == b""
    what = "made from another graph" if name != "node" or command == "check" else "is in 0 stages"
    assert what in result.err


def test_replacing_drops_what_depends_on_it() -> None:
    result = dnnp("coarsen", "--chains", stdin=seeds.encode(seeds.planned()))
    assert result.status == 0
    assert "plan, stage" in result.err
    assert not result.records("plan")
    assert not result.records("stage")


@pytest.mark.parametrize("command", ["run", "export"])
def test_no_plan(command: str) -> None:
    result = dnnp(command, *COMMANDS[command], stdin=seeds.encode(seeds.graph_records()))
    assert result.status in (2, 3)
    assert "no plan" in result.err


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_stream_file(command: str) -> None:
    result = dnnp(command, *COMMANDS[command], "/nonexistent.dnnp")
    assert (result.status, result.out) == (1, b"")
    assert result.err == f"dnnp-{command}: /nonexistent.dnnp: No such file or directory\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_standard_input(command: str) -> None:
    result = dnnp(command, *COMMANDS[command], stdin=None)
    assert (result.status, result.out) == (1, b"")
    assert "standard input is closed" in result.err
