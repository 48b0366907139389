"""The page of dnnp-view in a browser: opened, searched, unfolded, walked through by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnnp as api
from dnnp.core.view.facts import Facts
from dnnp.graph import Graph
from dnnp.samples import build
from dnnp.viewing import read_facts
from support.graphs import random_stream
from support.layers import CHROMIUM, layered
from support.run import dnnp

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install playwright"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")

EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
WAIT_MS = 120_000


def facts_of(graph: Graph) -> Facts:
    """Facts of a graph, of which its page is made."""
    return read_facts(graph.stream())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


class Opener:
    """Opens pages, and keeps what they complain of and ask for."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.contexts: list[Any] = []

    def __call__(
        self, *graphs: Graph, width: int = 1400, height: int = 950, first: str = "", **options: Any
    ) -> Any:
        context = self.browser.new_context(viewport={"width": width, "height": height}, **options)
        context.add_init_script(first)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: self.faults.append(said.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        context.on("request", lambda request: self.asked.append(request.url))
        path = self.folder / f"{len(self.contexts)}.html"
        path.write_bytes(api.view(graphs[0] if len(graphs) == 1 else graphs, as_="html"))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-shown]", state="attached")
        return page


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(browser, tmp_path)
    yield opener
    for context in opener.contexts:
        context.close()
    assert opener.faults == []
    assert len(opener.asked) >= len(opener.contexts)
    left = [url for url in opener.asked if not url.startswith(("file:", "blob:"))]
    assert left == []


def boxes(page: Any) -> list[dict[str, Any]]:
    """Boxes that are laid out, with the place of each."""
    found: list[dict[str, Any]] = page.evaluate(
        "() => graph.items.map((m) => ({name: m.box.name, kind: m.box.kind, inside: m.inside, "
        "dim: m.dim, parent: m.box.parent.key, key: m.box.key, nodes: m.box.nodes.length, "
        "x: m.x, y: m.y, w: m.w, h: m.h}))"
    )
    return found


def click(page: Any, name: str) -> None:
    """Click on the head of a box of the graph, and wait until it is drawn."""
    x, y = page.evaluate(
        "(name) => {const b = graph.board, m = b.items.find((m) => m.box.name === name);"
        "b.fit(m, 1); return [b.view.applyX(m.x + m.w / 2), b.down(m.y) + 8]}",
        name,
    )
    page.locator("#graph").click(position={"x": x, "y": y})
    page.evaluate("() => new Promise(requestAnimationFrame)")


def wait_for_boxes(page: Any, above: int) -> list[dict[str, Any]]:
    """Boxes, once there are more than some."""
    for _ in range(600):
        found = boxes(page)
        if len(found) > above:
            return found
        page.wait_for_timeout(50)
    pytest.fail(f"no more than {above} boxes")


def chosen(page: Any) -> str:
    """Kind and name of what is chosen."""
    text: str = page.locator("#said").text_content()
    return text


def test_it_opens_on_the_answer(opened: Opener) -> None:
    graph = layered(200)
    page = opened(graph)
    assert page.locator(".figures dt").all_text_contents() == [
        "Rate", "Slowest stage", "Gap to the proven bound", "Fits in memory",
    ]  # fmt: skip
    for part in (".figures", ".strip"):
        place = page.locator(part).bounding_box()
        assert place["y"] + place["height"] < 400
    assert page.locator(".stage").count() == 3
    assert graph.plan is not None
    loads = [stage.record["load_s"] for stage in graph.stages]
    slowest = page.locator(".figures div").nth(1).locator("dd").first.text_content()
    assert slowest == f"stage {loads.index(max(loads))}"
    assert page.locator(".stage .slowest").count() == 1
    assert [b["name"] for b in boxes(page) if b["kind"] == "stage"] == [
        "stage 0",
        "stage 1",
        "stage 2",
    ]


