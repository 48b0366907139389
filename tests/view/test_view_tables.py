"""dnnp-view --as csv, tsv and md; several streams side by side."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import dnnp as api
from dnnp.core.model.text import guarded
from dnnp.core.view.tables import TABLES, Table, draw, table_of
from dnnp.formats.inputs.cost_files import read_table
from dnnp.graph import Graph
from dnnp.options.table import VIEW_TABLES
from dnnp.viewing import read_facts
from support.graphs import random_stream
from support.run import dnnp
from support.seeds import encode, planned


def made(seed: int, k: int, method: str, nodes: int = 12) -> Graph:
    stream = random_stream(seed, nodes)
    stream.header["model"] = f"m{seed}"
    return api.split(Graph(stream), k=k, method=method, bandwidth=2, memory=10_000)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Plans of two models, by two methods, for two and three devices."""
    paths = []
    for seed in (1, 2):
        for k in (2, 3):
            for method in ("greedy", "slice"):
                paths.append(tmp_path / f"{seed}-{k}-{method}.dnnp")
                made(seed, k, method).save(paths[-1])
    return paths


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_names_of_tables() -> None:
    assert tuple(TABLES) == VIEW_TABLES


def test_stages_are_those_of_the_records() -> None:
    graph = made(3, 3, "slice")
    rows = read(api.view(graph, as_="csv"))
    for row, stage in zip(rows, graph.stages, strict=True):
        for field in ("load_s", "in_s", "compute_s", "out_s", "memory_bytes"):
            assert float(row[field]) == stage.record[field]
        assert row["device"] == stage.device
        assert row["begin_s"] == row["measured_s"] == ""


def test_nodes_are_in_their_stages() -> None:
    graph = made(3, 3, "slice")
    rows = read(api.view(graph, as_="csv", table="nodes"))
    of = {v: i for i, stage in enumerate(graph.stages) for v in stage.nodes}
    assert {int(row["node"]): int(row["stage"]) for row in rows} == of
    assert sum(float(row["time_s"]) for row in rows) == pytest.approx(
        sum(stage.record["compute_s"] for stage in graph.stages)
    )


def test_what_others_tables_hold() -> None:
    graph = api.schedule(api.bound(made(3, 3, "slice")), micro_batches=2)
    tried = read(api.view(graph, as_="csv", table="bounds"))
    assert graph.bound is not None
    assert [row["method"] for row in tried] == [t["method"] for t in graph.bound.record["tried"]]
    assert graph.schedule is not None
    blocks = read(api.view(graph, as_="csv", table="schedule"))
    assert len(blocks) == sum(len(block["units"]) for block in graph.schedule.blocks)
    assert max(float(row["end_s"]) for row in blocks) == graph.schedule.makespan
    cuts = read(api.view(graph, as_="csv", table="cuts"))
    assert cuts
    assert read(api.view(graph, as_="csv", table="runs")) == []


@pytest.mark.parametrize("form", ["csv", "tsv", "md"])
def test_names_do_not_break_out(form: str) -> None:
    stream = random_stream(1, 4)
    evil = 'a,"b"|c\td\ne\x07'
    for node in stream.get("node"):
        node["name"] = evil
    data = api.view(Graph(stream), as_=form, table="nodes").decode()
    lines = data.split("\n")
    assert len(lines) == 4 + 2 + (form == "md")
    shown = 'a,"b"|c\\td\\ne\\x07'
    if form == "csv":
        assert {row["name"] for row in read(data.encode())} == {shown}
    elif form == "tsv":
        assert {line.split("\t")[1] for line in lines[1:-1]} == {shown}
    else:
        assert all(line.count("|") - line.count("\\|") == 13 for line in lines[:-1])


FORMULAS = ("=1+1", "+1", "-2+3", "@SUM(1)", " =1", "'=1", "\u200b=1", "\uff1d1", "a-b", "'a", "-")


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_no_name_is_a_formula(form: str, tmp_path: Path) -> None:
    stream = random_stream(1, len(FORMULAS))
    for node, name in zip(stream.get("node"), FORMULAS, strict=True):
        node["name"] = name
    table = api.view(Graph(stream), as_=form, table="nodes")
    comma = "," if form == "csv" else "\t"
    shown = [row["name"] for row in csv.DictReader(table.decode().splitlines(), delimiter=comma)]
    assert shown == [name if name in ("a-b", "'a") else f"'{name}" for name in FORMULAS]
    raw = dnnp("view", "--as", form, "--table", "nodes", "--raw", stdin=Graph(stream).to_bytes())
    assert raw.status == 0
    lines = raw.out.decode().split("\n")[1:-1]
    assert [line.split(comma)[1] for line in lines] == list(FORMULAS)


def test_tables_that_come_back_have_the_same_names(tmp_path: Path) -> None:
    stream = random_stream(1, len(FORMULAS))
    for node, name in zip(stream.get("node"), FORMULAS, strict=True):
        node["name"] = name
    (tmp_path / "nodes.csv").write_bytes(api.view(Graph(stream), as_="csv", table="nodes"))
    with pytest.warns(match="mean nothing here: node, unit"):
        back = api.load(tmp_path / "nodes.csv")
    assert [node["name"] for node in back.nodes] == list(FORMULAS)
    costs = "name,seconds\n" + "".join(f"{guarded(name)},1\n" for name in FORMULAS)
    assert [cost.name for cost in read_table(costs.encode(), "c")] == list(FORMULAS)


