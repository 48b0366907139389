"""The table of Piper's inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fuzz.targets import PIPER

from dnnp.samples.papers import piper


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A small input under the name of a public one."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "gnmt.json").write_text(json.dumps(PIPER))
    return tmp_path


def test_what_fits_is_planned_and_what_does_not_is_said(inputs: Path) -> None:
    row = piper.ROWS[-1]._replace(memory_gib=1.0)
    found = piper.compare(row, inputs)
    assert found.stages >= 1
    assert found.bound == pytest.approx(found.value)
    none = piper.compare(row._replace(memory_gib=1e-9), inputs)
    assert none == (piper.INF, piper.INF, none.seconds, 0)


def test_the_table(
    inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["piper", str(inputs), "--only", "gnmt", "--csv", str(inputs / "csv")]
    monkeypatch.setattr("sys.argv", argv)
    assert piper.main() == 0
    assert "gnmt" in capsys.readouterr().out
    rows = (inputs / "csv" / "piper.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(row.name == "gnmt" for row in piper.ROWS)
    monkeypatch.setattr("sys.argv", ["piper", str(inputs)])
    assert piper.main() == 2
    assert "has no bert32a100.json" in capsys.readouterr().err