@pytest.mark.parametrize("count", [10, 400, 6_000, 120_000])
def test_any_size_unfolds_to_operators(opened: Opener, count: int) -> None:
    page = opened(layered(count))
    page.locator("[data-stage='1']").click()
    kinds: set[str] = set()
    for _ in range(8):
        found = boxes(page)
        assert len(found) <= 300
        kinds |= {box["kind"] for box in found}
        inside = page.evaluate("() => chosen.key")
        below = [b for b in found if b["parent"] == inside]
        if not below:
            below = [b for b in wait_for_boxes(page, len(found)) if b["parent"] == inside]
        if any(b["kind"] == "node" for b in below):
            break
        click(page, below[-1]["name"])
    (node, *_) = (b for b in below if b["kind"] == "node")
    click(page, node["name"])
    assert chosen(page) == f"operator: {node['name']}"
    assert "layer" in kinds or count == 10
    assert page.locator("#panel").get_by_text("float32 1 x").count() >= 1


def test_boxes_do_not_overlap(opened: Opener) -> None:
    page = opened(layered(400))
    compared = 0
    for v in (10, 150, 390):
        page.evaluate("(v) => graph.reveal(v)", v)
    found = wait_for_boxes(page, 60)
    for i, p in enumerate(found):
        for q in found[:i]:
            if p["parent"] == q["parent"]:
                apart = p["x"] + p["w"] <= q["x"] or q["x"] + q["w"] <= p["x"]
                assert apart or p["y"] + p["h"] <= q["y"] or q["y"] + q["h"] <= p["y"]
                compared += 1
    for p in found:
        for q in (q for q in found if q["key"] == p["parent"]):
            assert q["x"] <= p["x"]
            assert p["x"] + p["w"] <= q["x"] + q["w"]
            assert q["y"] + 20 <= p["y"]
            assert p["y"] + p["h"] <= q["y"] + q["h"]
            compared += 1
    assert compared > 60


def test_search_counts_and_goes_on(opened: Opener) -> None:
    graph = layered(400)
    names = [node["name"] for node in graph.nodes if node["op"] == "Softmax"]
    page = opened(graph)
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    assert page.locator("#found").text_content() == f"{len(names)} found"
    seen = []
    for i in range(1, 4):
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#found:has-text('{i} of {len(names)}')")
        seen.append(chosen(page).removeprefix("operator: "))
    assert seen == names[:3]
    page.keyboard.press("Shift+Enter")
    assert chosen(page).endswith(names[1])
    found = [box for box in boxes(page) if not box["inside"]]
    assert {box["dim"] for box in found} == {True, False}
    page.keyboard.press("Escape")
    assert not any(box["dim"] for box in boxes(page))
    page.locator("#search").fill("no such operator")
    assert page.locator("#found").text_content() == "0 found"


def test_filters_by_stage_and_operator(opened: Opener) -> None:
    graph = layered(400)
    held = set(graph.stages[1].nodes)
    page = opened(graph)
    page.select_option("#of-stage", "1")
    assert page.locator("#found").text_content() == f"{len(held)} found"
    page.select_option("#of-op", label=page.locator("#of-op option").nth(1).text_content())
    op = page.locator("#of-op option").nth(1).text_content().split(" (")[0]
    both = sum(node["op"] == op for node in graph.nodes if node["id"] in held)
    assert page.locator("#found").text_content() == f"{both} found"
    assert 0 < both < len(held)


