"""Measured costs between runs: found again, and never in the way."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dnnp.formats.inputs.cost_cache import MeasuredCosts, default_folder, key_of, load, store

FACTS = {"model": "0" * 64, "threads": 1}
KEY = key_of(FACTS)
HOW = {
    "provider": "cpu",
    "threads": 1,
    "optimization": "all",
    "beside": 1,
    "rounds": 10,
    "total_s": 1e-6,
    "cold_s": 2e-6,
    "taken": 0.0,
}
COSTS = MeasuredCosts((1e-6, 0.0), (1e-6,), (0.01, 0.0), (0.02,), HOW)


def test_what_is_stored_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert load(folder, KEY, 2, 1) is None
    assert store(folder, KEY, COSTS, FACTS)
    assert load(folder, KEY, 2, 1) == COSTS
    assert [p.name for p in folder.iterdir()] == [f"{KEY}.json"]
    assert store(folder, KEY, MeasuredCosts((0.5,), None, how=HOW), FACTS)
    assert load(folder, KEY, 1, 0) == MeasuredCosts((0.5,), None, how=HOW)


def test_key_depends_on_every_fact() -> None:
    assert key_of({**FACTS, "threads": 2}) != KEY
    assert key_of(dict(reversed(FACTS.items()))) == KEY


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"format": "dnnp-costs", "version": 2}',
        b'{"format": "dnnp-costs", "version": 1, "node_s": [1, 2], "group_s": [1]}',
        b'{"format": "dnnp-costs", "version": 2, "node_s": [1, -2], "group_s": [1]}',
        b'{"format": "dnnp-costs", "version": 2, "node_s": [1, "2"], "group_s": [1]}',
        b'{"format": "dnnp-costs", "version": 2, "node_s": [1, 2, 3], "group_s": [1]}',
        b'{"format": "dnnp-costs", "version": 2, "node_s": [1, 2], "group_s": [1, 1]}',
        b'{"format": "dnnp-costs", "version": 2, "node_s": [1, 2], "group_s": [1], "key": "x"}',
    ],
)
def test_broken_entry_counts_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"{KEY}.json").write_bytes(data)
    assert load(tmp_path, KEY, 2, 1) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_spread", [0.1]),
        ("node_spread", None),
        ("node_spread", [0.1, -0.1]),
        ("group_spread", [0.1, 0.2]),
        ("how", None),
        ("how", {}),
        ("how", {**HOW, "rounds": 0}),
        ("how", {**HOW, "taken": "little"}),
    ],
)
def test_entry_with_one_broken_field_counts_as_none(
    tmp_path: Path, name: str, value: object
) -> None:
    assert store(tmp_path, KEY, COSTS, FACTS)
    path = tmp_path / f"{KEY}.json"
    record = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**record, name: value}))
    assert load(tmp_path, KEY, 2, 1) is None
    path.write_bytes(orjson.dumps(record))
    assert load(tmp_path, KEY, 2, 1) == COSTS


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert not store(file / "cache", KEY, COSTS, FACTS)
    assert load(file / "cache", KEY, 2, 1) is None
    (tmp_path / f"{KEY}.json").mkdir()
    assert not store(tmp_path, KEY, COSTS, FACTS)
    assert load(tmp_path, KEY, 2, 1) is None
    assert not list(tmp_path.glob(".*"))


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_folder() == Path("/x/dnnp")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/me")
    assert default_folder() == Path("/me/.cache/dnnp")
