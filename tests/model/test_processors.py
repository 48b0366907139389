"""Number of threads of a search."""

from __future__ import annotations

import pytest

from dnnp.core.model.processes import available_cores, search_threads


@pytest.mark.parametrize(("said", "threads"), [("3", 3), ("0", 1), ("-2", 1)])
def test_threads_are_as_many_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, said: str, threads: int
) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", said)
    assert search_threads() == threads


@pytest.mark.parametrize("said", [None, "", "many"])
def test_or_one_for_each_processor(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    if said is None:
        monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("NUMBA_NUM_THREADS", said)
    assert search_threads() == len(available_cores()) >= 1
