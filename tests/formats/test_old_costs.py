"""Statements about costs go with them when others take their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dnnp.formats.edited_costs import OF_DEVICES, OF_HEADER, OF_RECORDS, forget_old_costs
from dnnp.formats.stream import read_bytes
from support.project import sources
from support.run import dnnp
from support.seeds import encode, graph_records, group

ABOUT_HEADER = {
    "costs": [
        {"file": "f", "kind": "csv", "class": "acc", "nodes": 6, "idle": 0, "kept": 0, "unknown": 0}
    ],
    "measured": {
        "provider": "cpu", "threads": 1, "optimization": "all", "beside": 1, "rounds": 3,
        "total_s": 21.0, "cold_s": 22.0,
    },
    "calibration": {"class": "acc", "costs": "measured", "models": 1, "stages": 2, "transfer": 1.0},
}  # fmt: skip
ABOUT_RECORDS = {"spread": 0.01, "base_s": {"acc": 9.0}}


def told() -> list[dict[str, Any]]:
    """A stream with all that may be said about costs."""
    records = [*graph_records(), group(0, [0, 1, 2], time_s={"acc": 5.0, "cpu": 60.0}),
               group(1, [3, 4, 5], time_s={"acc": 9.0, "cpu": 150.0})]  # fmt: skip
    records[0] |= ABOUT_HEADER
    for record in records:
        if record["type"] in ("node", "group"):
            record |= ABOUT_RECORDS
        if record["type"] == "device":
            record["fitted"] = True
    return records


def said(records: list[dict[str, Any]], kind: str, names: tuple[str, ...]) -> set[str]:
    """Those names that records of a kind have as fields."""
    return {name for record in records if record["type"] == kind for name in record} & {*names}


def test_every_field_goes_but_those_to_keep() -> None:
    records = told()
    records[0]["work"] = "0" * 64
    records[-1]["basis"] = "0" * 64
    stream = read_bytes(encode(records))
    before = [record["time_s"] for record in stream.get("node")]
    forget_old_costs(stream, ["acc"], keep=("costs",))
    assert [name for name in OF_HEADER if name in stream.header] == ["costs"]
    assert stream.header["model"] == "seed"
    for record in (*stream.get("node"), *stream.get("group")):
        assert not {*OF_RECORDS}.intersection(record)
    fitted = {record["class"]: record.get("fitted") for record in stream.get("device")}
    assert fitted == {"acc": None, "cpu": True}
    assert [record["time_s"] for record in stream.get("node")] == before


@pytest.mark.parametrize(
    ("words", "header"),
    [
        (("--device", "t4"), {"work"}),
        (("--mode", "scaled", "--from", "t4", "--device", "v100"), {"work"}),
        (("--costs", "costs.csv", "--device", "acc"), {"costs"}),
    ],
)
def test_whatever_prices(
    words: tuple[str, ...],
    header: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("costs.csv").write_text("name,seconds\nn1,0.5\n")
    records = told()
    if "scaled" in words:
        records = [r for r in records if r["type"] != "device"]
        for record in records:
            if "time_s" in record:
                record["time_s"] = {"t4": record["time_s"]["acc"]}
                record["base_s"] = {"t4": 9.0}
    result = dnnp("profile", "-q", *words, stdin=encode(records))
    assert result.status == 0, result.err
    found = [*result.records("header"), *result.records("node"), *result.records("group")]
    assert said(found, "header", OF_HEADER) == header
    assert said(found, "node", OF_RECORDS) == set()
    assert said(found, "group", OF_RECORDS) <= {"basis"}
    fitted = {r["class"]: r.get("fitted") for r in result.records("device")}
    assert {name for name, value in fitted.items() if value} <= {"cpu"}
    if "--costs" in words:
        assert fitted["cpu"]
        assert len(result.one("header")["costs"]) == 2


def test_groups_that_are_summed_again() -> None:
    records = told()
    records[-1] |= {"cost": "summed"}
    result = dnnp("partition", "-q", "-k", "2", "--reprice", stdin=encode(records))
    assert result.status == 0, result.err
    first, second = result.records("group")
    assert {*OF_RECORDS}.intersection(first) == {*ABOUT_RECORDS}
    assert not {*OF_RECORDS}.intersection(second)
    assert second["time_s"] == {"acc": 15.0, "cpu": 150.0}


def test_one_place_forgets() -> None:
    """Fields are dropped nowhere else, so that none is forgotten there."""
    names = (*OF_HEADER, *OF_RECORDS, *OF_DEVICES)
    texts = {path: path.read_text() for path in sources()}
    assert [p for p, text in texts.items() if any(f'pop("{name}"' in text for name in names)] == []
    # The search itself finds what is dropped elsewhere in this way.
    assert any('pop("' in text for text in texts.values())
