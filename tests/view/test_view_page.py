"""dnnp-view --as html: one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

import dnnp as api
from dnnp.graph import Graph
from support.graphs import random_stream
from support.run import PATIENCE_S
from support.run import dnnp as command

EVIL = "</script><script>alert(1)</script>\"'<img src=x>\u2028"
VOID = {"meta", "input", "br", "img", "link"}


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


def test_same_bytes_again() -> None:
    assert api.view(planned(), as_="html") == api.view(planned(), as_="html")


@pytest.mark.skipif(not shutil.which("node"), reason="needs node, to read the script")
def test_the_script_is_one(tmp_path: Path) -> None:
    text, _, _ = read(planned())
    path = tmp_path / "page.js"
    path.write_text(text.rpartition("<script>")[2].rpartition("</script>")[0])
    subprocess.run(["node", "--check", str(path)], check=True, timeout=PATIENCE_S)
