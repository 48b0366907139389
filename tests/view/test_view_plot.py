"""dnnp-view --plot: charts of many plans."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnp as api
from dnnp.core.view.drawing import fitted, powers, text_width, ticks
from dnnp.graph import Graph
from support.graphs import random_stream
from support.run import dnnp

SVG = "{http://www.w3.org/2000/svg}"


def made(seed: int, k: int, method: str, model: str = "") -> Graph:
    stream = random_stream(seed, 14)
    stream.header["model"] = model or f"model {seed} <&> " + "long " * seed
    return api.split(Graph(stream), k=k, method=method, bandwidth=2, memory=10_000)


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return [
        made(seed, k, method)
        for seed in (1, 2, 30)
        for k in (1, 2, 4)
        for method in ("greedy", "slice", "mla")
    ]


def texts(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Boxes of all texts that are not turned: left, top, right, bottom."""
    boxes = []
    for one in root.iter(f"{SVG}text"):
        if "transform" in one.attrib:
            continue
        x, y, size = float(one.attrib["x"]), float(one.attrib["y"]), float(one.attrib["font-size"])
        width = text_width(one.text or "", size)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[one.attrib["text-anchor"]]
        boxes.append((left, y - size, left + width, y + 0.25 * size))
    return boxes


@pytest.mark.parametrize("axis", ["k", "method"])
def test_nothing_overlaps_and_nothing_is_cut_off(graphs: list[Graph], axis: str) -> None:
    root = ElementTree.fromstring(api.view(graphs, plot=axis))
    wide, high = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = texts(root)
    assert len(boxes) > 30
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= wide, boxes[i]
        assert 0 <= top < bottom <= high
        for other in boxes[:i]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (boxes[i], other)


def test_marks_stand_where_values_are(graphs: list[Graph]) -> None:
    one = [graph for graph in graphs if graph.name.startswith("model 2 ")]
    root = ElementTree.fromstring(api.view(one, plot="k"))
    lines = [p.attrib["points"] for p in root.iter(f"{SVG}polyline")]
    assert len(lines) == 3
    for number, line in enumerate(lines):
        ys = [float(point.split(",")[1]) for point in line.split()]
        values = [graph.plan.value for graph in one[number::3] if graph.plan]
        base = 44 + 240
        scale = [(base - y) / v for y, v in zip(ys, values, strict=True)]
        assert scale == pytest.approx([scale[0]] * 3, rel=0.01)
    said = root.find(f"{SVG}desc")
    assert said is not None
    assert said.text is not None
    assert re.search(r"slice: 1: .*, 2: .*, 4: ", said.text)


def test_best_of_several_counts() -> None:
    graphs = [made(5, 2, "greedy", "m"), made(5, 2, "greedy", "m")]
    assert api.view(graphs, plot="k") == api.view(graphs[:1], plot="k")


def test_names_of_many_methods_are_shown_whole() -> None:
    names = ("slice", "greedy", "mla", "uniform", "params", "local-search", "heuristic", "single")
    root = ElementTree.fromstring(api.view([made(3, 2, n) for n in names], plot="method"))
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert {*names} <= {*shown}
    assert not [text for text in shown if text and "…" in text]


def test_no_plans(tmp_path: Path) -> None:
    Graph(random_stream(1, 4)).save(tmp_path / "bare.dnnp")
    done = dnnp("view", "--plot", "k", tmp_path / "bare.dnnp")
    assert (done.status, done.err) == (
        2,
        "dnnp-view: --plot: none of the streams has a plan\n",
    )


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e6))
def test_ticks_are_round_and_within(low: float, ratio: float) -> None:
    high = low * ratio
    for found in (ticks(low, high), powers(low, high)):
        assert all(low * (1 - 1e-6) <= value <= high * (1 + 1e-6) for value in found)
        assert found == sorted(found)
    assert len(ticks(low, high)) <= 8


@given(st.text(max_size=25), st.floats(0, 200))
def test_text_that_fits(text: str, width: float) -> None:
    assert text_width(fitted(text, width, 11), 11) <= max(width, 0.0)
