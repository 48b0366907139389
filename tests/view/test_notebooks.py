"""Tables as columns, notebooks, chosen and rounded columns, PNG, imports at a terminal."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest
from fuzz.onnx_models import models

import dnnp as api
from dnnp.core.model.errors import UsageError
from dnnp.graph import Graph
from dnnp.options.table import VIEW_TABLES
from support.graphs import random_stream
from support.run import dnnp, executable


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A plan of a random graph."""
    return api.split(Graph(random_stream(3, 12)), k=3, method="slice", bandwidth=2, memory=10_000)


def test_tables_are_columns(graph: Graph) -> None:
    for name in VIEW_TABLES:
        columns = graph.table(name)
        assert len({len(cells) for cells in columns.values()}) == 1, name
    stages = graph.table()
    assert stages["load_s"] == [stage.load for stage in graph.stages]
    rounded = graph.table("stages", digits=2)["load_s"]
    for found, exact in zip(rounded, stages["load_s"], strict=True):
        assert found == float(f"{exact:.2g}")
    with pytest.raises(UsageError, match="table 'stage': must be one of stages, nodes"):
        graph.table("stage")


def test_columns_and_digits_of_the_command(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "p.dnnp")
    view = ("view", tmp_path / "p.dnnp", "--as", "csv")
    result = dnnp(*view, "--columns", "device,stage,load_s", "--digits", "3")
    head, *lines = result.out.decode().splitlines()
    assert head == "device,stage,load_s"
    stages = enumerate(graph.stages)
    assert lines == [f"{each.device},{i},{float(f'{each.load:.3g}')}" for i, each in stages]
    for options, reason in (
        (("--columns", "laod_s"), "--columns laod_s: no column of stages; did you mean 'load_s'?"),
        (("--digits", "0"), "argument --digits: 0 is too small; at least 1"),
        (("--as", "text", "--digits", "3"), "--digits is for --as csv or tsv or md"),
    ):
        result = dnnp(*view, *options)
        assert result.status == 2
        assert result.err.startswith(f"dnnp-view: {reason}"), result.err


class _Cells(HTMLParser):
    """Texts by the tag that they are in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.found.append((self.open[-1] if self.open else "", data))


def test_notebooks_show_the_plan(graph: Graph) -> None:
    found = _Cells(graph._repr_html_()).found
    assert ("p", repr(graph)) in found
    heads = [text for tag, text in found if tag == "th"]
    assert heads[:2] == ["stage", "device"]
    cells = [text for tag, text in found if tag == "td"]
    assert {stage.device for stage in graph.stages} <= set(cells)


def test_wrong_kinds_are_said(graph: Graph) -> None:
    for call, message in (
        (lambda: api.split("plan.dnnp", k=2), "split: a dnnp.Graph is needed, not 'str'"),
        (lambda: api.split(graph, 2), "split: options have names, as in k=2"),
        (lambda: api.load(3), "load: a path or an open file is needed, not 'int'"),
        (lambda: api.split(graph, k=2, time_limt=3), "did you mean 'time_limit'?"),
    ):
        with pytest.raises(TypeError, match=re.escape(message)):
            call()
    with pytest.raises(UsageError, match="digits 'x': must be a number of at least 1"):
        graph.table("stages", digits="x")


def test_notebooks_show_graphs_without_plan() -> None:
    stream = random_stream(3, 12)
    stream.header["model"] = "<b>&"
    assert "&lt;b&gt;&amp;: 12 nodes" in Graph(stream)._repr_html_()


def test_png(graph: Graph, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    for more in ({}, {"plot": "k"}, {"picture": "loads"}):
        try:
            data = api.view(graph, tmp_path / "p.png", **more)
        except api.UnavailableError as error:  # where there is no font
            fonts = "Helvetica, Arial, Liberation Sans, DejaVu Sans"
            assert str(error) == f"PNG needs one of these fonts: {fonts}"  # noqa: PT017
            continue
        assert data == (tmp_path / "p.png").read_bytes()
        svg = api.view(graph, as_="svg", **more).decode()
        width, height = struct.unpack(">II", data[16:24])
        assert f'viewBox="0 0 {width // 2} {height // 2}"' in svg


def test_png_without_its_package(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "p.dnnp")
    (tmp_path / "resvg_py.py").write_text("raise ModuleNotFoundError")
    result = subprocess.run(
        [executable("view"), "-q", tmp_path / "p.dnnp", "-o", tmp_path / "p.png"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 7
    assert result.stderr == "dnnp-view: PNG needs resvg-py: pip install 'dnnp[png]'\n"
    assert not (tmp_path / "p.png").exists()


def on_terminal(*arguments: str | Path) -> str:
    """Output of dnnp-import on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [executable("import"), *map(str, arguments)], stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(ours)
    assert process.wait() == 0
    return found.decode()


@pytest.mark.skipif(sys.platform == "darwin", reason="what is left on a terminal is dropped there")
def test_an_import_says_what_it_read_at_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(models()["mlp"], path)
    said = on_terminal(path)
    assert said.startswith("mlp\r\n")
    assert "inputs: x float32[" in said
    assert "operators: " in said
    assert "{" not in said
    for pour in (("-o", "-"), ("--output=-",)):
        assert on_terminal(path, *pour).startswith('{"type":"header"')
