"""dnnp-view --as csv, tsv, md: tables of the plan whose numbers are worked out by hand."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from dnnp.core.view.tables import draw, table_of
from dnnp.formats.stream import read_bytes
from dnnp.viewing import read_facts
from support.run import dnnp
from support.seeds import encode, header, planned, sealed

Record = dict[str, Any]
Rows = list[dict[str, str]]


def read(form: str, text: str) -> list[list[str]]:
    """Cells of a table, by the rules of its form alone."""
    if form == "csv":
        return list(csv.reader(io.StringIO(text, newline="")))
    if form == "tsv":
        return [line.split("\t") for line in text.removesuffix("\n").split("\n")]
    lines = [line for line in text.splitlines() if set(line) - set("|- :")]
    return [[c.strip(" ") for c in line[1:-1].replace("\\|", "\0").split("|")] for line in lines]


def table(name: str, *records: list[Record], form: str = "csv") -> Rows:
    """A table of one stream."""
    done = dnnp("view", "--as", form, "--table", name, stdin=encode(*records))
    assert (done.status, done.err) == (0, "")
    head, *rows = read(form, done.out.decode())
    assert all(len(row) == len(head) for row in rows), rows
    return [dict(zip(head, row, strict=True)) for row in rows]


def numbers(rows: Rows, column: str) -> list[float]:
    """A column of numbers, which need no rule to be read."""
    return [float(row[column]) for row in rows]


def test_stages_by_hand() -> None:
    rows = table("stages", planned())
    assert numbers(rows, "load_s") == [15, 17, 19]
    assert numbers(rows, "in_s") == [0, 2, 13]
    assert numbers(rows, "compute_s") == [3, 12, 6]
    assert numbers(rows, "out_s") == [12, 3, 0]
    assert numbers(rows, "memory_bytes") == [196, 200, 112]
    assert numbers(rows, "capacity_bytes") == [1000] * 3
    assert [row["device"] for row in rows] == ["acc/0", "acc/1", "acc/2"]
    assert [row["nodes"] for row in rows] == ["2", "3", "1"]
    assert [row["measured_s"] for row in rows] == [""] * 3


def test_the_plan_by_hand() -> None:
    (row,) = table("plans", planned())
    assert (row["model"], row["method"], row["k"]) == ("seed", "slice", "3")
    assert (float(row["value_s"]), float(row["bound_s"]), float(row["gap"])) == (19, 6, 13 / 19)
    assert float(row["balance"]) == pytest.approx((15 + 17 + 19) / 3 / 19)
    assert float(row["cut_bytes"]) == 80 + 16 + 24
    assert float(row["memory_share"]) == 0.2


def test_cuts_by_hand() -> None:
    found = [
        (row["tensor"], row["name"], row["from"], row["to"], float(row["size_bytes"]))
        for row in table("cuts", planned())
    ]
    assert found == [
        ("1", "t1", "0", "2", 80),
        ("5", "t5", "1", "2", 24),
        ("2", "t2", "0", "1", 16),
    ]


@pytest.mark.parametrize("groups", [False, True])
def test_every_node_is_in_its_stage(groups: bool) -> None:
    rows = table("nodes", planned(groups=groups))
    assert [row["name"] for row in rows] == [f"n{i}" for i in range(6)]
    assert [row["stage"] for row in rows] == ["0", "0", "1", "1", "1", "2"]
    assert [row["unit"] for row in rows] == list("012234" if groups else "012345")


@pytest.mark.parametrize("form", ["csv", "tsv", "md"])
def test_forms_hold_the_same(form: str) -> None:
    for name in ("stages", "nodes", "cuts", "plans"):
        assert table(name, planned(), form=form) == table(name, planned())


def test_times_of_unknown_unit_carry_none() -> None:
    records = planned()
    records[0] = header(units={"time": "unknown"})
    for name in ("stages", "nodes"):
        rows = table(name, sealed(records))
        seconds = {column for column in rows[0] if column.endswith("_s")}
        assert seconds <= {"measured_s"}  # by this machine's clock
    assert numbers(table("stages", sealed(records)), "load") == [15, 17, 19]


def test_what_is_not_there_is_an_empty_table() -> None:
    stream = encode([r for r in planned() if r["type"] not in ("plan", "stage")])
    for name in ("stages", "cuts", "plans", "bounds", "runs", "schedule", "tried"):
        done = dnnp("view", "--as", "tsv", "--table", name, stdin=stream)
        assert done.status == 0
        assert len(done.out.splitlines()) == 1


def test_a_sweep_has_a_row_a_rate() -> None:
    names = ("latency_p50_s", "latency_p99_s", "throughput_per_s", "rate_per_s")
    rates = [{name: float(i + 1) for name in names} | {"saturated": i > 0} for i in range(2)]
    facts = read_facts(read_bytes(encode(planned())))
    facts.stream.records["run"] = [
        {"mode": "pipeline", "provider": "cpu", "samples": 9, "throughput_per_s": 7.0},
        {"mode": "pipeline", "provider": "cpu", "samples": 9, "sweep": {"rates": rates}},
        {"mode": "pipeline", "provider": "cpu", "samples": 9, "arrivals": rates[1]},
    ]
    found = list(csv.DictReader(io.StringIO(draw(table_of([facts], "runs"), "csv").decode())))
    assert [row["run"] for row in found] == ["0", "1", "1", "2"]
    assert numbers(found, "throughput_per_s") == [7, 1, 2, 2]
    assert [row["rate_per_s"] for row in found] == ["", "1.0", "2.0", "2.0"]
    assert [row["saturated"] for row in found] == ["", "0", "1", "1"]