def test_the_keyboard_alone_is_enough(opened: Opener) -> None:
    page = opened(layered(200))
    page.locator("#graph").focus()
    page.keyboard.press("ArrowRight")
    assert chosen(page).startswith(("stage:", "layer:"))
    first = page.evaluate("() => chosen.key")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => chosen.key") != first
    while not chosen(page).startswith("layer:"):
        page.keyboard.press("ArrowDown")
    before = len(boxes(page))
    page.keyboard.press("Enter")
    after = len(wait_for_boxes(page, before))
    page.keyboard.press("Escape")
    for _ in range(200):
        if len(boxes(page)) == before:
            break
        page.wait_for_timeout(20)
    assert len(boxes(page)) == before < after
    page.keyboard.press("+")
    larger = page.evaluate("() => graph.board.view.k")
    page.keyboard.press("f")
    assert page.evaluate("() => graph.board.view.k") < larger
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.id") == "search"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 900, 1600])
def test_both_themes_and_three_widths(opened: Opener, theme: str, width: int) -> None:
    page = opened(layered(200), width=width, color_scheme=theme)
    colors = "() => ['color', 'backgroundColor'].map((n) => getComputedStyle(document.body)[n])"
    ink, paper = (sum(map(int, c[4:-1].split(", "))) for c in page.evaluate(colors))
    assert (ink < paper) == (theme == "light")
    assert abs(ink - paper) > 400
    wide = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    canvas, panel = (page.locator(name).bounding_box() for name in ("#graph", "#panel"))
    assert canvas["width"] > 0.6 * width - 20
    beside = panel["x"] >= canvas["x"] + canvas["width"]
    assert beside == (width == 1600)
    for place in page.locator(".figures div").all():
        box = place.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    page.locator("#theme").click()
    ink, paper = (sum(map(int, c[4:-1].split(", "))) for c in page.evaluate(colors))
    assert (ink < paper) == (theme == "dark")


def test_names_stay_text(opened: Opener) -> None:
    graph = layered(60, name=EVIL)
    page = opened(graph)
    page.keyboard.press("/")
    page.keyboard.type("op_7")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panel h3:has-text('op_7')")
    assert EVIL in page.locator("#panel h3").text_content()
    page.locator("#tab-tables").click()
    assert page.evaluate("() => [typeof window.evil, document.images.length]") == ["undefined", 0]
    assert EVIL in page.title()


def test_the_slowest_path_is_the_longest_chain(opened: Opener) -> None:
    compared = 0
    for seed in range(4):
        graph = api.split(Graph(random_stream(seed, 30)), k=2, method="greedy", bandwidth=2)
        page = opened(graph)
        found = page.evaluate(
            "() => {const p = slowestPath(); return [p.all, [...p.before], [...p.after]]}"
        )
        facts = facts_of(graph)
        assert facts.unit_graph is not None
        tail, head = facts.unit_graph.edges
        times, order = facts.unit_times, facts.unit_graph.order
        before = np.zeros(len(times))
        for v in order.tolist():
            for u in tail[head == v].tolist():
                before[v] = max(before[v], before[u] + times[u])
        assert found[0] == pytest.approx((before + times).max())
        assert found[1] == pytest.approx(before[order].tolist())
        through = np.array(found[1]) + times[order] + np.array(found[2])
        assert through.max() == pytest.approx(found[0])
        compared += len(times)
    assert compared > 100


def test_areas_are_as_the_compute(opened: Opener) -> None:
    page = opened(layered(200))
    page.locator("#tab-time").click()
    script = (
        "() => timeMap.board.items.filter((m) => !m.inside).map((m) => [m.w * m.h, m.box.time])"
    )
    page.wait_for_timeout(100)
    areas = page.evaluate(script)
    assert len(areas) > 4
    rate = [area / time for area, time in areas]
    assert max(rate) < 1.4 * min(rate)  # heads and gaps take some
    page.locator("#areas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#within").text_content() != ""
    page.keyboard.press("Escape")


def test_one_micro_batch_is_lit(opened: Opener) -> None:
    graph = api.schedule(layered(60), micro_batches=5)
    page = opened(graph)
    page.locator("#tab-schedule").click()
    page.locator("#runs").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#lit").text_content() == "micro-batch 1"
    lit = page.evaluate("() => timeline.board.items.filter((m) => !m.dim).map((m) => m.batch)")
    assert graph.schedule is not None
    assert lit == [1] * sum(len(b["units"]) for b in graph.schedule.blocks if b["micro_batch"] == 1)
    ends = page.evaluate("() => timeline.board.items.map((m) => m.to)")
    assert ends == pytest.approx([b["end_s"] for b in graph.schedule.blocks for _ in b["units"]])
    page.locator("#batch-all").click()
    assert not page.evaluate("() => timeline.board.items.some((m) => m.dim)")


