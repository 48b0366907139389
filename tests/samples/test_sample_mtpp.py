"""`make -C samples mtpp`: the tables hold what dnnp-partition finds."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dnnp.samples.build import write
from support.project import ROOT
from support.run import PATIENCE_S, dnnp
from support.served import served

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
ROWS = {
    "random-3": ("--method", "random", "--samples", "3"),
    "slice *": ("--method", "slice"),
}


def make(folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    """Make the tables in a folder of their own."""
    places = [f"{name}={folder / name}" for name in ("SOURCE", "OUT", "MTPP", "REGAL")]
    return subprocess.run(
        ["make", "-C", ROOT / "samples", "mtpp", f"VENV={served()}", *places, *variables],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def ratio(stream: bytes, options: tuple[str, ...], k: int) -> float:
    """Value of a plan over its bound, which is the simple one."""
    plan = dnnp("partition", "-k", str(k), *options, stdin=stream).one("plan")
    return plan["value"] / plan["bound"]


def test_tables(tmp_path: Path) -> None:
    write("bert-small", tmp_path / "SOURCE")
    (tmp_path / "SOURCE" / ".built").touch()
    rows = " ".join(row.removesuffix(" *") for row in ROWS)
    done = make(tmp_path, "MODELS=bert", "GRAPHS=27 34", "K=2 9", f"ROWS={rows}")
    assert done.returncode == 0, done.stderr
    priced = dnnp("import", str(tmp_path / "SOURCE" / "bert-small.onnx")).out
    models = [dnnp("profile", stdin=priced).out]
    graphs = [dnnp("import", "--synthetic", "regal", "--seed", s).out for s in ("27", "34")]
    tables = done.stdout.split("\n\n")
    assert tables[0].splitlines()[-2 - len(ROWS)] == "Models on cpu-core: bert"
    assert tables[1].splitlines()[0] == "Random graphs like those of REGAL: 27 34"
    for table, streams in zip(tables, (models, graphs), strict=False):
        head, *lines = table.splitlines()[-1 - len(ROWS) :]
        assert head.split() == ["k", "=", "2", "k", "=", "9"]
        for line, (row, options) in zip(lines, ROWS.items(), strict=True):
            name, *means = re.split(r"  +", line)
            assert name == row
            for k, mean in zip((2, 9), means, strict=True):
                exact = math.prod(ratio(s, options, k) for s in streams) ** (1 / len(streams))
                assert float(mean) == pytest.approx(exact, abs=5.1e-4)


def test_options_of_rows(tmp_path: Path) -> None:
    done = make(tmp_path, "MODELS=", "GRAPHS=27", "K=2", "ROWS=brkga-100 heuristic-0")
    assert done.returncode == 0, done.stderr
    assert "Models" not in done.stdout
    graph = dnnp("import", "--synthetic", "regal", "--seed", "27").out
    options = {
        "brkga-100": ("brkga", "--population", "10", "--generations", "10"),
        "heuristic-0": ("heuristic", "--time-limit", "0"),
    }
    for row, words in options.items():
        written = (tmp_path / "MTPP" / "regal" / f"27.{row}.2").read_text()
        plan = dnnp("partition", "-k", "2", "--method", *words, stdin=graph).one("plan")
        value, bound = written.split()
        assert bound == str(plan["bound"])
        # What is there after no time at all, is first-fit or a slicing, as the machine is busy.
        late = row == "heuristic-0" and float(value) >= float(bound)
        assert value == str(plan["value"]) or late


def test_unknown_row(tmp_path: Path) -> None:
    done = make(tmp_path, "ROWS=mla heuristics")
    assert done.returncode != 0
    assert "no row 'heuristics' in the tables of mtpp" in done.stderr
