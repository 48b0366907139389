"""samples/ci for continuous integration: make, a shell job and a workflow."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from support.project import ROOT
from support.run import ended
from support.served import served
from support.split_models import array, graph, make, node, value

CI = ROOT / "samples" / "ci"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of four operators."""
    rng = np.random.default_rng(0)
    weights = [array(f"w{i}", rng.normal(size=(16, 16))) for i in range(4)]
    nodes = [node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"n{i}") for i in range(4)]
    ends = [value("x0", [2, 16])], [value("x4", [2, 16])]
    model = make(graph(nodes, "layers", *ends, weights))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def ran(folder: Path, *words: str | Path) -> tuple[int, str]:
    """Status and messages of a program."""
    # Where make runs the tests, a make that inherits its words names the folders it enters.
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    path = os.pathsep.join([str(served() / "bin"), environment["PATH"]])
    done = ended(words, cwd=folder, env={**environment, "PATH": path})
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_make_passes_and_fails_by_its_gates(folder: Path) -> None:
    words = ("make", "-f", CI / "Makefile")
    limits = ("MIN_THROUGHPUT=1/s", "MAX_LATENCY=10s")
    assert ran(folder, *words, *limits) == (0, "")
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / ".dnnp").iterdir()}
    names = ["model-cpu-core-2.plan.dnnp", "model-cpu-core.dnnp", "model.dnnp"]
    assert sorted(kept) == names
    status, said = ran(folder, *words, "MAX_LATENCY=1ns", "MIN_THROUGHPUT=1000000000/s")
    assert status == 2
    reason, stopped = said.splitlines()
    assert re.fullmatch(
        r"dnnp-check: the throughput of the plan is \S+ samples/s, below 1e\+09 "
        r"\(--min-throughput\); "
        r"the latency of the plan is \S+ [mu]?s, above 0\.001 us \(--max-latency\)",
        reason,
    )
    assert stopped.endswith("Error 8")
    assert {p.name: p.stat().st_mtime_ns for p in (folder / ".dnnp").iterdir()} == kept
    assert ran(folder, *words, "measured", *limits) == (0, "")
    status, said = ran(folder, *words, "measured", "MAX_LATENCY=1ns", "MAX_GAP=")
    assert status == 2
    assert "the latency of the run is" in said
    ran(folder, *words, "clean")
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]


def test_the_shell_job(folder: Path) -> None:
    words = (CI / "job.sh", "model.onnx", "2", "--max-memory")
    assert ran(folder, *words, "0.9") == (0, "")
    status, said = ran(folder, *words, "1e-9")
    assert status == 8
    assert said.startswith("dnnp-check: stage ")
    assert said.count("\n") == 1


def test_the_workflow_makes_what_is_there() -> None:
    """Its steps call targets, and set variables, that the Makefile has."""
    makefile, workflow = (CI / "Makefile").read_text(), (CI / "github.yml").read_text()
    steps = re.findall(r"run: make -f samples/ci/Makefile (\w+)", workflow)
    assert steps == ["gates", "measured"]
    for target in steps:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    block = re.search(r"env:\n((?: {6}\w+: .*\n)+)", workflow)
    assert block is not None
    for name in re.findall(r"^ {6}(\w+):", block[1], re.MULTILINE):
        assert re.search(rf"^{name} \?=", makefile, re.MULTILINE), name
