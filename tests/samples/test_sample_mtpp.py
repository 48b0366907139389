"""`make -C samples mtpp`: the tables hold what dnnp-partition finds."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dnnp.samples.build import write
from dnnp.samples.papers import mtpp
from dnnp.samples.papers.mtpp import Journal
from dnnp.samples.papers.rows import split_options
from support.project import ROOT
from support.run import PATIENCE_S, dnnp, ended, output_of
from support.served import served

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
ROWS = {
    "random-3": ("--method", "random", "--samples", "3"),
    "slice *": ("--method", "slice"),
}


def make(folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    """Make the tables in a folder of their own."""
    places = [f"{name}={folder / name}" for name in ("SOURCE", "OUT", "MTPP", "GENERATED")]
    words = ["make", "-C", ROOT / "samples", "mtpp", f"VENV={served()}", *places, *variables]
    return ended(words)


def ratio(stream: bytes, options: tuple[str, ...], k: int) -> float:
    """Value of a plan over its bound, which is the simple one."""
    plan = dnnp("partition", "-k", str(k), *options, stdin=stream).one("plan")
    return plan["value"] / plan["bound"]


def agree(table: str, streams: list[bytes]) -> None:
    """The last lines of a text are the means over these graphs."""
    head, *lines = table.splitlines()[-1 - len(ROWS) :]
    assert head.split() == ["k", "=", "2", "k", "=", "9"]
    for line, (row, options) in zip(lines, ROWS.items(), strict=True):
        name, *means = re.split(r"  +", line)
        assert name == row
        for k, mean in zip((2, 9), means, strict=True):
            exact = math.prod(ratio(s, options, k) for s in streams) ** (1 / len(streams))
            assert float(mean) == pytest.approx(exact, abs=5.1e-4)


@needs_make
def test_tables(tmp_path: Path) -> None:
    write("bert-small", tmp_path / "SOURCE")
    (tmp_path / "SOURCE" / ".built").touch()
    rows = " ".join(row.removesuffix(" *") for row in ROWS)
    done = make(tmp_path, "MODELS=bert", "GRAPHS=27 34", "K=2 9", f"ROWS={rows}", "TIMES=")
    assert done.returncode == 0, done.stderr
    priced = dnnp("import", str(tmp_path / "SOURCE" / "bert-small.onnx")).out
    models = [dnnp("profile", stdin=priced).out]
    graphs = [dnnp("import", "--synthetic", "regal", "--seed", s).out for s in ("27", "34")]
    tables = done.stdout.split("\n\n")
    assert tables[0].splitlines()[-2 - len(ROWS)] == "Models on cpu-core: bert"
    assert tables[1].splitlines()[0] == "Random graphs like those of REGAL: 27 34"
    agree(tables[0], models)
    agree(tables[1], graphs)


GRAPH = """node { name: "_SOURCE" }
node { name: "a" id: 1 control_input: 0 output_info { size: 9 } output_info { size: 500 }
  compute_cost: 40 }
node { name: "b" id: 2 input_info { preceding_node: 1 preceding_port: 1 }
  output_info { size: SIZE } compute_cost: 30 }
