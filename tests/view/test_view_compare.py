"""dnnp-view of several streams: plans side by side, and charts of them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dnnp.core.model.device import DeviceClass
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.core.view.compare import is_best, shared_bound
from support.run import Result, dnnp
from support.seeds import encode, header, planned, sealed

Record = dict[str, Any]
SVG = "{http://www.w3.org/2000/svg}"


def changed(plan: Record, **of_header: Any) -> bytes:
    """The plan by hand, with other words in its record and its header.

    What it promises stays: value 19, or what the loads are scaled to.
    """
    records = planned()
    records[0] = header(**of_header)
    for record in records:
        if record["type"] == "plan":
            record.update(plan)
            record["gap"] = (record["value"] - record["bound"]) / record["value"]
    return encode(sealed(records))


def slower(factor: float, method: str, bound: float = 6.0, **of_header: Any) -> bytes:
    """A plan whose times and loads are larger by a factor."""
    records = planned()
    records[0] = header(**of_header)
    for record in records:
        devices = [record] if record["type"] == "device" else record.get("devices", [])
        for device in devices if record["type"] in ("device", "plan") else []:
            if "bandwidth_bytes_per_s" in device:
                device["bandwidth_bytes_per_s"] /= factor
        if record["type"] == "node":
            record["time_s"] = {name: factor * time for name, time in record["time_s"].items()}
        if record["type"] == "plan":
            value = 19.0 * factor
            record.update(value=value, method=method, bound=bound, gap=(value - bound) / value)
        for name in ("load_s", "in_s", "compute_s", "out_s"):
            if record["type"] == "stage":
                record[name] *= factor
    return encode(sealed(records))


def shown(folder: Path, streams: dict[str, bytes], *words: str) -> Result:
    """Output of dnnp-view for several streams."""
    paths = []
    for name, data in streams.items():
        paths.append(folder / f"{name}.dnnp")
        paths[-1].write_bytes(data)
    return dnnp("view", *words, *paths)


def paragraphs(done: Result) -> list[list[str]]:
    """Parts of a text."""
    assert (done.status, done.err) == (0, "")
    return [part.splitlines() for part in done.out.decode().strip().split("\n\n")]


def marked(lines: Sequence[str]) -> list[str]:
    """First words of the lines that are marked as best."""
    return [line.split()[0] for line in lines if " *" in line and not line.startswith("*")]


def test_the_smallest_value_is_marked(tmp_path: Path) -> None:
    streams = {"a": slower(2, "x"), "b": slower(1, "y"), "c": slower(4, "z")}
    lines = paragraphs(shown(tmp_path, streams))[0]
    assert marked(lines) == ["b.dnnp"]
    values = [next(line for line in lines if line.startswith(name)) for name in streams]
    assert all(f"{19 * f} s" in line for f, line in zip((2, 1, 4), values, strict=True))


def test_what_means_something_else_is_not_compared(tmp_path: Path) -> None:
    streams = {
        "a": slower(2, "x"),
        "b": slower(3, "y"),
        "c": slower(1, "x", model="other"),
        "d": slower(1, "x", units={"time": "unknown"}),
    }
    found = paragraphs(shown(tmp_path, streams))
    families = [{line.split()[0] for line in part if ".dnnp" in line} for part in found]
    assert [f for f in families if f] == [{"a.dnnp", "b.dnnp"}, {"c.dnnp"}, {"d.dnnp"}]
    assert marked([line for part in found for line in part]) == ["a.dnnp"]
    (unknown,) = (line for part in found for line in part if line.startswith("d.dnnp"))
    assert not re.search(r"\d m?s\b|/s", unknown)


def test_plans_that_promise_less_are_told_apart(tmp_path: Path) -> None:
    free = changed({"validity": "free", "method": "loose"})
    found = paragraphs(shown(tmp_path, {"a": slower(1.5, "x"), "b": free}))
    text = "\n".join(line for part in found for line in part)
    assert "free" in text
    assert "ordered" in text


def test_streams_without_a_plan_are_named(tmp_path: Path) -> None:
    bare = encode([r for r in planned() if r["type"] not in ("plan", "stage")])
    done = shown(tmp_path, {"a": slower(1, "x"), "bare": bare})
    assert any("without a plan" in part[0] and "bare.dnnp" in part[0] for part in paragraphs(done))


def svg(done: Result) -> ElementTree.Element:
    """A picture, which is XML."""
    assert (done.status, done.err) == (0, "")
    return ElementTree.fromstring(done.out)


def texts(picture: ElementTree.Element) -> list[str]:
    """Output without hints."""
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def test_a_chart_of_methods(tmp_path: Path) -> None:
    factors = {"x": 1.0, "y": 3.0, "z": 2.0}
    done = shown(tmp_path, {m: slower(f, m) for m, f in factors.items()}, "--plot", "method")
    picture = svg(done)
    assert {"x", "y", "z", "method", "proven bound"} <= set(texts(picture))
    data = [m for m in picture.iter(f"{SVG}circle") if m.get("cx")]
    at = {round(float(m.get("cx", 0)), 1): float(m.get("cy", 0)) for m in data}
    names = {
        round(float(t.get("x", 0)), 1): t.text
        for t in picture.iter(f"{SVG}text")
        if t.text in factors
    }
    height = {names[x]: y for x, y in at.items() if x in names}
    # Linear from zero: heights above the axis are as the values.
    assert height["x"] > height["z"] > height["y"]
    assert height["x"] - height["z"] == pytest.approx(height["z"] - height["y"], abs=0.2)
    said = (picture.find(f"{SVG}desc") or picture[1]).text or ""
    assert all(f"{19 * f:.0f}" in said for f in factors.values())


def test_a_bound_is_not_held_against_plans_that_promise_less(tmp_path: Path) -> None:
    """A free plan may be better than any ordered one: no dashed line lies above its point."""
    free = changed({"validity": "free", "method": "loose"})
    streams = {"a": slower(1.5, "tight", bound=28.5), "b": free}
    picture = svg(shown(tmp_path, streams, "--plot", "method"))
    dashed = [
        [float(n) for n in re.findall(r"[\d.]+", p.get("d", ""))]
        for p in picture.iter(f"{SVG}path")
        if p.get("stroke-dasharray")
    ]
    compared = 0
    for mark in picture.iter(f"{SVG}circle"):
        x, y = float(mark.get("cx", 0)), float(mark.get("cy", 0))
        for left, top, wide in dashed:
            if left <= x <= left + wide:
                assert top >= y - 0.1
                compared += 1
    assert compared > 0


def test_the_same_bytes_again(tmp_path: Path) -> None:
    streams = {m: slower(f, m) for m, f in (("x", 1.0), ("y", 30.0))}
    first = shown(tmp_path, streams, "--plot", "k")
    assert first.out == shown(tmp_path, streams, "--plot", "k").out
    assert any("logarithmic" in text for text in texts(svg(first)))


def test_names_of_others_stay_text(tmp_path: Path) -> None:
    hostile = '<script>&"\x1b[31m'
    streams = {m: slower(1, m + hostile, model=hostile) for m in "xy"}
    picture = svg(shown(tmp_path, streams, "--plot", "method"))
    assert not list(picture.iter("script"))
    assert not list(picture.iter(f"{SVG}script"))
    assert b"\x1b" not in shown(tmp_path, streams).out


def plan_of(value: float, validity: str, **fields: Any) -> Plan:
    """A plan without stages."""
    common: dict[str, Any] = {
        "stages": (), "k": 2, "method": "x", "bound": value / 2, "status": "feasible",
        "options": CostOptions(), "devices": (DeviceClass("acc"),), "digest": "d",
    }  # fmt: skip
    return Plan(value=value, validity=validity, **{**common, **fields})


def test_a_bound_holds_for_what_it_was_proven_for() -> None:
    free, ordered = plan_of(8.0, "free", bound=3.0), plan_of(10.0, "ordered", bound=9.0)
    known = [free, ordered]
    assert shared_bound([ordered], known) == 9
    assert shared_bound([free], known) == 3
    assert shared_bound(known, known) == 3
    # What is proven of all splits is proven of those that promise more.
    assert shared_bound([ordered], [ordered, plan_of(8.0, "free", bound=9.5)]) == 9.5
    # What is proven of plans with rules is not proven of those that break them.
    ruled = plan_of(12.0, "ordered", bound=11.0, rules=(Rule("exactly", stages=2),))
    assert shared_bound([ordered], [ordered, ruled]) == 9
    assert shared_bound([ruled], [ordered, ruled]) == 11
    assert shared_bound([ruled], [plan_of(13.0, "ordered", bound=11.5), ruled]) == 11.5
    for other in (
        {"digest": "other costs"},
        {"k": 3},
        {"options": CostOptions(comm="overlap")},
        {"devices": (DeviceClass("acc", memory_bytes=5.0),)},
    ):
        assert shared_bound([ordered], [ordered, plan_of(20.0, "ordered", bound=15, **other)]) == 9


def test_the_best_of_its_kind() -> None:
    free, ordered = plan_of(8.0, "free"), plan_of(10.0, "ordered")
    worse_free, lacking = plan_of(11.0, "free"), plan_of(1.0, "ordered", status="infeasible")
    other_k = plan_of(1.0, "ordered", k=9)
    rivals = [free, ordered, worse_free, lacking, other_k]
    assert [is_best(plan, rivals) for plan in rivals] == [True, True, False, False, True]
    rules = (Rule("exactly", stages=2),)
    ruled, worse = (plan_of(value, "ordered", rules=rules) for value in (12.0, 13.0))
    assert [is_best(plan, [ordered, ruled, worse]) for plan in (ruled, worse)] == [True, False]
    assert not is_best(plan_of(14.0, "ordered"), [ruled])


def test_stages_of_each_with_verbose(tmp_path: Path) -> None:
    streams = {"a": slower(1, "x"), "b": slower(2, "y")}
    brief, whole = shown(tmp_path, streams), shown(tmp_path, streams, "-v")
    assert b"acc/2" not in brief.out
    assert whole.out.count(b"acc/2") == 2


def compared() -> bytes:
    """The plan by hand, the best of three methods, one of which found nothing."""
    tried = [
        {"method": "slow", "value": 38.0, "bound": 9.5, "gap": 0.75, "validity": "ordered",
         "status": "feasible", "time_s": 0.25},
        {"method": "slice", "value": 19.0, "bound": 6.0, "gap": 13 / 19, "validity": "ordered",
         "status": "feasible", "time_s": 0.5},
        {"method": "gone", "status": "unavailable", "reason": "no such program"},
    ]  # fmt: skip
    return changed({"tried": tried, "bound": 9.5})


def test_methods_that_were_tried(tmp_path: Path) -> None:
    text = dnnp("view", stdin=compared()).out.decode()
    words = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert words["slow"] == ["slow", "38", "s", "75", "%", "250", "ms", "ordered,", "feasible"]
    assert words["gone"] == ["gone", "-", "-", "-", "unavailable", "no", "such", "program"]
    streams = {"a": compared(), "b": slower(3, "alone", bound=5.0)}
    done = shown(tmp_path, streams, "--as", "csv", "--table", "tried")
    rows = list(csv.DictReader(io.StringIO(done.out.decode())))
    assert [row["method"] for row in rows] == ["slow", "slice", "gone", "alone"]
    assert [row["value_s"] for row in rows] == ["38.0", "19.0", "", "57.0"]
    assert [row["bound_s"] for row in rows] == ["9.5", "6.0", "", "5.0"]
    assert [row["elapsed_s"] for row in rows] == ["0.25", "0.5", "", ""]


def test_a_chart_shows_methods_that_were_tried(tmp_path: Path) -> None:
    picture = svg(shown(tmp_path, {"a": compared()}, "--plot", "method"))
    assert {"slow", "slice"} <= set(texts(picture))
    assert "gone" not in texts(picture)
    marks = [float(m.get("cy", 0)) for m in picture.iter(f"{SVG}circle")]
    assert len(marks) == 2 + 1  # and the legend
    tops = {
        p.get("d", "").split("h")[0].split()[1]
        for p in picture.iter(f"{SVG}path")
        if p.get("stroke-dasharray") and float(p.get("d", "").split("h")[1]) > 100
    }
    assert len(tops) == 1  # the best bound holds for both


def test_what_a_plan_lacks_is_said(tmp_path: Path) -> None:
    free = changed({"validity": "free", "method": "loose"})
    picture = svg(shown(tmp_path, {"a": slower(1.5, "x"), "b": free}, "--plot", "method"))
    assert {"x", "loose", "free"} <= set(texts(picture))
