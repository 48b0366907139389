"""Records kept as lines and columns are the records that were written, whatever is done to them."""

from __future__ import annotations

import random
from io import BytesIO
from typing import Any

import numpy as np
import orjson
import pytest

from dnnp.core.model.errors import FormatError
from dnnp.formats.rows import CHUNK, Rows, columns, has, times_of
from dnnp.formats.stream import Stream, read_bytes, write
from support import seeds

Record = dict[str, Any]

MANY = 2 * CHUNK + 7


def node(i: int, rng: random.Random) -> Record:
    """A node with some of the optional fields; numbers are of both types."""
    record: Record = {"type": "node", "id": 2 * i, "name": f"n{i}", "op": f"Op{i % 3}"}
    record |= {"inputs": [i] * (i % 2), "outputs": []}
    optional = {
        "domain": "x.y", "flop": rng.choice([3, 2.5]), "bytes": i, "partial": True,
        "backward": i % 2 == 0, "of": 0, "color": i % 5, "memory_bytes": 1.5, "scope": "a/b",
        "time_s": {"c0": 1, "c1": 0.25} if i % 3 else {"c0": 0.5},
    }  # fmt: skip
    # The last ones alone, so that a field first appears in a later chunk.
    if i > CHUNK + 3:
        optional["held_bytes"] = 1
    return record | {k: v for k, v in optional.items() if rng.random() < 0.6}


def stream_of(records: list[Record], *, indent: bool = False) -> Stream:
    """A stream as it is read; `indent`: with spaces that are not written."""
    data = seeds.encode([seeds.header(), *records])
    return read_bytes(data.replace(b',"', b', "') if indent else data)


def written(stream: Stream) -> list[Record]:
    file = BytesIO()
    write(stream, file)
    return [orjson.loads(line) for line in file.getvalue().splitlines()]


@pytest.fixture
def nodes() -> list[Record]:
    rng = random.Random(5)
    return [node(i, rng) for i in range(MANY)]


