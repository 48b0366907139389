"""README, BENCHMARKS, CHANGELOG and cookbook say what is true, and stay short."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from bench.run import as_json, tables_in

from dnnp.core.runtime.model.providers import INSTALL
from dnnp.samples.build import write
from support.project import ROOT, pyproject
from support.run import output_of
from support.served import served

README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "BENCHMARKS.md").read_text()
COOKBOOK = (ROOT / "samples" / "cookbook.md").read_text()
PAPERS = (ROOT / "samples" / "papers" / "RESULTS.md").read_text()
RESULTS = sorted((ROOT / "tests" / "bench" / "results").glob("*.json"))
SHORT_BYTES = {"README.md": 8_000, "BENCHMARKS.md": 20_000, "CHANGELOG.md": 6_000}
"""Largest size of documents."""


def test_packages_are_those_of_the_project() -> None:
    """onnxruntime-gpu shares its files with onnxruntime: it can be no extra beside it."""
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    for names in re.findall(r"pip install '\.\[([a-z,]+)\]'", README + COOKBOOK):
        assert set(names.split(",")) <= set(extras)
    required = [*project["dependencies"], *(r for rs in extras.values() for r in rs)]
    assert [r for r in required if r.startswith("onnxruntime")] == ["onnxruntime>=1.20"]
    assert f"pip uninstall --yes onnxruntime && {INSTALL[:-1]}" in COOKBOOK


def test_make_targets_exist() -> None:
    text = README + COOKBOOK + BENCHMARKS + PAPERS
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([a-z-]+)[` ]", text)
    assert len(targets) >= 4
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target
    samples = (ROOT / "samples" / "Makefile").read_text()
    for target in re.findall(r"`make -C samples ([a-z-]+)", text):
        assert re.search(rf"^{target}:", samples, re.M), target
    for name in re.findall(r"BENCH=([a-z]+)", text):
        assert (ROOT / "tests" / "bench" / f"bench_{name}.py").exists(), name


def test_errors_of_predictions_are_those_measured() -> None:
    truth = json.loads((ROOT / "tests/bench/results/truth.json").read_text())
    rows = [row for row in truth["tables"][1]["rows"] if row[1] == "all (14)"]
    stated = re.findall(r"^\| .* \| ([\d.]+) % \| ([\d.]+) % \|$", README, re.M)
    assert stated == [(median.rstrip("%"), worst.rstrip("%")) for _, _, median, worst, *_ in rows]


@pytest.mark.parametrize("name", SHORT_BYTES)
def test_short(name: str) -> None:
    assert (ROOT / name).stat().st_size <= SHORT_BYTES[name]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results(path: Path) -> None:
    result = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    assert result["machine"]
    for table in result["tables"]:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_tables_of_benchmarks_become_results() -> None:
    printed = "Of two.\n\n| name | \\|error\\| |\n| --- | ---: |\n| a | 1,000 |\n| b | 2.5% |\n"
    (table,) = tables_in(printed)
    assert table == {
        "about": "Of two.",
        "columns": ["name", "|error|"],
        "rows": [["a", 1000], ["b", "2.5%"]],
    }
    assert json.loads(as_json({"tables": [table]})) == {"tables": [table]}


def test_named_results_exist() -> None:
    names = re.findall(r"results/([a-z]+)\.json", BENCHMARKS + PAPERS)
    assert names
    for name in names:
        assert ROOT / "tests" / "bench" / "results" / f"{name}.json" in RESULTS, name


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_layers_against_operators(tmp_path: Path) -> None:
    models, plans = tmp_path / "models", tmp_path / "plans"
    write("bert-small", models)
    (models / ".built").touch()
    variables = [f"SOURCE={models}", f"OUT={plans}", f"VENV={served()}", "MODELS=bert", "K=4"]
    said = output_of(["make", "-C", ROOT / "samples", "layers", *variables])
    row = next(line for line in said.splitlines() if line.startswith("bert"))
    assert f"    {row}\n" in COOKBOOK
