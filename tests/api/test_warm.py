"""python -m dnnp.warm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dnnp
from dnnp import warm
from dnnp.core.model.errors import UnavailableError
from dnnp.warm import CASES, DEFAULTS, do
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
    files = {cache.name: [*cache.paths()] for cache in warm.caches()}
    assert len(files) > 100
    assert [name for name, found in files.items() if not found] == []


def _is_worker(number: str) -> bool:
    """Tell whether a process is a worker, and no copy of the parent any more."""
    with suppress(OSError):
        return b"dnnp.warm import work" in Path(f"/proc/{number}/cmdline").read_bytes()
    return False


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
    while not (numbers := [one for one in children.read_text().split() if _is_worker(one)]):
        assert process.poll() is None
        time.sleep(0.01)
    yield process, int(numbers[0])
    process.kill()
    process.wait()


def test_a_killed_worker_is_an_error(started: tuple[subprocess.Popen[str], int]) -> None:
    process, worker = started
    assert process.stderr is not None
    begun = process.stderr.readline()
    assert begun == f"python -m dnnp.warm: 1 of {len(CASES)}: split\n"
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "a process that compiled was ended" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_stays_behind(
    started: tuple[subprocess.Popen[str], int], number: signal.Signals
) -> None:
    process, worker = started
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (-9 if number == signal.SIGKILL else INTERRUPTED)
    if number != signal.SIGKILL:  # then a worker may still wait for what it is to do
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


def test_a_case_that_fails_is_told_from_one_that_lacks_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(graph: object, **options: object) -> None:
        raise UnavailableError("no gpart")

    monkeypatch.setattr(dnnp, "schedule", lacking)
    assert do("shape X") == "no gpart"
    monkeypatch.setattr(dnnp, "schedule", lambda graph, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        do("shape X")


def test_defaults_name_no_method_that_needs_an_option() -> None:
    assert set(DEFAULTS) < set(CASES)
    steps = [step for case in DEFAULTS.values() for step in case]
    named = {(step, options["method"]) for step, options in steps if "method" in options}
    assert named <= {
        *(("split", name) for name in ("heuristic", "exact", "slice", "uniform")),
        *(("bound", name) for name in ("pairs", "cover", "same-block")),
    }
    assert not {"max_replicas", "memory_model", "validity"} & {o for _, s in steps for o in s}
