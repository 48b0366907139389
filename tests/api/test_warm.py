"""python -m dnnp.warm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dnnp import warm
from support.run import INTERRUPTED, PATIENCE_S

WARM = [sys.executable, "-m", "dnnp.warm"]


def ended(*words: str, **env: str) -> tuple[int, str, str]:
    """Status, standard output and error of a run."""
    done = subprocess.run(
        [*WARM, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE_S,  # it may have everything to compile, which takes minutes
    )
    return done.returncode, done.stdout, done.stderr


def test_afterwards_no_kernel_is_left_to_compile() -> None:
    assert ended("-q") == (0, "", "")
    status, out, _ = ended("--list")
    kernels = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert len(kernels) > 100
    assert [name for count, name in kernels if count == "0"] == []


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run from an empty cache, and the number of its worker."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [*WARM, "-j", "1"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background of a shell has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    while not (numbers := children.read_text().split()):
        assert process.poll() is None
        time.sleep(0.01)
    yield process, int(numbers[0])
    process.kill()
    process.wait()


def test_a_killed_worker_is_an_error(started: tuple[subprocess.Popen[str], int]) -> None:
    process, worker = started
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "was ended by SIGKILL" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_stays_behind(
    started: tuple[subprocess.Popen[str], int], number: signal.Signals
) -> None:
    process, worker = started
    while b"warm_cases" not in Path(f"/proc/{worker}/cmdline").read_bytes():
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (-9 if number == signal.SIGKILL else INTERRUPTED)
    assert "Traceback" not in err
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{worker}/cmdline").exists() and time.monotonic() < deadline:
        if not Path(f"/proc/{worker}/cmdline").read_bytes():
            break  # a zombie that nobody waits for
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{worker}").exists()


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, out, err = ended(NUMBA_CACHE_DIR=str(tmp_path / "file" / "kernels"))
    assert (status, out) == (1, "")
    assert "nothing can be kept in" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [("-j", "0"), ("--no-such-option",), ("x",)])
def test_usage(words: tuple[str, ...]) -> None:
    assert ended(*words)[:2] == (2, "")


def test_nothing_is_compiled_without_a_compiler() -> None:
    status, _, err = ended(NUMBA_DISABLE_JIT="1")
    assert (status, err.count("\n")) == (7, 1)


def test_cleaning_deletes_what_is_ours_and_of_no_use(tmp_path: Path) -> None:
    program = (
        "from dnnp.core.cost.load_formula import load_of; load_of.compiled(0, 1.0, 2.0, 3.0, 4.0)"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    (useful,) = tmp_path.rglob("*.nbc")
    ours, old = useful.parent, tmp_path / "cpython-310-numba-0.5-old-01234567"
    other_code = ours / useful.name.replace("load_formula.combine", "memory.memory_row")
    useless = other_code, ours / "no.such.1.nbc", old / useful.name, old / "x.tmp"
    others = tmp_path / "core_1234" / "f.nbc", ours / "notes", tmp_path / "f.nbc"
    for path in (*useless, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(useful.read_bytes())
    program = (
        "from dnnp.warm import survey; found = survey(clean=True); "
        "print(found.deleted, *found.kernels['cost.load_formula.combine'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(len(useless)), str(useful)]
    assert all(path.exists() for path in (useful, *others))
    assert not any(path.exists() for path in useless)
    assert not old.exists()


def test_a_case_that_fails_is_told_from_one_that_lacks_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"one": ["", False], "two": ["no gpart", True], "three": ["broken", False]}
    program = "import json, sys\nfor n in sys.stdin: print(json.dumps({}[n.strip()]), flush=True)"
    start = subprocess.Popen

    def answering(_: object, **options: Any) -> subprocess.Popen[str]:
        return start([sys.executable, "-c", program.format(answers)], **options)

    monkeypatch.setattr(subprocess, "Popen", answering)
    told: list[str] = []
    assert warm.do_cases(["one", "two"], 2, told.append) == {"two": "no gpart"}
    assert "of 2" in told[0]
    with pytest.raises(warm.DnnpError, match="case 'three': broken"):
        warm.do_cases(["three"], 2, told.append)
