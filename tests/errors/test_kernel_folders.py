"""Folders of compiled kernels, and what happens without one."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dnnp.callbacks import Callbacks, note_compiling
from dnnp.core.kernels import cache as kernel_cache
from dnnp.core.kernels.kernel import kernel
from support.run import PATIENCE_S, dnnp, ended, executable

TRIPLED = (
    "from dnnp.core.kernels.kernel import compile_always, kernel\n"
    "compile_always()\n"
    "@kernel\ndef triple(x):\n    return 3 * x\n"
    "if __name__ == '__main__':\n"
    "    print(triple(2), sum(triple.stats.cache_hits.values()))\n"
)


def run(folder: Path, user: int | None = None, **env: str) -> str:
    """Output of a program with a kernel: the result, and the number of times it was loaded."""
    (folder / "triple.py").write_text(TRIPLED)
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "NUMBA_CACHE_DIR")}
    env = {**kept, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **env}
    done = ended([sys.executable, "-m", "triple"], env=env, cwd=folder, user=user)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A folder that cannot be made, not even by root."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "kernels"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NUMBA_CACHE_DIR": "/here", "HOME": "/somebody"}, ["/here"]),
        ({"HOME": "/somebody"}, ["OWN", "/somebody/.cache/dnnp"]),
        ({"HOME": "/somebody", "XDG_CACHE_HOME": "/caches"}, ["OWN", "/caches/dnnp"]),
        ({"HOME": "/somebody", "XDG_CACHE_HOME": "caches"}, ["OWN", "/somebody/.cache/dnnp"]),
        ({"HOME": "/somebody", "NUMBA_CACHE_DIR": ""}, ["OWN", "/somebody/.cache/dnnp"]),
        ({"HOME": "~"}, ["OWN"]),  # as where nobody knows whose home that would be
    ],
)
def test_where(env: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    own = str(kernel_cache.OWN)
    assert [str(folder) for folder in kernel_cache.folders()] == [
        own if folder == "OWN" else folder for folder in expected
    ]


def test_the_first_folder_that_takes_a_kernel_has_it(
    blocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [blocked, tmp_path / "second", tmp_path / "third"]
    monkeypatch.setattr(kernel_cache, "folders", lambda: folders)
    assert kernel_cache.writable() == folders[1]

    def tripled(times: int) -> None:
        def quadruple(x: int) -> int:
            return 4 * x

        compiled = kernel(quadruple)
        assert compiled.compiled(2) == 8  # type: ignore[attr-defined]
        assert sum(compiled.stats.cache_hits.values()) == times  # type: ignore[attr-defined]

    tripled(0)
    tripled(1)
    (made,) = folders[1].rglob("*.nbc")
    there = folders[2] / made.relative_to(folders[1])
    there.parent.mkdir(parents=True)
    made.rename(there)
    tripled(1)
    assert not [*folders[1].rglob("*.nbc")]


class Listener(Callbacks):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.parametrize("can", [True, False])
def test_one_note_when_something_is_compiled(
    can: bool, blocked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels" if can else blocked))
    listener = Listener()
    for _ in range(2):
        note_compiling(listener)
    assert listener.notes == []
    for offset in range(2):
        assert kernel(lambda x, offset=offset: x + offset)(1) == 1 + offset
    (note,) = listener.notes
    assert ("NUMBA_CACHE_DIR" in note, "python -m dnnp.warm" in note) == (not can, not can)
    assert bool([*(tmp_path / "kernels").rglob("*.nbc")]) == can


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_a_user_without_a_name_or_a_home() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            assert run(folder, user=54321) == "6 0"
        except PermissionError:
            pytest.skip(f"{sys.executable} is for its owner alone")
        assert run(folder, user=54321) == "6 0"


NOBODY = (
    *("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)
"""Runs a program as an unknown user, allowed to read everything: Python may be in root's home."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_commands_where_nobody_has_a_name_a_home_or_a_place_to_write_to() -> None:
    if shutil.which("setpriv") is None or subprocess.run([*NOBODY, "true"]).returncode:
        pytest.skip("setpriv gives no capabilities here")
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH")}
    touch = [*NOBODY, "touch", str(kernel_cache.OWN.parent / "mine")]
    assert subprocess.run(touch, capture_output=True).returncode
    stream = dnnp("import", "--synthetic", "--nodes", "12").out
    for words in ("partition -k 3 --bandwidth 10", "bound", "schedule -n 4", "check"):
        name, *options = words.split()
        done = subprocess.run(
            [*NOBODY, sys.executable, executable(name), *options],
            env={**env, "TMPDIR": "/proc"},
            cwd="/",
            input=stream,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert b"ermission" not in done.stderr
        stream = done.stdout or stream


def test_code_for_another_processor_or_by_other_settings_is_kept_apart(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    lesser = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"}
    if platform.machine() != "x86_64":
        lesser = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run(tmp_path, **cache) == "6 0"
    assert run(tmp_path, **cache) == "6 1"
    assert run(tmp_path, **cache, **lesser) == "6 0"
    assert run(tmp_path, **cache, NUMBA_OPT="1") == "6 0"
    assert len({path.parent for path in tmp_path.rglob("*.nbc")}) == 3