@pytest.mark.parametrize("indent", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_rows_are_the_records(nodes: list[Record], indent: bool, mixed: bool) -> None:
    """In the order of the file, with other kinds between them or not, and by position."""
    others = [seeds.tensor(i, "input", i) for i in range(MANY)]
    records = [r for pair in zip(nodes, others, strict=True) for r in pair]
    stream = stream_of(records if mixed else [*others, *nodes], indent=indent)
    rows = stream.rows("node")
    assert isinstance(rows, Rows)
    assert len(rows) == MANY
    assert list(rows) == nodes
    assert [rows[i] for i in (0, CHUNK - 1, CHUNK, MANY - 1, -1)] == [
        nodes[i] for i in (0, CHUNK - 1, CHUNK, MANY - 1, -1)
    ]
    assert rows[3:5] == nodes[3:5]
    with pytest.raises(IndexError):
        rows[MANY]
    assert written(stream)[1:-1] == [*others, *nodes]
    step = 2 if mixed else 1
    start = 3 if mixed else 2 + MANY
    lines = [start + step * i - 1 * mixed for i in range(MANY)]
    assert list(stream.lines["node"]) == lines
    assert stream.get("node") == nodes


DEFAULTS = {
    "id": 0, "name": "", "op": "", "domain": "", "flop": None, "bytes": None, "partial": False,
    "backward": False, "of": -1, "color": -1, "memory_bytes": float("nan"), "held_bytes": 0.0,
    "layer": "", "folded": False,
}  # fmt: skip


def test_columns_of_rows_are_those_of_records(nodes: list[Record]) -> None:
    rows = stream_of(nodes).rows("node")
    mine, theirs = (columns(r, DEFAULTS, ("inputs", "outputs")) for r in (rows, nodes))
    for name, default in DEFAULTS.items():
        plain = [record.get(name, default) for record in nodes]
        for found in (mine[name], theirs[name]):
            if isinstance(found, list):
                assert list(map(repr, found)) == list(map(repr, plain))
            else:
                assert found.dtype == np.array([default]).dtype
                np.testing.assert_array_equal(found, np.array(plain, dtype=found.dtype))
    for side in ("inputs", "outputs"):
        for sizes, flat in (mine[side], theirs[side]):
            assert sizes.tolist() == [len(record[side]) for record in nodes]
            assert flat.tolist() == [x for record in nodes for x in record[side]]
    for stated, times in (times_of(rows), times_of(nodes)):
        assert stated.tolist() == ["time_s" in record for record in nodes]
        assert set(times) == {"c0", "c1"}
        for name, found in times.items():
            plain = [record.get("time_s", {}).get(name, float("nan")) for record in nodes]
            np.testing.assert_array_equal(found, plain)
    assert all(has(rows, name) == has(nodes, name) for name in DEFAULTS)


@pytest.mark.parametrize("read", [True, False])
def test_fields_are_set_and_removed_as_in_records(nodes: list[Record], read: bool) -> None:
    """At the same place of each line, whether records are lines still or not."""
    stream = stream_of(nodes)
    if not read:
        stream.get("node")
    kept = stream.rows("node")
    before = kept.copy()
    seconds = np.arange(float(MANY))
    stream.drop("node", ("partial", "time_s", "of"))
    stated = np.ones(MANY, dtype=np.bool_)
    stream.put("node", "color", lambda i: 7, np.full(MANY, 7))
    stream.put("node", "time_s", lambda i: {"c9": float(i)}, (stated, {"c9": seconds}))
    expected = []
    for i, record in enumerate(nodes):
        gone = {k: v for k, v in record.items() if k not in ("partial", "time_s", "of")}
        expected.append(gone | {"color": 7} | {"time_s": {"c9": float(i)}})
    rows = stream.rows("node")
    assert not has(rows, "partial")
    assert has(rows, "time_s")
    assert times_of(rows)[1]["c9"].tolist() == seconds.tolist()
    assert [list(r.items()) for r in written(stream)[1:-1]] == [list(r.items()) for r in expected]
    assert stream.get("node") == expected
    if read:
        assert list(before) == nodes


@pytest.mark.parametrize("indent", [False, True])
def test_new_fields_are_added_to_lines_as_to_records(nodes: list[Record], indent: bool) -> None:
    """Once, or again, where they stay at their place."""
    stream = stream_of(nodes, indent=indent)
    count = np.arange(MANY)
    stream.put("node", "layer", lambda i: f"l{i}", [f"l{i}" for i in range(MANY)])
    stream.put("node", "stage", lambda i: i, count)
    added = [{**record, "layer": f"l{i}", "stage": i} for i, record in enumerate(nodes)]
    assert [list(r.items()) for r in written(stream)[1:-1]] == [list(r.items()) for r in added]
    stream.put("node", "layer", lambda i: "", [""] * MANY)
    again = [{**record, "layer": ""} for record in added]
    assert [list(r.items()) for r in written(stream)[1:-1]] == [list(r.items()) for r in again]
    assert list(stream.rows("node")) == again


def test_a_fault_in_a_later_chunk_and_an_id_from_an_earlier_one(nodes: list[Record]) -> None:
    nodes[MANY - 2]["flop"] = -1
    with pytest.raises(
        FormatError, match=f"{MANY}: field 'flop': -1 is not a number of at least 0"
    ):
        stream_of(nodes)
    nodes[MANY - 2]["flop"] = 1
    nodes[MANY - 1]["id"] = nodes[1]["id"]
    with pytest.raises(
        FormatError, match=f"{MANY + 1}: field 'id': node 2 was already defined in line 3"
    ):
        stream_of(nodes)


def test_null_is_not_taken_for_absent(nodes: list[Record]) -> None:
    nodes[4]["flop"] = None
    with pytest.raises(FormatError, match="6: field 'flop': null"):
        stream_of(nodes)


def test_numbers_of_unknown_fields_stay_as_they_are_in_lines_of_other_form() -> None:
    line = b'{"type":"node","id":0,"name":"","op":"","inputs":[],"outputs":[],"x":1.10, "y":2e3}'
    data = seeds.encode([seeds.header()]).splitlines()
    stream = read_bytes(b"\n".join([data[0], line, data[1], b""]))
    stream.drop("node", ("y",))
    file = BytesIO()
    write(stream, file)
    assert file.getvalue().splitlines()[1] == line.replace(b', "y":2e3', b"")
