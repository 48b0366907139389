"""dnnp-view --as html: one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import orjson
import pytest

import dnnp as api
from dnnp.core.view import page
from dnnp.core.view.layout import bows, lay_out
from dnnp.formats.plan import plan_digest
from dnnp.graph import Graph
from support.graphs import random_stream
from support.run import PATIENCE_S
from support.run import dnnp as command
from support.seeds import encode
from support.seeds import planned as planned_records

EVIL = "</script><script>alert(1)</script>\"'<img src=x>\u2028"
VOID = {"meta", "input", "br", "img", "link", "wbr"}


class Reader(HTMLParser):
    """Checks that elements are closed in their order; keeps what they hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.held: dict[str, str] = {}
        self.last = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.last = dict(attrs).get("id") or tag
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.held[self.last] = self.held.get(self.last, "") + data


def planned(seed: int = 2, nodes: int = 14, **options: object) -> Graph:
    stream = random_stream(seed, nodes, **options)
    stream.header["model"] = EVIL
    for node in stream.get("node"):
        node["name"] = f"{node['id']} {EVIL}"
    return api.split(Graph(stream), k=3, method="greedy", bandwidth=2, memory=10_000)


def page_of(records: list[dict]) -> str:
    """The page of a stream that is given as records."""
    done = command("view", "--as", "html", stdin=encode(records))
    assert (done.status, done.err) == (0, "")
    return done.out.decode()


def read(graph: Graph) -> tuple[str, Reader, dict]:
    text = api.view(graph, as_="html").decode()
    reader = Reader(text)
    return text, reader, orjson.loads(reader.held["data"])


def test_names_do_not_break_out() -> None:
    text, reader, data = read(planned())
    assert reader.count["script"] == 2
    assert "img" not in reader.count
    assert data["nodes"]["name"][0].startswith("0 </script>")
    assert "alert(1)</script>" not in text


def test_nothing_comes_from_elsewhere() -> None:
    text, reader, _ = read(planned())
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("// ", ""))
    assert not [a for a in reader.attributes if a[1] in ("src", "href") or a[1].startswith("on")]
    policy = next(v for t, n, v in reader.attributes if t == "meta" and n == "content")
    assert policy is not None
    script = text.rpartition("<script>")[2].rpartition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_the_data_are_those_of_the_stream() -> None:
    graph = api.schedule(planned(), micro_batches=3)
    _, reader, data = read(graph)
    of = {v: s for s, stage in enumerate(graph.stages) for v in stage.nodes}
    assert data["units"]["stage"] == [of[node["id"]] for node in graph.nodes]
    assert data["units"]["time"] == [node["time_s"]["dev"] for node in graph.nodes]
    assert graph.schedule is not None
    assert data["runs"]["end"] == [b["end_s"] for b in graph.schedule.blocks for _ in b["units"]]
    edges = set()
    for tensor in graph.tensors:
        makers = [n["id"] for n in graph.nodes if tensor["id"] in n["outputs"]]
        edges |= {(m, n["id"]) for m in makers for n in graph.nodes if tensor["id"] in n["inputs"]}
    assert set(zip(*data["unit_edges"][:2], strict=True)) == edges
    assert reader.count["canvas"] == 2
    assert reader.count["table"] == 3


def test_many_units_are_in_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.view.page.MOST_BOXES", 8)
    graph = planned(5, 40)
    _, _, data = read(graph)
    boxes = data["boxes"]["units"]
    assert sorted(u for units in boxes for u in units) == list(range(40))
    assert len(boxes) <= 11
    for box, units in enumerate(boxes):
        assert {data["units"]["box"][u] for u in units} == {box}
        places = {(data["units"]["x"][u], data["units"]["y"][u]) for u in units}
        assert len(places) == len(units)
    for units in boxes:
        alone = set(units)
        for a, b in zip(*data["unit_edges"][:2], strict=True):
            alone -= {a, b} if {a, b} <= set(units) else set()
        lines = [data["units"]["y"][u] for u in sorted(alone)]
        assert all(lines.count(y) <= 7 for y in lines)
    monkeypatch.setattr("dnnp.core.view.page.MOST_NODES", 30)
    text, _, data = read(graph)
    assert "boxes" not in data
    assert "the graph is too large for a page: 40 nodes" in text


@pytest.mark.parametrize("what", ["latency", "training", "schedule", "bare"])
def test_whatever_a_stream_holds(what: str) -> None:
    if what == "latency":
        stream = random_stream(3, 10)
        graph = api.split(Graph(stream), k=2, objective="latency", method="heft", bandwidth=2)
    elif what == "training":
        graph = api.schedule(planned(4, 14, training=True), micro_batches=3, method="gpipe")
    elif what == "schedule":
        made = command("schedule", "--shape", "M", "-n", "2", "--method", "gpipe").out
        graph = Graph.from_bytes(made)
    else:
        graph = Graph(random_stream(1, 5))
    _, reader, data = read(graph)
    assert ("runs" in data) == (what != "bare")
    assert ("boxes" in data) == (what != "schedule")
    assert reader.count.get("canvas", 0) == ("runs" in data) + ("boxes" in data)


