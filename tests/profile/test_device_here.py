"""`--device cpu-here`: rates of this machine, measured at first use and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dnnp.core.extras.operator_grid import Case, grid
from dnnp.fits import device as fitting
from dnnp.formats.inputs.devices import load_device
from support.graphs import node
from support.priced import tensor
from support.run import Result, dnnp
from support.seeds import encode, header


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Titles of the points that were timed; each takes 10 us, and there are few."""
    titles: list[str] = []

    def block_time(case: Case, seconds: float, beside: int) -> float:
        titles.append(case.title)
        return 1e-5

    def few(threads: int = 1, *, quick: bool = False) -> list[Case]:
        return grid(threads, quick=True)

    monkeypatch.setattr(fitting.operator_times, "block_time", block_time)
    monkeypatch.setattr(fitting, "grid", few)
    monkeypatch.setattr(fitting, "copy_rate", lambda: 1e10)
    return titles


@pytest.fixture
def stream() -> bytes:
    """A product of 64 x 64."""
    kinds = ("input", "parameter", "activation")
    tensors = [tensor(i, kind, 16384, shape=[64, 64]) for i, kind in enumerate(kinds)]
    return encode([header(), *tensors, node(0, "MatMul", [0, 1], [2], flop=2.0 * 64**3)])


@pytest.fixture
def price(stream: bytes, tmp_path: Path) -> Callable[..., Result]:
    def run(*words: str, folder: Path = tmp_path / "cache") -> Result:
        where = () if "--no-cache" in words else ("--cache", str(folder))
        result = dnnp("profile", "--device", "cpu-here", *where, *words, stdin=stream)
        assert result.status == 0, result.err
        return result

    return run


def test_measured_once_and_kept(
    price: Callable[..., Result], timed: list[str], tmp_path: Path
) -> None:
    first = price()
    assert "cpu-here: measuring the rates of" in first.err
    (path,) = (tmp_path / "cache").iterdir()
    assert f"kept as {path}" in first.err
    points = len(timed)
    second = price()
    assert (second.out, len(timed)) == (first.out, points)
    assert "measuring" not in second.err
    assert f"rates measured before: {path}" in second.err
    device = load_device(str(path))
    assert (device.name, device.is_fitted) == ("cpu-here", True)
    assert first.one("device")["fitted"]
    assert dnnp("profile", "--device", str(path), stdin=first.out).records("node") == (
        first.records("node")
    )
    price("--threads", "2")
    assert len(timed) > points


@pytest.mark.parametrize("damage", [b"", b"{", b'{"name": "cpu-here"}'])
def test_damaged_or_deleted_is_measured_anew(
    damage: bytes, price: Callable[..., Result], timed: list[str], tmp_path: Path
) -> None:
    first = price()
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(damage)
    timed.clear()
    assert price().out == first.out
    assert timed
    assert load_device(str(path)).name == "cpu-here"
    timed.clear()
    path.unlink()
    assert price().out == first.out
    assert timed


def test_nothing_is_kept_where_it_cannot_or_must_not_be(
    price: Callable[..., Result], timed: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    result = price("-v", folder=file / "below")
    assert "cannot be written; the rates are not kept" in result.err
    assert "kept" not in price("--no-cache").err
    assert sorted(tmp_path.iterdir()) == [file]


def test_one_point_of_each_kind_comes_first_and_time_ends_it(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = grid()
    kinds = [case.kind for case in fitting._kinds_in_turn(cases)]
    assert len(kinds) == len(cases)
    assert len({*kinds[: len({*kinds})]}) == len({*kinds})
    record = fitting.fit_device(fitting.FitOptions(limit_s=0.0))
    assert len(timed) == 1
    assert f"{len(fitting.grid()) - 1} more, for want of time" in record["notes"][-1]


def test_default_stays_and_other_names_do(stream: bytes, timed: list[str]) -> None:
    assert dnnp("profile", stdin=stream).one("device")["class"] == "cpu-core"
    twice = dnnp("profile", "--device", "cpu-here", "--device", "cpu-here", stdin=stream)
    assert twice.status != 0
    assert "twice" in twice.err
    assert not timed
    assert "unknown device 'here'" in dnnp("profile", "--device", "here", stdin=stream).err
