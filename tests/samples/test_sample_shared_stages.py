"""The table of plans with shared stages, of a small model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dnnp.samples.models import gpt
from dnnp.samples.papers import shared_stages
from dnnp.samples.weights import save

SMALL = gpt.Size(4, 64, 4, vocabulary=20_000, context=64, length=64, planning=True)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    save(gpt.build(SMALL), path)
    return path


def test_a_large_vocabulary_is_shared(small: Path) -> None:
    graph = shared_stages.graph_of(small, 2, "a100", trained=True)
    alone, several, plus, best = shared_stages.compare(graph, 2, micro_batches=8)
    # Embedding and scores read the same weights: all is one stage, unless they are shared.
    assert alone.placement == "a device a stage: 1 stage"
    assert several.load_s <= alone.load_s
    assert best.load_s == plus.load_s < alone.load_s
    assert "2 shared" in best.placement
    assert best.proven
    assert (best.schedule, plus.schedule) == ("auto", "1f1b+")
    assert best.iteration_s <= plus.iteration_s


def test_the_table(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write: Callable[[str, Path], Path] = lambda name, folder: small  # noqa: E731
    monkeypatch.setattr(shared_stages.build, "write", write)
    argv = ["--only", "gpt-1m-vocab", "--devices", "2", "--csv", str(tmp_path / "csv")]
    monkeypatch.setattr("sys.argv", ["shared_stages", *argv])
    assert shared_stages.main() == 0
    assert "gpt-1m-vocab" in capsys.readouterr().out
    rows = (tmp_path / "csv" / "shared-stages.csv").read_text().splitlines()
    assert len(rows) == 1 + 4