node { name: "c" id: 3 input_info { preceding_node: 2 } control_input: 1 compute_cost: 35 }
"""


@needs_make
def test_the_data_set_as_it_is_unpacked(tmp_path: Path) -> None:
    """Test graphs alone, the first ones by name; their second outputs do not count."""
    for part in ("train", "test"):
        (tmp_path / "data" / part).mkdir(parents=True)
        for i in range(3):
            text = GRAPH.replace("SIZE", str(10 + i))
            (tmp_path / "data" / part / f"graph_{i}.pbtxt").write_text(text)
    rows = " ".join(row.removesuffix(" *") for row in ROWS)
    variables = ("MODELS=", f"REGAL={tmp_path / 'data'}", "K=2 9", f"ROWS={rows}", "TIMES=2")
    done = make(tmp_path, *variables, "SAMPLE=2")
    assert done.returncode == 0, done.stderr
    streams = [
        dnnp("import", "--one-tensor", tmp_path / "data" / "test" / f"graph_{i}.pbtxt").out
        for i in range(2)
    ]
    tables = done.stdout[done.stdout.index("Graphs of REGAL") :].split("\n\n")
    agree(tables[0], streams)
    # a | b c moves 9; the second output of a would have moved 500.
    by_hand = (30 + 35 + 9) / (105 / 2)
    assert ratio(streams[0], ROWS["slice *"], 2) == pytest.approx(by_hand)
    points = list(csv.DictReader((tmp_path / "MTPP" / "regal-times.csv").open()))
    assert [(p["graph"], p["nodes"], p["edges"]) for p in points[:2]] == [
        ("graph_0", "4", "4"),
        ("graph_0", "4", "4"),
    ]
    assert {p["row"] for p in points} == {"slice-graph", "bound-exact-5", "bound-guess-5"}
    assert all(float(p["seconds"]) >= 0 for p in points)
    found = (tmp_path / "MTPP" / "found.jsonl").read_text()
    again = make(tmp_path, *variables, "FULL=1")
    assert again.returncode == 0, again.stderr
    longer = (tmp_path / "MTPP" / "found.jsonl").read_text()
    assert longer.startswith(found)
    assert len(longer.splitlines()) == len(found.splitlines()) * 3 // 2
    wrong = make(tmp_path, "MODELS=", f"REGAL={tmp_path / 'MTPP'}")
    assert wrong.returncode != 0
    assert f"no cost graph (*.pbtxt) in {tmp_path / 'MTPP'}" in wrong.stderr


def test_rows_are_options() -> None:
    options = {
        "brkga-100": {"method": "brkga", "population": 10, "generations": 10},
        "brkga-10000": {"method": "brkga", "population": 100, "generations": 100},
        "heuristic-0.5": {"method": "heuristic", "time_limit": 0.5},
        "random-7": {"method": "random", "samples": 7},
    }
    for row, expected in options.items():
        assert split_options(row) == expected
    for row in ("heuristics", "random", "random-0", "random-x", "mla-9", "heuristic--1", ""):
        with pytest.raises(ValueError, match="no row"):
            split_options(row)


def test_stopped_and_continued(tmp_path: Path) -> None:
    """Results that a killed run wrote are not computed again, and half a line does no harm."""
    graph, journal = tmp_path / "g.dnnp", tmp_path / "j.jsonl"
    graph.write_bytes(dnnp("import", "--synthetic", "--nodes", "40").out)
    words = [graph, "--journal", journal, "--counts", "2", "3", "--rows", "slice"]
    program = [sys.executable, "-m", "dnnp.samples.papers.mtpp", *map(str, words)]
    running = subprocess.Popen(
        [*program, "random-3000000"],
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background of a shell has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stderr is not None
    deadline = time.monotonic() + PATIENCE_S
    while not (journal.exists() and journal.read_bytes().count(b"\n") == 2):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130
    assert said == b"mtpp: stopped; 2 of 4 results are there\n"
    lines = journal.read_text().splitlines()
    changed = [json.dumps({**json.loads(line), "value": 1e9}) for line in lines]
    journal.write_text("\n".join(changed) + '\n{"version": "0')
    said = output_of(program)
    simple = json.loads(changed[0])["simple"]
    assert f"{1e9 / simple:.3f}" in said
    assert journal.read_text().startswith("\n".join(changed))


def test_journal_is_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "j"
    journal = Journal(path, ("row", "k"))
    journal.add([{"row": "a", "k": 1, "value": 5}, {"row": "a", "k": 2, "value": 6}])
    path.write_bytes(path.read_bytes() + b'{"row": "b", "k"')
    again = Journal(path, ("row", "k"))
    assert again.found == journal.found
    again.add([{"row": "b", "k": 1, "value": 7}])
    assert Journal(path, ("row", "k")).found[("b", 1)]["value"] == 7


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["g", "--rows", "heuristics"], 2, "no row 'heuristics' in the tables of mtpp"),
        (["g", "--counts", "0"], 2, "'0' is not a whole number"),
        (["nothing.dnnp"], 1, "mtpp: nothing.dnnp: no such file"),
        (["folder"], 1, "mtpp: folder: no cost graph in it"),
        (["bad.pbtxt"], 1, "mtpp: bad.pbtxt:1: "),
        (["free.pbtxt"], 1, "mtpp: free.pbtxt: no node costs anything"),
    ],
)
def test_mistakes(
    words: list[str], status: int, message: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.pbtxt").write_text("node {")
    (tmp_path / "free.pbtxt").write_text('node { name: "a" }')
    try:
        code = mtpp.main(words if "--rows" in words else [*words, "--rows", "slice"])
    except SystemExit as left:
        code = left.code
    assert code == status
    assert message in capsys.readouterr().err


@needs_make
def test_unknown_row(tmp_path: Path) -> None:
    done = make(tmp_path, "MODELS=", "GRAPHS=27", "ROWS=mla heuristics", "TIMES=")
    assert done.returncode != 0
    assert "no row 'heuristics' in the tables of mtpp" in done.stderr
