"""`make gpu-check` on a machine without a GPU, and what needs none of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dnnp.core.model.errors import UnavailableError
from dnnp.core.runtime.providers import count_gpus

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    return gpu_check


def test_a_machine_without_a_gpu() -> None:
    try:
        count_gpus()
    except UnavailableError:
        done = subprocess.run(
            [sys.executable, TOOLS / "gpu_check.py"], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (7, "")
        assert done.stderr.startswith("no GPU: ")
        assert done.stderr.count("\n") == 1
    else:
        pytest.skip("this machine has a GPU")


def script(folder: Path, text: str) -> Path:
    """Stands for the interpreter of a step."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo 'ROW [\"a\", \"b\", true]'", [("a", "b", True)]),
        ("echo 'ROW [\"a\", \"b\", false]'; echo said", [("a", "b", False)]),
        ("echo 'ROW [\"a\", \"b\", true]'; echo why >&2; exit 3",
         [("a", "b", True), ("the step", "ended with 3", False)]),
        ("echo 'ROW [\"a\", \"b\", true]'; exec sleep 60",
         [("a", "b", True), ("the step", "took longer than 1 s", False)]),
        ("true", [("the step", "ended with 0", False)]),
    ],
)  # fmt: skip
def test_steps_that_fail(
    text: str, found: list, gpu_check, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What they found before is kept, the end of what they said is shown, and others go on."""
    rows = gpu_check.run_step("links", script(tmp_path, text), "cuda", 1.0, {})
    assert [(row.what, row.found, row.ok) for row in rows] == found
    shown = capfd.readouterr().err
    for word in ("why", "said"):
        assert (f"    {word}" in shown) == (word in text)


def test_the_table(gpu_check) -> None:
    rows = [gpu_check.Row("links", "a", "b", True), gpu_check.Row("memory", "c", "d", False)]
    assert gpu_check.table(rows).splitlines()[2:] == [
        "| links | a | b | ok |",
        "| memory | c | d | **no** |",
    ]


def test_every_step_is_one(gpu_check) -> None:
    text = (TOOLS / "gpu_steps.py").read_text()
    assert all(f"def {name}(setting: Setting)" in text for name in gpu_check.STEPS)
    assert sum(gpu_check.STEPS.values()) > gpu_check.LIMIT_S / 2
    assert gpu_check.LIMIT_S < 540