def test_negative_numbers_stay_numbers() -> None:
    facts = read_facts(random_stream(1, 2))
    table = Table(("a", "b"), [[-1.5, "-1.5"], [-2, None]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLES, "nodes", lambda _: table)
        assert draw(table_of([facts], "nodes"), "csv") == b"a,b\n-1.5,'-1.5\n-2,\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<script>x</script>", "&#60;script&#62;x&#60;/script&#62;"),
        ("[x](javascript:alert(5))", "&#91;x&#93;(javascript:alert(5))"),
        ("![x](http://e)", "!&#91;x&#93;(http&#58;//e)"),
        ("https://e www.e a@b.c", "https&#58;//e www&#46;e a&#64;b.c"),
        ("a|b`c`*d*_e_ f_g &lt; ~~h~~", "a\\|b\\`c\\`\\*d\\*\\_e\\_ f_g &#38;lt; \\~\\~h\\~\\~"),
        ("\\|", "\\\\\\|"),
        ("/conv_1/Relu-2.x (3)", "/conv_1/Relu-2.x (3)"),
    ],
)
def test_markdown_shows_names_as_they_are(name: str, shown: str) -> None:
    stream = random_stream(1, 2)
    stream.get("node")[0]["name"] = name
    graph = Graph(stream)
    row = api.view(graph, as_="md", table="nodes").decode().split("\n")[2]
    assert row.startswith(f"| {stream.get('node')[0]['id']} | {shown} |")
    raw = api.view(graph, as_="md", table="nodes", raw=True).decode().split("\n")[2]
    assert name.replace("|", "\\|") in raw


def test_many_plans_in_one_table(files: list[Path]) -> None:
    done = dnnp("view", "--as", "csv", *files)
    assert (done.status, done.err) == (0, "")
    rows = read(done.out)
    assert [row["file"] for row in rows] == list(map(str, files))
    for row, path in zip(rows, files, strict=True):
        plan = api.load(path).plan
        assert plan is not None
        assert float(row["value_s"]) == plan.value
        assert (row["model"], row["k"], row["method"]) == (
            f"m{path.stem[0]}", path.stem[2], path.stem[4:],
        )  # fmt: skip
        assert 0 < float(row["balance"]) <= 1


@pytest.mark.parametrize("width", [60, 100, 200])
def test_side_by_side(files: list[Path], width: int) -> None:
    graphs = [api.load(path) for path in files]
    text = api.view(graphs, width=width).decode()
    assert text.startswith("m1: throughput\n")
    assert "\nm2: throughput\n" in text
    assert all(len(line) <= width for line in text.splitlines())
    rows = [line for line in text.splitlines() if ".dnnp" in line]
    assert len(rows) == 8
    values = [graph.plan.value for graph in graphs if graph.plan]
    for i in range(0, 8, 2):
        better = min(values[i : i + 2])
        for row, value in zip(rows[i : i + 2], values[i : i + 2], strict=True):
            assert ("*" in row) == (value == better)
    assert ("cut" in text) == (width == 200)


def test_a_stream_without_a_plan_is_named(files: list[Path], tmp_path: Path) -> None:
    api.Graph(random_stream(1, 4)).save(tmp_path / "bare.dnnp")
    done = dnnp("view", *files[:2], tmp_path / "bare.dnnp")
    assert b"without a plan: " in done.out
    assert b"bare.dnnp" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "nodes"], "--table is for --as csv or tsv or md"),
        (["--raw"], "--raw is for --as csv or tsv or md"),
        (["--plot", "k", "--as", "md"], "--plot is for --as svg or png"),
        (["-", "-"], "standard input holds one stream: give - once"),
    ],
)
def test_options_that_make_no_sense(words: list[str], message: str) -> None:
    done = dnnp("view", *words, stdin=b"")
    assert (done.status, done.err) == (2, f"dnnp-view: {message}\n")


def test_the_view_follows_the_name_of_the_file(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    assert dnnp("view", files[0], "-o", out).status == 0
    assert out.read_text().startswith("| stage | device |")


def test_endings_that_no_view_has(tmp_path: Path) -> None:
    """A misspelt ending of a file is refused."""
    stream = encode(planned())
    for name, meant in (
        ("plan.hmtl", "did you mean '.html'?"),
        ("plan.tiff", "known: .txt, .svg, "),
    ):
        done = dnnp("view", "-o", tmp_path / name, stdin=stream)
        assert (done.status, done.out) == (2, b"")
        assert done.err.startswith(f"dnnp-view: {tmp_path / name}: no view has the ending ")
        assert meant in done.err
        assert not (tmp_path / name).exists()
        assert dnnp("view", "--as", "svg", "-o", tmp_path / name, stdin=stream).status == 0
    for name in ("plan", "plan.TXT"):
        assert dnnp("view", "-o", tmp_path / name, stdin=stream).status == 0
        assert (tmp_path / name).read_text().startswith("seed\n")
