"""Compiled kernels on disk that are damaged, out of date or cannot be written."""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

from dnnp.core.kernels.kernel import compile_always, kernel
from support.run import output_of

CALLEE = "from dnnp.core.kernels.kernel import kernel\n@kernel\ndef step(x):\n    return x + {}\n"
CALLER = (
    "from callee import step\nfrom dnnp.core.kernels.kernel import kernel\nLIMIT = {}\n"
    "@kernel\ndef double(x):\n    return 2 * min(step(x), LIMIT)\n"
)


def load(folder: Path, name: str) -> ModuleType:
    """A module that is read again, as another process would."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a kernel that calls another one, nothing compiled yet."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    compile_always()
    (tmp_path / "callee.py").write_text(CALLEE.format(1))
    (tmp_path / "caller.py").write_text(CALLER.format(100))
    yield tmp_path
    compile_always(False)
    for name in ("callee", "caller"):
        sys.modules.pop(name, None)


def doubled(folder: Path, value: int = 3) -> tuple[int, int]:
    """Result of the kernel, and number of times it was loaded rather than compiled."""
    load(folder, "callee")
    double = load(folder, "caller").double
    result = double(value)
    return int(result), sum(double.stats.cache_hits.values())


def files(folder: Path, name: str = "caller") -> list[Path]:
    """Files on disk."""
    return sorted((folder / "cache").rglob(f"{name}.*"))


def test_compiled_code_is_loaded_again(folder: Path) -> None:
    load(folder, "callee")
    assert load(folder, "caller").double.is_cold()
    assert doubled(folder) == (8, 0)
    assert doubled(folder) == (8, 1)
    assert not load(folder, "caller").double.is_cold()
    assert [path.suffix for path in files(folder)] == [".nbc"]


@pytest.mark.parametrize("damage", ["empty", "cut", "short", "garbage", "flipped", "pickle"])
def test_a_damaged_file_is_compiled_again(folder: Path, damage: str) -> None:
    doubled(folder)
    (path,) = files(folder)
    whole = path.read_bytes()
    random_ = random.Random(damage)
    flipped = bytearray(whole)
    flipped[random_.randrange(len(whole))] ^= 1 << random_.randrange(8)
    path.write_bytes(
        {
            "empty": b"",
            "cut": whole[:-1],
            "short": whole[:20],
            "flipped": bytes(flipped),
            "garbage": random_.randbytes(5000),
            "pickle": whole[:64] + b"cos\nabort\n(tR.",
        }[damage]
    )
    assert doubled(folder) == (8, 0)
    assert doubled(folder) == (8, 1)


def test_a_type_that_has_moved_is_compiled_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("numba.core.serialize.dumps", lambda _: b"cno.such.module\nName\n.")
        doubled(folder)
    assert doubled(folder) == (8, 0)
    assert doubled(folder) == (8, 1)


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    doubled(folder)
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    assert doubled(folder) == (8, 0)
    assert [p.name for p in files(folder)] == [path.name]


def test_code_of_another_kernel_is_not_loaded(folder: Path) -> None:
    doubled(folder)
    (path,) = files(folder)
    (other,) = files(folder, "callee")
    path.write_bytes(other.read_bytes())
    assert doubled(folder) == (8, 0)


def test_what_a_kernel_calls_and_its_constants_count(folder: Path) -> None:
    assert doubled(folder) == (8, 0)
    (folder / "callee.py").write_text(CALLEE.format(10))
    assert doubled(folder) == (26, 0)
    (folder / "caller.py").write_text(CALLER.format(12))
    assert doubled(folder) == (24, 0)
    assert doubled(folder) == (24, 1)
    assert len(files(folder)) == 1


OPTIONS = "import numba\n@numba.njit({})\ndef step(x):\n    return x + 1\n"


def test_how_a_kernel_and_those_that_it_calls_are_compiled_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ("", "fastmath=True"):
        (folder / "callee.py").write_text(OPTIONS.format(options))
        assert doubled(folder) == (8, 0)
        assert doubled(folder) == (8, 1)
    njit = numba.njit
    monkeypatch.setattr("numba.njit", lambda **options: njit(boundscheck=True, **options))
    assert doubled(folder) == (8, 0)
    assert doubled(folder) == (8, 1)


FIELDS = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    {}: int\n    {}: int\n"


def test_the_order_of_fields_counts(folder: Path) -> None:
    (folder / "caller.py").write_text(
        "from callee import Pair\nfrom dnnp.core.kernels.kernel import kernel\n"
        "@kernel\ndef double(pair):\n    return pair.a\n"
    )
    for names, hits in ((("a", "b"), 0), (("a", "b"), 1), (("b", "a"), 0), (("b", "a"), 1)):
        (folder / "callee.py").write_text(FIELDS.format(*names))
        pair = load(folder, "callee").Pair(1, 2)
        double = load(folder, "caller").double
        assert double(pair) == pair.a
        assert sum(double.stats.cache_hits.values()) == hits


def test_signatures_have_files_of_their_own(folder: Path) -> None:
    doubled(folder)
    load(folder, "callee")
    assert load(folder, "caller").double(2.5) == 7.0
    assert len(files(folder)) == 2
    assert doubled(folder) == (8, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write = Path.write_bytes

    def full(path: Path, data: Any) -> int:
        write(path, data[:100])
        raise OSError(number, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert doubled(folder) == (8, 0)
    assert files(folder) == []
    assert doubled(folder) == (8, 0)


def test_arrays_are_keys_that_last(folder: Path) -> None:
    def total(values: Any) -> float:
        result = 0.0
        for value in values:
            result += value
        return result

    assert kernel(total)(np.ones(3)) == 3.0
    assert kernel(total)(np.ones(4, dtype=np.int64)) == 4.0
    again = kernel(total)
    assert again(np.ones(5)) == 5.0
    assert sum(again.stats.cache_hits.values()) == 1


def test_another_process_loads_it(folder: Path) -> None:
    doubled(folder)
    program = "from caller import double; print(double(3), double.stats)"
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONHASHSEED": "77"}
    said = output_of([sys.executable, "-c", program], env=env, cwd=folder)
    assert said.startswith("8 ")
    assert "cache_misses=Counter()" in said
