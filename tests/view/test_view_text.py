"""dnnp-view --as text: what is said of a plan, whatever it is of."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnp as api
from dnnp.core.view.drawing import text_chart
from dnnp.core.view.facts import shortened
from dnnp.graph import Graph
from support.graphs import random_stream
from support.run import dnnp
from support.seeds import encode, planned

WIDTHS = st.integers(40, 160)


def text_of(graph: Graph, **options: object) -> str:
    return api.view(graph, **options).decode()  # type: ignore[arg-type]


def test_a_line_a_stage() -> None:
    records = planned()
    done = dnnp("view", stdin=encode(records))
    assert (done.status, done.err) == (0, "")
    lines = done.out.decode().splitlines()
    plan = next(r for r in records if r["type"] == "plan")
    assert f"gap {100 * plan['gap']:.0f} %" in done.out.decode() or plan["gap"] < 0.1
    for record in (r for r in records if r["type"] == "stage"):
        (line,) = [line for line in lines if record["device"] in line]
        assert line.split()[0] == str(record["id"])


def test_bars_are_as_long_as_what_they_show() -> None:
    graph = api.split(Graph(random_stream(2, 14)), k=3, bandwidth=2, memory=10_000)
    text = text_of(graph, width=120, plain=True)
    lines = [line for line in text.splitlines() if " dev/" in line]
    full = max(sum(line.count(c) for c in "<#>!~") for line in lines)
    largest = max(stage.load for stage in graph.stages)
    for line, stage in zip(lines, graph.stages, strict=True):
        for mark, name in (("<", "in_s"), ("#", "compute_s"), (">", "out_s")):
            assert line.count(mark) == pytest.approx(full * stage.record[name] / largest, abs=1.01)


@settings(max_examples=25)
@given(st.integers(0, 10**6), WIDTHS, st.booleans())
def test_any_plan_fits_the_page(seed: int, width: int, training: bool) -> None:
    stream = random_stream(seed, 9, training=training, params=True)
    stream.get("node")[0]["name"] = "\x1b[31mevil\n" + "long" * 20
    graph = Graph(stream)
    shown = [graph, api.split(graph, k=2, method="greedy", bandwidth=2, memory=10_000)]
    if not training:
        shown.append(api.split(graph, k=2, method="heft", objective="latency", bandwidth=2))
    shown.append(api.schedule(shown[1], micro_batches=3, method="gpipe" if training else "auto"))
    for each in shown:
        for plain in (False, True):
            text = text_of(each, width=width, plain=plain)
            assert all(len(line) <= width for line in text.splitlines()), text
            assert text.isascii() or not plain
            assert "\x1b" not in text
            assert text.endswith("\n")


def test_what_there_is_not() -> None:
    records = [r for r in planned() if r["type"] not in ("plan", "stage")]
    for record in records:
        record.pop("time_s", None)
    text = dnnp("view", stdin=encode(records)).out.decode()
    assert "not priced: dnnp-profile does that" in text
    assert "no plan: dnnp-partition makes one" in text


def test_a_schedule_without_a_model() -> None:
    made = dnnp("schedule", "--shape", "V", "-n", "2", "--method", "gpipe")
    text = dnnp("view", stdin=made.out).out.decode()
    assert "schedule by gpipe of 2 micro-batches: " in text
    assert "device/3 |" in text
    assert "no plan" not in text


@given(st.text(), st.integers(1, 30))
def test_shortened_names(text: str, width: int) -> None:
    assert len(shortened(text, width)) <= width


def test_the_bound_stands_in_the_bars() -> None:
    """The mark of the bound 6 is at 6/19 of the longest bar."""
    text = dnnp("view", stdin=encode(planned())).out.decode()
    assert sum(line.endswith("| bound") for line in text.splitlines()) == 1
    lines = [line for line in text.splitlines() if " acc/" in line]
    assert len({line.index("|") for line in lines}) == 1
    longest = lines[2]
    first = min(longest.index(mark) for mark in "░█")
    before, after = longest.index("|") - first, len(longest) - longest.index("|") - 1
    assert before / (before + after) == pytest.approx(6 / 19, abs=0.02)


@pytest.mark.parametrize("execution", ["blocks", "operators"])
@pytest.mark.parametrize("seed", range(3))
def test_timelines_show_when_stages_work(seed: int, execution: str) -> None:
    graph = api.split(
        Graph(random_stream(seed, 10)), k=2, objective="latency", execution=execution,
        bandwidth=2, memory=10_000,
    )  # fmt: skip
    assert graph.plan is not None
    text = text_of(graph, width=140, plain=True)
    lines = [line for line in text.splitlines() if " dev/" in line and line.endswith("|")]
    assert len(lines) == len(graph.stages)
    assert len({len(line) for line in lines}) == 1
    for line, stage in zip(lines, graph.stages, strict=True):
        cells = line.split("|")[1]
        begin, end = (stage.record[n] / graph.plan.value for n in ("begin_s", "end_s"))
        used = [i for i, cell in enumerate(cells) if cell != " "]
        assert used[0] == pytest.approx(begin * len(cells), abs=1.01)
        assert used[-1] + 1 == pytest.approx(end * len(cells), abs=1.01)
        assert ("#" in cells) == (stage.record["compute_s"] > 0)


def test_colours_are_no_more_than_colours() -> None:
    graph = Graph.from_bytes(encode(planned()))
    plain, color = text_of(graph), text_of(graph, color=True)
    assert "\x1b[34m█" in color
    assert re.sub(r"\x1b\[\d+m", "", color) == plain
    assert "\x1b" not in text_of(graph, color=True, plain=True)


def test_charts_have_columns_for_the_long_blocks() -> None:
    """A block of a thousandth of the others does not stretch the chart."""
    passes = [{"name": n, "kind": "forward", "time_s": t} for n, t in (("a", 0.001), ("b", 1.0))]
    record = {
        "units": [{"name": "u"}, {"name": "v"}], "passes": passes, "makespan_s": 2.001,
        "micro_batches": 2,
    }  # fmt: skip
    starts = [(0, 0, 0.0), (0, 1, 0.001), (1, 0, 0.001), (1, 1, 1.001)]
    blocks = [
        {"pass": p, "micro_batch": m, "units": [p], "start_s": at,
         "end_s": at + passes[p]["time_s"]}
        for p, m, at in starts
    ]  # fmt: skip
    *rows, said = text_chart(record, blocks, seconds=True)
    assert rows[1] == "v |0  =  =  =  1  =  =  ="
    assert said == "one column is 250 ms; blocks of less than half a column may be left out"
    passes[0]["time_s"] = 0.5
    assert text_chart(record, blocks, seconds=False)[-1] == "one column is 0.5"
