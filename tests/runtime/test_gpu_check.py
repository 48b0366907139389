"""`make gpu-check` on a machine without a GPU, and what needs none of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dnnp.core.model.errors import UnavailableError
from dnnp.core.runtime.model.providers import count_gpus

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
    """Earlier results are kept, the end of the output is shown, and others go on."""
    rows = gpu_check.run_step("links", script(tmp_path, text), "cuda", 1.0, {})
    assert [(row.what, row.found, row.ok) for row in rows] == found
    shown = capfd.readouterr().err
    for word in ("why", "said"):
        assert (f"    {word}" in shown) == (word in text)


def test_packages_of_a_folder_come_first(gpu_check, tmp_path: Path) -> None:
    """Nothing is written but below a folder; CUDA's libraries of the interpreter are found."""
    site, here, out = (tmp_path / name for name in ("site", "here", "out"))
    metadata = site / "onnxruntime_gpu-9.9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 9.9\n"
    )
    libraries = tmp_path / "lib" / "nvidia" / "cublas" / "lib"
    libraries.mkdir(parents=True)
    python = script(
        tmp_path, f'PYTHONPATH="$PYTHONPATH:{tmp_path / "lib"}" exec {sys.executable} "$@"'
    )
    env = gpu_check.environment(python, here, site)
    assert env["PYTHONPATH"].split(":") == [str(site), str(here / "path")]
    assert str(libraries) in env["LD_LIBRARY_PATH"].split(":")
    written = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX")
    assert all(Path(env[name]).is_relative_to(here) for name in written)
    out.mkdir()
    gpu_check.describe(python, env, out)
    assert "onnxruntime-gpu 9.9\n" in (out / "python.txt").read_text()
    said = subprocess.run(
        [python, "-c", "import dnnp.cmds.run; print(dnnp.cmds.run.__file__)"],
        env=env, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.startswith(str(here / "path"))


def test_results_are_written_step_by_step(gpu_check, tmp_path: Path, monkeypatch) -> None:
    def one(name: str, *_: object) -> list:
        before = (tmp_path / "out" / "table.md").exists()
        return [gpu_check.Row(name, "earlier ones are written", str(before), before)]

    monkeypatch.setattr(gpu_check, "run_step", one)
    words = ["--provider", "cpu", "--site", tmp_path, "--out", tmp_path / "out", "links"]
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *map(str, words)])
    assert gpu_check.main() == 1
    said = (tmp_path / "out" / "table.md").read_text()
    assert "| models | earlier ones are written | False | **no** |" in said
    assert "| links | earlier ones are written | True | ok |" in said


def test_the_table(gpu_check) -> None:
    rows = [gpu_check.Row("links", "a", "b", True), gpu_check.Row("memory", "c", "d", False)]
    assert gpu_check.table(rows).splitlines()[2:] == [
        "| links | a | b | ok |",
        "| memory | c | d | **no** |",
    ]


@pytest.mark.parametrize("section", ["", "<!-- gpu -->\nold\n<!-- /gpu -->\n"])
def test_results_are_kept(section: str, gpu_check, tmp_path: Path) -> None:
    """BENCHMARKS.md has the table only where it has a section for it."""
    results, text = tmp_path / "tests" / "bench" / "results", f"# Benchmarks\n\n{section}"
    results.mkdir(parents=True)
    (tmp_path / "BENCHMARKS.md").write_text(text)
    gpu_check.keep([gpu_check.Row("links", "a", "b", False)], tmp_path)
    result = json.loads((results / "gpu.json").read_text())
    assert [table["rows"] for table in result["tables"]] == [[["links", "a", "b", "no"]]]
    said = (tmp_path / "BENCHMARKS.md").read_text()
    assert ("| links | a | b | **no** |" in said) == bool(section)
    assert section or said == text
    assert "old" not in said


def test_every_step_is_one(gpu_check) -> None:
    text = (TOOLS / "gpu_steps.py").read_text()
    assert all(f"def {name}(setting: Setting)" in text for name in gpu_check.STEPS)
    assert sum(gpu_check.STEPS.values()) > gpu_check.LIMIT_S / 2
    assert gpu_check.LIMIT_S < 540
