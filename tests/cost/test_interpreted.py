"""Kernels as plain Python: the same results, as many rounds as are allowed, nothing left behind."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dnnp.core
from dnnp.core.kernels import kernel as kernels_module
from dnnp.core.kernels.cache import name_of
from dnnp.core.kernels.interpreted import OverrunError, interpreted_of
from dnnp.core.kernels.kernel import WARM_ROUNDS, Kernel, compile_always, kernel, load_soon


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
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process."""
    monkeypatch.setattr(kernels_module, "_gone", Counter())
    yield
    compile_always(False)


def nested(n: int = 4) -> Nested:
    """Arrays of length n."""
    return Nested(Pair(np.arange(float(n)), np.full(n, 0.5)), 3.0)


@given(n=st.integers(0, 6), most=st.integers(0, 5))
def test_interpreted_and_compiled_agree(n: int, most: int) -> None:
    one, other = nested(n), nested(n)
    plain, rounds = add_up.interpreted.call((one, np.int64(most)), 10**6)
    compiled = add_up.dispatcher(other, most)
    assert plain == compiled
    assert list(map(type, plain)) == list(map(type, compiled))
    assert (one.pair.left == other.pair.left).all()
    assert rounds == most * (n + 1)


def test_a_call_that_goes_too_far_leaves_its_arguments() -> None:
    one = nested()
    with pytest.raises(OverrunError):
        add_up.interpreted.call((one, 10), 49)
    assert (one.pair.left == np.arange(4.0)).all()
    assert add_up.interpreted.call((one, 10), 50)[1] == 50
    assert (one.pair.left == np.arange(4.0) + 15).all()


def test_what_is_copied_counts() -> None:
    large = np.zeros(1 << 20)
    with pytest.raises(OverrunError):
        add_up.interpreted.call((Nested(Pair(large, large), 1.0), 1), 1000)
    large.flags.writeable = False
    assert product.interpreted.call((large,), 0) == (0.0, 0)


def test_numbers_of_few_bits_become_those_of_python() -> None:
    answer = twice.interpreted.call((np.int32(2**31 - 1),), 0)[0]
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
    kinds, own = seen.interpreted.call((pair, np.array([2**64 - 1], np.uint64)), 0)[0]
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
        assert needs_rows.interpreted.call((matrix, vector), 3) == (13.0, 3)
        assert vector.tolist() == [1.0] * 3
        copied, given = needs_copies.interpreted.call((vector,), 0)[0]
        assert (copied == given).all()
        assert np.shares_memory(given, vector)
        assert vector.tolist() == [2.0, 1.0, 1.0]
    with pytest.raises(ZeroDivisionError):
        inverse.interpreted.call((np.zeros(1),), 0)


@kernel
def inverse(values):  # type: ignore[no-untyped-def]
    """As compiled code, where numpy would say inf."""
    return 1.0 / values[0]


def test_kernels_without_files_are_interpreted_without_loading_numba(
    fresh: None, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    new = Kernel(add_up.py_func, kept=True)
    monkeypatch.setattr(Kernel, "dispatcher", None)  # numba is not asked
    assert new.is_cold()
    most = new.cold_rounds // 5
    assert new(nested(), most)[0] == most
    assert new._loaded is None


def test_kernels_with_files_are_not_cold(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / f"{name_of(add_up.py_func)}.{'0' * 16}.nbc").touch()
    assert not Kernel(add_up.py_func, kept=True).is_cold()
    assert Kernel(add_up.py_func).is_cold()
    assert Kernel(product.py_func, kept=True).is_cold()


@pytest.mark.parametrize("cold", [True, False])
def test_compiled_from_when_the_rounds_are_over(fresh: None, monkeypatch: Any, cold: bool) -> None:
    monkeypatch.setattr(Kernel, "is_cold", lambda self: cold)
    one, other = Kernel(add_up.py_func), Kernel(product.py_func)
    most = (one.cold_rounds if cold else WARM_ROUNDS) // 5
    assert one(nested(), most - 1)[0] == most - 1
    assert one._loaded is None
    arrays = nested()
    assert one(arrays, most)[0] == most
    assert len(one.dispatcher.signatures) == 1
    assert arrays.pair.left[0] == 1.5 * most  # from how they were
    assert other(np.array([3, 4])) == 12
    # Rounds count by kernel where there are no files, else all together.
    assert (other._loaded is None) == cold
    compile_always()
    assert other(np.array([3, 4])) == 12
    assert len(other.dispatcher.signatures) == 1


@pytest.mark.parametrize("large", [False, True])
def test_a_large_problem_loads_what_is_compiled_at_once(
    fresh: None, monkeypatch: Any, large: bool
) -> None:
    calls: list[str] = []
    one = Kernel(twice.py_func)
    monkeypatch.setattr(Kernel, "is_cold", lambda self: False)
    monkeypatch.setattr(Kernel, "compiled", lambda self, x: calls.append("compiled"))
    if large:
        load_soon()
    one(3)
    assert calls == ["compiled"] * large


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
    assert interpreted_of(shifted) is None
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
    assert [one for one in found if one.interpreted is None] == []


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
