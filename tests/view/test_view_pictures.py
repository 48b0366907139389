"""dnnp-view --as svg: where boxes stand, what bars show, that nothing overlaps or is cut off."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnp as api
from dnnp.core.view.drawing import text_width
from dnnp.core.view.layout import bows, boxes_of, edges_of, lay_out, levels_of
from dnnp.graph import Graph
from dnnp.viewing import read_facts
from support.graphs import random_stream
from support.run import dnnp

SVG = "{http://www.w3.org/2000/svg}"


COMMS = ("sum", "overlap", "duplex")


def planned(seed: int, nodes: int, k: int = 3, comm: str = "sum", **options: object) -> Graph:
    stream = random_stream(seed, nodes, **options)
    return api.split(Graph(stream), k=k, method="greedy", bandwidth=2, memory=10_000, comm=comm)


@st.composite
def graphs(draw):
    """Levels and edges, some against the levels."""
    n = draw(st.integers(1, 25))
    levels = draw(st.lists(st.floats(0, 9), min_size=n, max_size=n))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    return levels, {(a, b): 1.0 for a, b in pairs if a != b}


@given(graphs())
def test_boxes_stand_apart_and_below_what_they_read(drawn) -> None:
    levels, edges = drawn
    found = lay_out(levels, edges)
    rows: dict[int, list[float]] = {}
    for x, y in zip(found.x, found.y, strict=True):
        rows.setdefault(y, []).append(x)
    assert all(b - a > 1 - 1e-9 for xs in rows.values() for a, b in pairwise(sorted(xs)))
    assert min(found.x) == 0
    for a, b in edges:
        if (b, a) in edges:
            continue
        first, last = (a, b) if (levels[a], a) <= (levels[b], b) else (b, a)
        assert found.y[first] < found.y[last]
    assert set(found.y) == set(range(found.rows))


@pytest.mark.parametrize(("nodes", "most"), [(12, 20), (40, 10), (60, 7)])
def test_boxes_hold_every_unit_once_and_one_stage(nodes: int, most: int) -> None:
    facts = read_facts(planned(1, nodes).stream())
    boxes, what = boxes_of(facts, most)
    assert sorted(u for box in boxes for u in box.units) == list(range(nodes))
    assert len(boxes) <= most + 3
    assert (what == "unit") == (nodes <= most)
    for box in boxes:
        assert {int(facts.stage_of[u]) for u in box.units} == {box.stage}
        assert box.time == pytest.approx(facts.unit_times[box.units].sum())


def test_boxes_are_layers_only_where_names_tell_of_some() -> None:
    """Boxes of a graph without layers are not empty of names."""
    graph = planned(3, 30, 12)
    assert boxes_of(read_facts(graph.stream()), 24)[1] == "part"
    stream = random_stream(3, 30)
    for node in stream.get("node"):
        node["layer"] = f"block.{node['id'] // 10}"
    named = api.split(Graph(stream), k=3, method="greedy", bandwidth=2, memory=10_000)
    boxes, what = boxes_of(read_facts(named.stream()), 24)
    assert what == "layer"
    assert {box.name for box in boxes} == {"block.0", "block.1", "block.2"}


@pytest.mark.parametrize("seed", range(4))
def test_edges_carry_what_moves(seed: int) -> None:
    facts = read_facts(planned(seed, 20).stream())
    graph = facts.unit_graph
    assert graph is not None
    owner = np.random.default_rng(seed).integers(0, 4, graph.n)
    expected: dict[tuple[int, int], float] = {}
    for t in range(graph.m):
        maker = int(graph.producer[t])
        if maker >= 0:
            for reader in {int(owner[v]) for v in graph.readers(t)} - {int(owner[maker])}:
                key = int(owner[maker]), reader
                expected[key] = expected.get(key, 0.0) + float(graph.tensor_bytes[t])
    assert edges_of(graph, owner) == pytest.approx(expected)
    level = levels_of(graph)
    tail, head = graph.edges
    assert (level[head] > level[tail]).all()
    assert level[np.setdiff1d(np.arange(graph.n), head)].max() == 0


def test_lines_are_not_hidden_by_boxes() -> None:
    """In one column, what skips boxes swings aside; what leads to the next box does not."""
    edges = {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0, (3, 4): 1.0, (0, 2): 1.0, (1, 4): 1.0}
    layout = lay_out([0, 1, 2, 3, 4], edges)
    assert bows(layout, edges)[:4] == [0, 0, 0, 0]
    assert all(abs(swing) >= 1 for swing in bows(layout, edges)[4:])
    # Where the column beside it is free, a line goes straight.
    aside = {(0, 1): 1.0, (0, 2): 1.0, (1, 3): 1.0, (2, 3): 1.0, (3, 4): 1.0, (0, 5): 1.0}
    apart = lay_out([0, 1, 1, 2, 3, 4], aside)
    straight = dict(zip(aside, bows(apart, aside), strict=True))
    assert straight[0, 1] == straight[1, 3] == straight[3, 4] == 0


def test_only_the_heaviest_lines_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.view.svg.MOST_EDGES", 5)
    graph = planned(2, 14)
    text = api.view(graph, as_="svg", picture="graph").decode()
    facts = read_facts(graph.stream())
    assert facts.unit_graph is not None
    sizes = edges_of(facts.unit_graph, np.arange(14)).values()
    assert f"the 5 of {len(sizes)} lines that carry the most" in text
    drawn = re.findall(r'stroke-width="[\d.]+"><title>([\d.]+) B<', text)
    assert sorted(map(float, drawn)) == sorted(sizes)[-5:]


def boxes_and_texts(data: bytes):
    """Boxes (left, top, right, bottom) of all texts with their places moved by groups."""
    root = ElementTree.fromstring(data)
    found = []

    def walk(element, dx, dy):
        shift = element.attrib.get("transform", "")
        if shift.startswith("translate("):
            x, y = map(float, shift[10:-1].split())
            dx, dy = dx + x, dy + y
        if element.tag == f"{SVG}text":
            size = float(element.attrib["font-size"])
            x, y = dx + float(element.attrib["x"]), dy + float(element.attrib["y"])
            width = text_width(element.text or "", size)
            x -= {"start": 0.0, "middle": width / 2, "end": width}[element.attrib["text-anchor"]]
            found.append((x, y - size, x + width, y + size / 4))
        for child in element:
            walk(child, dx, dy)

    walk(root, 0.0, 0.0)
    return float(root.attrib["width"]), float(root.attrib["height"]), found


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 5), st.sampled_from(COMMS))
def test_texts_of_pictures_do_not_overlap(seed: int, training: bool, k: int, comm: str) -> None:
    graph = planned(seed, 12, k, comm, training=training, params=True)
    if seed % 2:
        graph = api.schedule(graph, micro_batches=3, method="gpipe" if training else "auto")
    width, height, texts = boxes_and_texts(api.view(graph, as_="svg"))
    for i, one in enumerate(texts):
        assert one[0] >= 0
        assert one[2] <= width + 0.1
        assert 0 <= one[1] < one[3] <= height
        for two in texts[:i]:
            apart = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
            assert apart, (one, two)


@pytest.mark.parametrize("comm", COMMS)
def test_bars_end_before_their_numbers(comm: str) -> None:
    graph = planned(7, 14, comm=comm)
    root = ElementTree.fromstring(api.view(graph, as_="svg", picture="loads"))
    right = max(
        float(rect.attrib["x"]) + float(rect.attrib["width"])
        for group in root.iter(f"{SVG}g")
        for rect in group.findall(f"{SVG}rect")
        if group.find(f"{SVG}title") is not None
    )
    numbers = [t for t in root.iter(f"{SVG}text") if re.match(r"[\d.e+]+.*, [\d.]+ ", t.text or "")]
    assert len(numbers) == len(graph.stages)
    for text in numbers:
        assert float(text.attrib["x"]) == pytest.approx(right + 12, abs=0.1)


def test_bars_are_the_loads() -> None:
    graph = planned(2, 14)
    root = ElementTree.fromstring(api.view(graph, as_="svg", picture="loads"))
    wide: dict[str, float] = {}
    for group in root.iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and rect is not None and title.text:
            name = title.text.partition(":")[0]
            wide[name] = wide.get(name, 0.0) + float(rect.attrib["width"])
    total = {
        name: sum(stage.record[f"{name}_s"] for stage in graph.stages)
        for name in ("in", "compute", "out")
    }
    scale = 460 / max(stage.load for stage in graph.stages)
    for name, seconds in total.items():
        assert wide.get(name, 0.0) == pytest.approx(seconds * scale, abs=0.1)


def test_latency_shows_when_units_run() -> None:
    stream = random_stream(3, 10)
    graph = api.split(Graph(stream), k=2, objective="latency", method="heft", bandwidth=2)
    root = ElementTree.fromstring(api.view(graph, as_="svg", picture="loads"))
    titles = [t.text or "" for t in root.iter(f"{SVG}title")]
    assert sum(text.startswith("stage ") for text in titles) == 10


@pytest.mark.parametrize(
    ("picture", "needs"), [("schedule", "schedule"), ("loads", "plan"), ("graph", "graph")]
)
def test_what_is_not_there_cannot_be_drawn(picture: str, needs: str) -> None:
    stream = random_stream(1, 4)
    if picture == "graph":
        made = dnnp("schedule", "--shape", "V", "-n", "2", "--method", "gpipe").out
    else:
        made = Graph(stream).to_bytes()
    done = dnnp("view", "--as", "svg", "--picture", picture, stdin=made)
    assert (done.status, done.err) == (
        2,
        f"dnnp-view: there is nothing to draw: the stream has no {needs}\n",
    )


def test_options_of_pictures() -> None:
    done = dnnp("view", "--picture", "graph", stdin=b"")
    assert done.err == "dnnp-view: --picture is for --as svg or png\n"
    done = dnnp("view", "--picture", "graph", "--plot", "k", stdin=b"")
    assert done.err == "dnnp-view: --picture is for --as svg or png without --plot\n"
