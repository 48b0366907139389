"""Compiled kernels change no answer, nor does the number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.cold_same import SMALL, Case, answers

from support.run import dnnp


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_an_empty_cache_changes_nothing(case: Case) -> None:
    found, _ = answers(case)
    assert len(found) == 6
    assert {status for status, _ in found.values()} == {0}
    assert len({out for _, out in found.values()}) == 1


@pytest.mark.parametrize("words", ["--method anneal", "--method heuristic", "--objective latency"])
def test_a_method_does_its_effort(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = dnnp("import", "--synthetic", "--nodes", "3", "--seed", "1").out
    cut = ("partition", "-k", "2", "--bandwidth", "1e9", *words.split())
    warm = dnnp(*cut, stdin=graph)
    assert warm.status == 0
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert dnnp(*cut, stdin=graph) == warm
