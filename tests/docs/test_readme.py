"""The README says what is true: of Python, packages, commands, targets and layers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dnnp.core.runtime.providers import INSTALL
from dnnp.samples.build import write
from support.project import ROOT, command_names, pyproject
from support.run import PATIENCE_S
from support.served import served

TEXT = (ROOT / "README.md").read_text()
COOKBOOK = (ROOT / "samples" / "cookbook.md").read_text()


def test_python(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    write("bert-small", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    value, gap, *loads = done.stdout.replace("[", "").replace("]", "").replace(",", "").split()
    assert float(value) == max(map(float, loads))
    assert 0 <= float(gap) < 1
    assert (tmp_path / "python-stages" / "manifest.json").exists()


def test_every_command_is_listed() -> None:
    for name in command_names():
        assert f"| `dnnp-{name}` |" in TEXT


def test_packages_are_those_of_the_project() -> None:
    """onnxruntime-gpu shares its files with onnxruntime: it can be no extra beside it."""
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    for names in re.findall(r"pip install '\.\[([a-z,]+)\]'", TEXT):
        assert set(names.split(",")) <= set(extras)
    required = [*project["dependencies"], *(r for rs in extras.values() for r in rs)]
    assert [r for r in required if r.startswith("onnxruntime")] == ["onnxruntime>=1.20"]
    assert f"pip uninstall --yes onnxruntime && {INSTALL[:-1]}" in TEXT


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([a-z-]+)`|^\$ make ([a-z-]+)", TEXT, re.M)
    assert len(targets) >= 4
    for target in targets:
        assert re.search(rf"^{''.join(target)}:", makefile, re.M), target
    samples = (ROOT / "samples" / "Makefile").read_text()
    for target in re.findall(r"`make -C samples ([a-z-]+)`", TEXT + COOKBOOK):
        assert re.search(rf"^{target}:", samples, re.M), target


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_layers_against_operators(tmp_path: Path) -> None:
    models, plans = tmp_path / "models", tmp_path / "plans"
    write("bert-small", models)
    (models / ".built").touch()
    variables = [f"SOURCE={models}", f"OUT={plans}", f"VENV={served()}", "MODELS=bert", "K=4"]
    done = subprocess.run(
        ["make", "-C", ROOT / "samples", "layers", *variables],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("bert"))
    assert f"    {row}\n" in COOKBOOK
