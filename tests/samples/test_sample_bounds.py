"""`make -C samples bounds`: the tables hold what dnnp-bound proves."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from dnnp.samples.build import write
from dnnp.samples.papers.bounds import bounded, tables
from support.project import ROOT
from support.run import dnnp, ended
from support.served import served

PLACES = ("SOURCE", "OUT", "BOUNDS", "GENERATED")


def make(folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    """Make the tables in a folder of their own."""
    places = [f"{name}={folder / name}" for name in PLACES]
    words = ["make", "-C", ROOT / "samples", "bounds", f"VENV={served()}", *places, *variables]
    return ended(words)


def cells(line: str) -> list[str]:
    return line.replace(" (", "(").split()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_tables(tmp_path: Path) -> None:
    write("gnmt-small", tmp_path / "SOURCE")
    (tmp_path / "SOURCE" / ".built").touch()
    done = make(
        tmp_path,
        "MODELS=gnmt",
        "GRAPHS=27",
        "K=8 64",
        "SECONDS=500",
        "PLAN=mla",
        "METHODS=node-cut pairs",
    )
    assert done.returncode == 0, done.stderr
    model, graph, notes = done.stdout[done.stdout.index("Models") :].split("\n\n")
    assert "plans by mla, 500 s for a bound" in notes
    imported = dnnp("import", str(tmp_path / "SOURCE" / "gnmt-small.onnx")).out
    priced = dnnp("profile", stdin=dnnp("coarsen", stdin=imported).out).out
    random = dnnp("import", "--synthetic", "regal", "--seed", "27").out
    for text, title, stream in (
        (model, "Models on cpu-core, coarsened: gnmt", priced),
        (graph, "Random graphs like those of REGAL: 27", random),
    ):
        lines = text.splitlines()
        assert lines[0] == title
        assert lines[1].split() == ["bound", "/", "simple", "k", "=", "8", "k", "=", "64"]
        rows = ["node-cut", "pairs", "plan", "simple", "node-cut", "pairs"]
        assert [line.split()[0] for line in lines[2:]] == rows
        for column, k in ((1, "8"), (2, "64")):
            plan = dnnp("partition", "-k", k, "--method", "mla", stdin=stream)
            value = plan.one("plan")["value"]
            simple, cut, pairs = (
                dnnp("bound", "--method", method, stdin=plan.out).one("bound")["value"]
                for method in ("simple", "node-cut", "pairs")
            )
            assert cells(lines[2])[column] == f"{cut / simple:.3f}(100)"
            assert cells(lines[3])[column] == f"{pairs / simple:.3f}(100)"
            assert cells(lines[5])[column] == f"{value / simple:.3f}"
            assert cells(lines[6])[column] == f"{value / cut:.3f}"
            assert cells(lines[7])[column] == f"{value / max(cut, pairs):.3f}"


GRAPH = """node { name: "_SOURCE" }
node { name: "a" id: 1 control_input: 0 output_info { size: 9 } output_info { size: 500 }
  compute_cost: 40 }
node { name: "b" id: 2 input_info { preceding_node: 1 preceding_port: 1 } compute_cost: 35 }
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_graphs_of_the_data_set(tmp_path: Path) -> None:
    data = tmp_path / "data" / "test"
    data.mkdir(parents=True)
    for name in ("graph_1", "graph_2", "graph_3"):
        (data / f"{name}.pbtxt").write_text(GRAPH)
    words = ("MODELS=", f"REGAL={data.parent}", "K=2", "PLAN=slice", "METHODS=exact", "SAMPLE=2")
    done = make(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout[done.stdout.index("2 graphs of REGAL") :].splitlines()
    # a alone costs 40 + 9, b alone 35 + 9, both together 75: 49 over 40, and nothing better.
    assert cells(lines[2]) == ["exact", f"{49 / 40:.3f}(100)"]
    assert cells(lines[4]) == ["simple", f"{49 / 40:.3f}"]
    assert sorted(p.name for p in (tmp_path / "BOUNDS" / "data").glob("*.dnnp")) == [
        "graph_1.dnnp",
        "graph_2.dnnp",
    ]


def records(value: float, bound: float, *tried: dict) -> tuple[dict, dict]:
    """Records of a plan and its bound."""
    simple = {"method": "simple", "status": "solved", "value": 4.0}
    return {"value": value}, {"value": bound, "tried": [simple, *tried]}


@pytest.mark.parametrize(
    ("tried", "reached"),
    [
        ([], True),
        ([{"method": "exact", "status": "solved", "value": 4.0}], True),
        ([{"method": "exact", "status": "limit", "value": 5.0}], True),
        ([{"method": "exact", "status": "limit", "value": 4.0}], False),
        ([{"method": "exact", "status": "failed", "reason": "it crashed"}], False),
    ],
)
def test_what_a_solver_came_to(tried: list[dict], reached: bool) -> None:
    assert bounded(*records(8.0, 5.0, *tried), "exact").reached is reached


def test_means_over_graphs_and_the_best_of_the_rows_above() -> None:
    stuck = {"method": "exact", "status": "limit", "value": 4.0}
    found = {
        ("bottleneck", ("a", 2)): bounded(*records(8.0, 5.0), "bottleneck"),
        ("bottleneck", ("b", 2)): bounded(*records(9.0, 4.0), "bottleneck"),
        ("exact", ("a", 2)): bounded(*records(8.0, 4.0, stuck), "exact"),
        ("exact", ("b", 2)): bounded(*records(6.0, 6.0), "exact"),
        ("no-io", ("a", 2)): bounded(*records(8.0, 4.0), "no-io"),
        ("no-io", ("b", 2)): bounded(*records(9.0, 4.0), "no-io"),
        ("auto", ("a", 2)): bounded(*records(8.0, 8.0), "auto"),
        ("auto", ("b", 2)): bounded(*records(6.0, 6.0), "auto"),
    }
    lines = list(tables(found, {("a", 2): 8.0, ("b", 2): 9.0}))
    assert [cells(line) for line in lines if "k =" not in line] == [
        ["bottleneck", f"{math.sqrt(5 / 4 * 4 / 4):.3f}(100)"],
        ["exact", f"{math.sqrt(4 / 4 * 6 / 4):.3f}(50)"],
        ["no-io", "1.000(100)"],
        ["simple", f"{math.sqrt(8 / 4 * 9 / 4):.3f}"],
        ["bottleneck", f"{math.sqrt(8 / 5 * 9 / 4):.3f}"],
        ["exact", f"{math.sqrt(8 / 5 * 6 / 6):.3f}"],
        ["auto", "*", "1.000"],
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_unknown_names(tmp_path: Path) -> None:
    done = make(tmp_path, "MODELS=", "GRAPHS=27", "K=2", "PLAN=best")
    assert done.returncode != 0
    assert "no row 'best' in the tables of mtpp" in done.stderr
    done = make(tmp_path, "MODELS=", "GRAPHS=27", "K=2", "PLAN=mla", "METHODS=luck")
    assert done.returncode != 0
    assert "luck" in done.stderr