def cells(text: str, title: str) -> list[list[str]]:
    """Texts of the table below a heading."""
    table = text.partition(f"<h2>{title}</h2>")[2].partition("</table>")[0]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr>")[1:]]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in rows]


def test_methods_that_were_tried() -> None:
    graph = api.split(Graph(random_stream(5, 14)), k=3, method="slice,uniform", bandwidth=2)
    assert graph.plan is not None
    header, *rows = cells(read(graph)[0], "Methods")
    assert header == ["method", "value", "gap", "time", "status"]
    assert [row[0] for row in rows] == ["slice", "uniform"]
    assert all(row[4].startswith(("ordered", "free")) for row in rows)


def test_a_plan_that_lacks_memory_says_so() -> None:
    stream = random_stream(2, 14)
    with pytest.warns(match="infeasible"):
        graph = api.split(Graph(stream), k=3, method="greedy", memory=1, memory_mode="ignore")
    assert "infeasible: a device lacks " in read(graph)[0]
    assert "infeasible: a device lacks " in api.view(graph, as_="svg").decode()
    assert "infeasible" not in read(planned())[0]


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_bars_end_within_their_place(comm: str) -> None:
    """The sum of overlapping parts of a load may exceed every load."""
    stream = random_stream(7, 14)
    graph = api.split(Graph(stream), k=3, method="greedy", bandwidth=0.5, comm=comm)
    text, _, _ = read(graph)
    bars = re.findall(r'<div class="bar".*?</div>', text)
    long = [sum(map(float, re.findall(r"<i style=.width:([\d.]+)%", bar))) for bar in bars]
    assert max(long) == pytest.approx(100, abs=0.01)
    assert ("are all in its bar" in text) == (comm != "sum")
    assert ("the proven bound" in text) == (comm == "sum")


def test_what_was_measured() -> None:
    """A column beside what was predicted, and a row for each rate of a sweep."""
    records = planned_records()
    (plan,) = (r for r in records if r["type"] == "plan")
    stages = [r for r in records if r["type"] == "stage"]
    run = {
        "type": "run", "mode": "pipeline", "provider": "cpu", "samples": 7, "verified": True,
        "throughput_per_s": 12.5, "digest": plan_digest(plan, stages),
        "choice": {"mode": "pipeline", "ratio": 1.2, "clear": True, "reason": "1.2 times the rate"},
        "stages": [
            {"stage": s["id"], "device": s["device"], "predicted_s": s["load_s"],
             "measured_s": 2 * s["load_s"]}
            for s in stages
        ],
    }  # fmt: skip
    text = page_of([*records, run])
    header, *rows = cells(text, "Stages")
    assert header[-3:] == ["measured", "ratio", "resident"]
    assert [row[-2:] for row in rows] == [["2.00", "-"]] * len(stages)
    assert cells(text, "Measured") == [
        ["run", "mode", "provider", "samples", "throughput_per_s", "verified"],
        ["0", "pipeline", "cpu", "7", "12.5", "yes"],
    ]
    assert "to deploy: pipeline, 1.2 times the rate" in text
    assert cells(page_of(records), "Stages")[0][-1] == "of its device"


def test_same_bytes_again() -> None:
    assert api.view(planned(), as_="html") == api.view(planned(), as_="html")


@pytest.mark.skipif(not shutil.which("node"), reason="needs node, to read the script")
def test_the_script_is_one(tmp_path: Path) -> None:
    text, _, _ = read(planned())
    path = tmp_path / "page.js"
    path.write_text(text.rpartition("<script>")[2].rpartition("</script>")[0])
    subprocess.run(["node", "--check", str(path)], check=True, timeout=PATIENCE_S)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node, to run the script")
def test_lines_swing_as_those_of_pictures(tmp_path: Path) -> None:
    """The script and `bows` are two programs of one idea."""
    folder = Path(page.__file__).parent
    board, drawn = ((folder / name).read_text() for name in page.FILES[:2])
    constants = re.findall(r"^const (?:BOX|SWINGS).*?;$", board, re.M | re.S)
    function = re.search(r"^function swing.*?^}$", drawn, re.M | re.S)
    assert len(constants) == 2
    assert function is not None
    rng = np.random.default_rng(5)
    edges = {tuple(sorted(map(int, pair))): 1.0 for pair in rng.integers(0, 60, (150, 2))}
    edges = {(a, b): size for (a, b), size in edges.items() if a != b}
    layout = lay_out([float(level) for level in range(60)], edges)
    lines = [{"a": a, "b": b} for a, b in edges]
    script = [
        *constants, function[0], f"const [xs, ys] = [{layout.x}, {layout.y}];",
        "const items = xs.map((x, i) => ({x: x * (BOX + GAP), y: ys[i] * (HIGH + DROP)}));",
        f"const found = swing(items, {orjson.dumps(lines).decode()});",
        "console.log(JSON.stringify(found.map((e) => e.aside / (BOX + GAP))));",
    ]  # fmt: skip
    path = tmp_path / "swing.js"
    path.write_text("\n".join(script))
    done = subprocess.run(["node", path], capture_output=True, timeout=PATIENCE_S, check=True)
    expected = bows(layout, edges)
    assert len(set(expected)) > 3
    assert orjson.loads(done.stdout) == expected