def test_two_plans_and_what_moved(opened: Opener) -> None:
    first = layered(200)
    second = layered(200, k=4)
    page = opened(first, second)
    assert page.locator(".answer").count() == 2
    assert page.locator(".stage .moved").count() > 3
    narrow = opened(first, second, width=900)
    for each, beside in ((page, True), (narrow, False)):
        left, right = (place.bounding_box() for place in each.locator(".answer").all())
        assert (right["x"] >= left["x"] + left["width"]) == beside
        assert (right["y"] >= left["y"] + left["height"]) != beside
        assert right["x"] + right["width"] <= (1400 if beside else 900)
    held = [
        {v: s for s, stage in enumerate(g.stages) for v in stage.nodes} for g in (first, second)
    ]
    moved = sum(held[0][v] != held[1][v] for v in held[0])
    assert moved > 0
    script = (
        "() => [...Array(M.count).keys()].filter((v) => D.other.stage[v] !== stageOf(v)).length"
    )
    assert page.evaluate(script) == moved
    page.locator("#tab-moved").click()
    counts = page.locator("#view-moved td:nth-child(3)").all_text_contents()
    assert sum(map(int, counts)) == moved


def test_what_crosses_a_border(opened: Opener) -> None:
    graph = layered(200)
    page = opened(graph)
    page.locator("[data-border='1']").click()
    cuts = facts_of(graph).cuts
    crossing = [c for c in cuts if any(min(c.source, t) < 1 <= max(c.source, t) for t in c.targets)]
    assert len(crossing) > 0
    assert page.locator("#panel h3").text_content().split()[0] == str(len(crossing))
    page.locator("#panel .jump").first.click()
    page.wait_for_selector("#panel .kind:has-text('operator')")


def test_a_picture_is_saved(opened: Opener, tmp_path: Path) -> None:
    page = opened(layered(60))
    with page.expect_download() as download:
        page.locator("#view-graph [data-zoom=png]").click()
    path = tmp_path / "graph.png"
    download.value.save_as(path)
    assert download.value.suggested_filename == "layered-graph.png"
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20]) > 400


def test_neighbours_are_jumped_to(opened: Opener) -> None:
    page = opened(layered(200))
    page.evaluate("() => graph.reveal(50)")
    page.wait_for_selector("#panel h3:has-text('op_50')")
    sections = page.locator("#panel section", has=page.locator("h4", has_text="Comes from"))
    assert sections.locator("button").first.text_content().startswith("/model/layers.1/attn/op_4")
    sections.locator("button").first.click()
    page.wait_for_selector("#panel h3:has-text('op_4')")


def test_attributes_are_in_the_panel(opened: Opener, tmp_path: Path) -> None:
    path = build.write("resnet50-small", tmp_path)
    graph = api.split(Graph.from_bytes(dnnp("import", "-q", path).out), k=2, method="uniform")
    script = "() => graph.reveal(D.nodes.op.findIndex((op) => D.ops[op] === 'Conv'))"
    shown = {}
    for there in (True, False):
        page = opened(graph)
        page.evaluate(script)
        page.wait_for_selector("#panel dt:has-text('operator')")
        rows = page.locator("#panel > dl").first.locator("div").all()
        pairs = [[each.locator(tag).text_content() for tag in ("dt", "dd")] for each in rows]
        shown[there] = dict(pairs)
        path.unlink(missing_ok=True)
    assert shown[True]["operator"] == shown[False]["operator"] == "Conv"
    assert shown[True]["· kernel_shape"] == "[7, 7]"
    assert shown[True]["· strides"] == "[2, 2]"
    assert "attributes" not in shown[True]
    assert shown[False]["attributes"] == "in resnet50-small.onnx"
    assert not [name for name in shown[False] if name.startswith("·")]


