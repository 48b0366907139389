"""dnnp-export --to torch-csv: schedules for torch.distributed.pipelining."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.run import PATIENCE_S, Result, dnnp

CELL = re.compile(r"(\d+)(F|B|I|W)(\d+)")


def scheduled(*words: str) -> Result:
    """A schedule of a placement from the literature."""
    done = dnnp("schedule", "-q", *words)
    assert done.status == 0
    return done


def rows(done: Result) -> list[list[tuple[int, str, int]]]:
    """Stage, computation and micro-batch of each cell."""
    csv = dnnp("export", "--to", "torch-csv", stdin=done.out)
    assert (csv.status, csv.err) == (0, "")
    found = []
    for line in csv.out.decode().splitlines():
        cells = [CELL.fullmatch(cell) for cell in line.split(",")]
        found.append([(int(m[1]), m[2], int(m[3])) for m in cells if m])
        assert len(found[-1]) == len(cells)
    return found


def test_gpipe_by_hand() -> None:
    done = scheduled("--shape", "V", "--devices", "2", "-n", "2", "--method", "gpipe")
    csv = dnnp("export", "--to", "torch-csv", stdin=done.out)
    assert csv.out == b"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("V", ()),
        ("V", ("--split-backward",)),
        ("V", ("--method", "1f1b")),
        ("VV", ()),
        ("VV", ("--split-backward", "--method", "zb-v")),
    ],
)
def test_what_runs_when(shape: str, words: tuple[str, ...]) -> None:
    """Every computation once, on the device of its stage, and in an order that can be played."""
    table = rows(scheduled("--shape", shape, "--devices", "3", "-n", "6", *words))
    n_stages = 3 * len(shape)
    kinds = "FIW" if "--split-backward" in words else "FB"
    cells = [cell for row in table for cell in row]
    assert len(table) == 3
    assert sorted(cells) == sorted(
        (s, kind, m) for s in range(n_stages) for kind in kinds for m in range(6)
    )
    place = {s: rank for rank, row in enumerate(table) for s, _, _ in row}
    fold = [0, 1, 2, 2, 1, 0]
    assert [place[s] for s in range(n_stages)] == fold[:n_stages]
    # Played rank by rank, each waiting for its neighbours, all of it ends.
    ready: set[tuple[int, str, int]] = set()
    left = [list(row) for row in table]
    while any(left):
        at = sum(map(len, left))
        for row in left:
            while row and needs(row[0], n_stages, kinds) <= ready:
                ready.add(row.pop(0))
        assert sum(map(len, left)) < at, "nothing can go on"


def needs(cell: tuple[int, str, int], stages: int, kinds: str) -> set[tuple[int, str, int]]:
    """What must be done before."""
    stage, kind, batch = cell
    if kind == "F":
        return {(stage - 1, "F", batch)} if stage else set()
    if kind == "W":
        return {(stage, "I", batch)}
    later = {(stage + 1, kind, batch)} if stage + 1 < stages else set()
    return {(stage, "F", batch), *later}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--shape", "M", "--devices", "3", "-n", "3"), "is not on one device"),
        (("--shape", "X", "--devices", "2", "-n", "2"), "does not follow the forward pass"),
    ],
)
def test_what_torch_cannot_do_is_refused(words: tuple[str, ...], reason: str) -> None:
    csv = dnnp("export", "--to", "torch-csv", stdin=scheduled(*words).out)
    assert (csv.status, csv.out) == (2, b"")
    assert reason in csv.err
    assert len(csv.err.splitlines()) == 1


def test_a_schedule_is_needed() -> None:
    plan = dnnp("import", "-q", "--synthetic", "regal", "--nodes", "5")
    csv = dnnp("export", "--to", "torch-csv", stdin=plan.out)
    assert csv.status == 2
    assert "no schedule to export; run dnnp-schedule first" in csv.err


@pytest.mark.parametrize("words", [("V",), ("V", "--split-backward"), ("VV",)])
def test_torch_trains_by_it(words: tuple[str, ...], tmp_path: Path) -> None:
    """Gradients are those of the layers in one process."""
    pytest.importorskip("torch")
    done = scheduled("--shape", *words, "--devices", "2", "-n", "4")
    path = tmp_path / "schedule.csv"
    assert dnnp("export", "--to", "torch-csv", "-o", path, stdin=done.out).status == 0
    trained = subprocess.run(
        [sys.executable, "-m", "dnnp.samples.torch_stages", path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert trained.returncode == 0, trained.stderr
    assert len(trained.stdout.splitlines()) == 2
