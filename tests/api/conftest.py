"""The wheel, built once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT

SCRIPT = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("cmds", "core", "formats", "man", "samples", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("README.md", "LICENSE"):
        (folder / name).symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-c", SCRIPT, folder], cwd=folder, capture_output=True, check=True
    )
    (made,) = folder.glob("*.whl")
    return made
