"""Kernels as plain Python: the same results, as many rounds as are allowed, nothing left behind."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnp.core
from dnnp.core.kernels.folders import LONG, name_of
from dnnp.core.kernels.interpreted import OverrunError, twin_of
from dnnp.core.kernels.kernel import (
    LONG_ROUNDS,
    WARM_ROUNDS,
    Kernel,
    compile_always,
    interpret_again,
    is_cold,
    kernel,
)


class Pair(NamedTuple):
    """Arrays that travel together."""

    left: np.ndarray
    right: np.ndarray


class Nested(NamedTuple):
    """A tuple in a tuple."""

    pair: Pair
    scale: float


@kernel
def twice(x):  # type: ignore[no-untyped-def]
    return 2 * x


@kernel
def add_up(nested, most):  # type: ignore[no-untyped-def]
    """Add right to left, in place; returns the pair of rounds and the sum."""
    rounds, total = 0, 0.0
    while rounds < most:
        for i in range(len(nested.pair.left)):
            nested.pair.left[i] += nested.scale * nested.pair.right[i]
            total += twice(nested.pair.left[i])
        rounds += 1
    return rounds, total


@kernel
def product(values):  # type: ignore[no-untyped-def]
    return values[0] * values[1]


@pytest.fixture
def fresh() -> Iterator[None]:
    """As in a new process."""
    interpret_again()
    yield
    compile_always(False)
    interpret_again()


def nested(n: int = 4) -> Nested:
    """Arrays of length n."""
    return Nested(Pair(np.arange(float(n)), np.full(n, 0.5)), 3.0)


@given(n=st.integers(0, 6), most=st.integers(0, 5))
def test_interpreted_and_compiled_agree(n: int, most: int) -> None:
    one, other = nested(n), nested(n)
    plain, rounds = add_up.twin.call((one, np.int64(most)), 10**6)
    compiled = add_up.dispatcher(other, most)
    assert plain == compiled
    assert list(map(type, plain)) == list(map(type, compiled))
    assert (one.pair.left == other.pair.left).all()
    assert rounds == most * (n + 1)


def test_a_call_that_goes_too_far_leaves_its_arguments() -> None:
    one = nested()
    with pytest.raises(OverrunError):
        add_up.twin.call((one, 10), 49)
    assert (one.pair.left == np.arange(4.0)).all()
    assert add_up.twin.call((one, 10), 50)[1] == 50
    assert (one.pair.left == np.arange(4.0) + 15).all()


def test_what_is_copied_counts() -> None:
    large = np.zeros(1 << 20)
    with pytest.raises(OverrunError):
        add_up.twin.call((Nested(Pair(large, large), 1.0), 1), 1000)
    large.flags.writeable = False
    assert product.twin.call((large,), 0) == (0.0, 0)


def test_numbers_of_few_bits_become_those_of_python() -> None:
    answer = twice.twin.call((np.int32(2**31 - 1),), 0)[0]
    assert answer == 2**32 - 2
    assert type(answer) is int


@kernel
def seen(pair, numbers):  # type: ignore[no-untyped-def]
    """Notes what numbers it meets, and what it makes itself."""
    own = np.zeros(2, np.int64)
    own[1] = pair.left[0, 1]
    return [type(pair.left[0, 1]), type(pair.right[0]), type(numbers[0]), type(own[1])], own


def test_numbers_in_arrays_are_those_of_python() -> None:
    pair = Pair(np.array([[1, 7]], np.int32), np.array([True]))
    kinds, own = seen.twin.call((pair, np.array([2**64 - 1], np.uint64)), 0)[0]
    assert kinds == [int, bool, np.uint64, int]
    assert own.tolist() == [0, 7]


@kernel
def needs_rows(matrix, vector):  # type: ignore[no-untyped-def]
    """Adds to a vector before it asks for what a view is not able to."""
    for i in range(len(vector)):
        vector[i] += 1.0
    return matrix[1].sum() + vector[0]


@kernel
def needs_copies(vector):  # type: ignore[no-untyped-def]
    """The same of vectors."""
    vector[0] += 1.0
    return vector.copy(), vector


def test_what_views_cannot_starts_again_with_arrays() -> None:
    for _ in range(2):
        matrix, vector = np.arange(6.0).reshape(2, 3), np.zeros(3)
        assert needs_rows.twin.call((matrix, vector), 3) == (13.0, 3)
        assert vector.tolist() == [1.0] * 3
        copied, given = needs_copies.twin.call((vector,), 0)[0]
        assert (copied == given).all()
        assert np.shares_memory(given, vector)
        assert vector.tolist() == [2.0, 1.0, 1.0]
    with pytest.raises(ZeroDivisionError):
        inverse.twin.call((np.zeros(1),), 0)


@kernel
def inverse(values):  # type: ignore[no-untyped-def]
    """As compiled code, where numpy would say inf."""
    return 1.0 / values[0]


def test_new_kernels_are_interpreted_without_loading_first(
    fresh: None, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    new = Kernel(add_up.py_func, kept=True)
    monkeypatch.setattr(Kernel, "dispatcher", None)  # nobody asks numba
    assert new.is_new()
    assert new.is_cold()
    interpret_again(patience=2 * WARM_ROUNDS / new.cold_rounds)
    most = WARM_ROUNDS // 4
    assert new(nested(), most)[0] == most


def test_kernels_with_files_are_not_new(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / f"{name_of(add_up.py_func)}.{'0' * 16}.nbc").touch()
    assert not Kernel(add_up.py_func, kept=True).is_new()
    assert Kernel(add_up.py_func).is_new()
    assert Kernel(product.py_func, kept=True).is_new()


def cold_but_add_up(monkeypatch: Any) -> None:
    """One of the kernels here counts as compiled."""
    for name in ("is_cold", "is_new"):
        monkeypatch.setattr(Kernel, name, lambda self: self.py_func is not add_up.py_func)


def test_compiled_from_when_the_rounds_are_over(fresh: None, monkeypatch: Any) -> None:
    cold_but_add_up(monkeypatch)
    interpret_again(patience=1e6)
    loaded, cold = Kernel(add_up.py_func), Kernel(product.py_func)
    values = np.array([3, 4])
    assert loaded(nested(), 1)[0] == 1
    assert loaded._loaded is None
    most = WARM_ROUNDS // 5
    one = nested()
    assert loaded(one, most)[0] == most
    assert len(loaded.dispatcher.signatures) == 1
    assert one.pair.left[0] == 1.5 * most
    assert cold(values) == 12  # not loaded: more rounds are allowed where nothing is compiled
    assert cold._loaded is None
    compile_always()
    assert cold(values) == 12
    assert len(cold.dispatcher.signatures) == 1


def test_large_problems_load_at_once_what_is_compiled(fresh: None, monkeypatch: Any) -> None:
    cold_but_add_up(monkeypatch)
    interpret_again(load_soon=True)
    loaded, cold = Kernel(add_up.py_func), Kernel(product.py_func)
    assert loaded(nested(), 1)[0] == 1
    assert len(loaded.dispatcher.signatures) == 1
    assert cold(np.array([3, 4])) == 12
    assert cold._loaded is None


def test_what_was_interpreted_for_long_is_compiled_the_next_time(
    fresh: None, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "new"))
    here, elsewhere = (Kernel(add_up.py_func, kept=True) for _ in range(2))
    interpret_again(patience=1e6)
    most = LONG_ROUNDS // 5 - 1  # of five rounds each
    assert here(nested(), most)[0] == most
    assert not (tmp_path / "new").exists()
    assert here(nested(), 2)[0] == 2
    assert here._loaded is None
    assert is_cold(here)  # of earlier runs only
    interpret_again(load_soon=True)
    assert not is_cold(here)
    assert not is_cold(elsewhere)  # of the same name
    assert here(nested(), 2)[0] == 2
    assert here._loaded is not None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "copy"))
    (tmp_path / "copy").mkdir()
    (tmp_path / "new" / LONG).rename(tmp_path / "copy" / LONG)
    assert elsewhere(nested(), 2)[0] == 2  # as another process does, where that was noted
    assert elsewhere._loaded is not None


@pytest.mark.parametrize("spoiled", ["file", LONG])
def test_a_note_that_cannot_be_kept_is_none(
    fresh: None, monkeypatch: Any, tmp_path: Path, spoiled: str
) -> None:
    (tmp_path / spoiled).touch()  # where a folder should be
    folder = tmp_path / "file" if spoiled == "file" else tmp_path
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    made = Kernel(add_up.py_func, kept=True)
    interpret_again(patience=1e6)
    assert made(nested(0), 2 * LONG_ROUNDS)[0] == 2 * LONG_ROUNDS
    assert made._loaded is None
    assert is_cold(made)


def test_what_takes_longer_to_compile_is_interpreted_for_longer() -> None:
    assert 0 < twice.cold_rounds < product.cold_rounds < add_up.cold_rounds
    alone = len(add_up.py_func.__code__.co_code)
    called = len(twice.py_func.__code__.co_code)
    assert add_up.cold_rounds * called == twice.cold_rounds * (alone + called)


def test_a_closure_is_compiled() -> None:
    offset = 3

    def shifted(x: int) -> int:
        return x + offset

    made = kernel(shifted)
    assert twin_of(shifted) is None
    assert made(4) == 7


def test_kernels_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(add_up)) is add_up


def kernels() -> Iterator[Kernel]:
    """All kernels of the package."""
    for info in pkgutil.walk_packages(dnnp.core.__path__, "dnnp.core."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, Kernel):
                yield value


def test_every_kernel_can_be_interpreted() -> None:
    found = {*kernels()}
    assert len(found) > 200
    assert [one for one in found if one.twin is None] == []


def test_what_counts_no_references_calls_nothing_that_does() -> None:
    """It would be compiled without counting, if it were not compiled before: depending on what
    is in the cache that fails."""
    wrong = []
    for one in {*kernels()}:
        waiting = [] if one.options.get("_nrt", True) else one.called()
        while waiting:
            other = waiting.pop()
            if "inline" in other.options:
                waiting += other.called()
            elif other.options.get("_nrt", True):
                wrong.append(f"{one.__name__} calls {other.__name__}")
    assert wrong == []