def test_tables_are_sorted_by_their_heads(opened: Opener) -> None:
    page = opened(layered(200))
    page.locator("#tab-tables").click()
    table = page.locator("table.sorted").first
    head = table.locator("th button", has_text="nodes")
    column = table.locator("th").all_text_contents().index(head.text_content()) + 1
    shown = {}
    for turn in ("ascending", "descending"):
        head.click()
        texts = table.locator(f"td:nth-child({column})").all_text_contents()
        shown[turn] = [float(text) for text in texts]
    assert shown["ascending"] == sorted(shown["ascending"])
    assert shown["descending"] == sorted(shown["ascending"], reverse=True)
    assert len(set(shown["ascending"])) > 1


@pytest.mark.parametrize("k", [40, 100])
def test_many_stages(opened: Opener, k: int) -> None:
    """More than 90 are in parts; the strip leads to each that it shows."""
    graph = layered(1_000, k=k)
    page = opened(graph)
    slowest = page.locator(".stage .slowest").bounding_box()
    assert 0 <= slowest["x"] <= 1400
    counts = {box["kind"] for box in boxes(page)}
    assert ("part" in counts) == (k > 90)
    for number in (0, 33, k - 1):
        page.locator(f"[data-stage='{number}']").click()
        page.wait_for_selector(f"[data-stage='{number}'][aria-pressed=true]")
        assert chosen(page) == f"stage: stage {number}"
        held = page.evaluate("() => [graph.open.has(chosen), chosen.nodes.length]")
        assert held == [True, len(graph.stages[number].nodes)]
        assert len(boxes(page)) <= 300


@pytest.mark.parametrize("first", ["delete window.Worker", ""])
def test_places_are_found_without_a_worker_too(opened: Opener, first: str) -> None:
    page = opened(layered(400), first=first)
    assert page.evaluate("() => worker === null") == bool(first)
    page.locator("[data-stage='1']").click()
    page.evaluate("() => graph.reveal(150)")
    assert chosen(page).endswith("op_150")
    assert len(boxes(page)) > 10


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_stream_holds_is_shown(opened: Opener, seed: int) -> None:
    """Random graphs, also for training, latency, or without a plan: no error in any view."""
    training = seed % 3 == 1
    graph = Graph(random_stream(seed, 12 + 9 * seed, training=training))
    if seed % 3 == 2:
        graph = api.split(graph, k=2, objective="latency", method="heft", bandwidth=2)
    elif training:
        graph = api.split(graph, k=2, method="greedy", bandwidth=2, memory=100_000)
    page = opened(graph)
    for tab in page.locator("[role=tab]").all():
        tab.click()
        for key in ("ArrowRight", "ArrowDown", "Enter", "f", "n", "+", "Escape"):
            page.keyboard.press(key)
    page.locator("#tab-graph").click()
    for v in range(page.evaluate("() => M.count")):
        page.evaluate("(v) => graph.reveal(v)", v)
    assert len(boxes(page)) > 0


def test_the_small_map_moves_the_graph(opened: Opener) -> None:
    page = opened(layered(400))
    assert not page.locator("#map").is_visible()
    page.locator("#graph").focus()
    for _ in range(8):
        page.keyboard.press("+")
    page.locator("#map").wait_for(state="visible")
    wide = page.evaluate("() => [graph.board.right * graph.mapScale, graph.board.right]")
    for share in (0.2, 0.8):
        scale = page.locator("#map").bounding_box()["width"] / 180
        page.locator("#map").click(position={"x": share * wide[0] * scale, "y": 20})
        middle = page.evaluate("() => graph.board.view.invertX(graph.board.w / 2)")
        assert middle == pytest.approx(share * wide[1], rel=0.05)
