"""dnnp-export --to torch-csv: schedules for torch.distributed.pipelining."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dnnp.core.model.errors import UsageError
from dnnp.formats.export.pytorch import torch_cells
from support import torch_stages
from support.run import Result, dnnp, output_of

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
    """Every computation runs once, on the device of its stage, in a valid order."""
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
    """Computations that must be done before."""
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
        (("--shape", "M", "--devices", "3", "-n", "3"), "has devices that others have"),
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


MESSAGE = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")


@pytest.mark.parametrize(
    ("shape", "words"),
    [("V", ()), ("V", ("--split-backward",)), ("VV", ()), ("VV", ("--method", "zb-v"))],
)
def test_what_is_sent_is_received(shape: str, words: tuple[str, ...]) -> None:
    """All ranks wait until what they send is received, and end all the same."""
    if "zb-v" in words:
        words = (*words, "--split-backward")
    done = scheduled("--shape", shape, "--devices", "3", "-n", "6", *words)
    csv = dnnp("export", "--to", "torch-comms-csv", stdin=done.out)
    assert (csv.status, csv.err) == (0, "")
    left = [line.split(",") for line in csv.out.decode().splitlines()]
    table = rows(done)
    for row, own in zip(left, table, strict=True):
        assert [c for c in row if CELL.fullmatch(c)] == [f"{s}{k}{m}" for s, k, m in own]
        # Gradients are done with when all backward passes of a stage are.
        for s in {s for s, *_ in own}:
            assert row.index(f"{s}REDUCE_GRAD") > max(
                row.index(f"{a}{k}{m}") for a, k, m in own if a == s
            )
    place = {s: rank for rank, row in enumerate(table) for s, *_ in row}
    crossings = sum(place[s] != place[s + 1] for s in range(len(place) - 1))
    assert sum("SEND" in c for row in left for c in row) == 2 * 6 * crossings
    has: set[str] = set()
    while any(left):
        at = sum(map(len, left))
        for rank, row in enumerate(left):
            message = MESSAGE.fullmatch(row[0]) if row else None
            if message is None:
                if row and given_to(row[0], place) <= has:
                    has.add(row.pop(0))
                continue
            stage, what, way, batch = message.groups()
            step = {"SENDF": 1, "RECVF": -1, "SENDB": -1, "RECVB": 1}[what + way]
            other = {"SEND": "RECV", "RECV": "SEND"}[what]
            partner = left[place[int(stage) + step]]
            if partner[:1] == [f"{int(stage) + step}{other}_{way}{batch}"]:
                assert place[int(stage) + step] != rank
                has |= {row.pop(0), partner.pop(0)}
        assert sum(map(len, left)) < at, "all ranks wait"


def given_to(cell: str, place: dict[int, int]) -> set[str]:
    """Inputs received, or computed on the rank, before a computation."""
    found = CELL.fullmatch(cell)
    if found is None or found[2] == "W":
        return set()
    stage, batch = int(found[1]), found[3]
    step, way = (-1, "F") if found[2] == "F" else (1, "B")
    if stage + step not in place:
        return set()
    near = place[stage + step] == place[stage]
    return {f"{stage + step}{found[2]}{batch}" if near else f"{stage}RECV_{way}{batch}"}


def test_replicas_and_groups_by_hand() -> None:
    """Two stages, two replicas of each, of which the second has two devices."""
    homes = [[[0], [1]], [[2, 3], [4, 5]]]
    passes = [
        {"name": "F0", "kind": "forward", "homes": homes[0], "after": [], "stage": 0},
        {"name": "F1", "kind": "forward", "homes": homes[1], "after": [{"pass": 0}], "stage": 1},
        {"name": "B1", "kind": "backward", "homes": homes[1], "after": [{"pass": 1}], "stage": 1},
        {"name": "B0", "kind": "backward", "homes": homes[0], "after": [{"pass": 2}], "stage": 0},
    ]
    blocks = [
        {"pass": p, "micro_batch": m, "units": passes[p]["homes"][m % 2],
         "start_s": 4.0 * (m // 2) + p, "end_s": 4.0 * (m // 2) + p + 1}
        for m in range(4) for p in range(4)
    ]  # fmt: skip
    cells = torch_cells({"passes": passes}, blocks)
    assert cells.encoded() == b"0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n"
    blocks[4]["units"] = [0]
    with pytest.raises(UsageError, match="micro-batch 1 goes from one replica to another"):
        torch_cells({"passes": passes}, blocks)
    blocks[4]["units"] = [1]
    blocks[4]["start_s"], blocks[4]["end_s"] = 90.0, 91.0
    with pytest.raises(UsageError, match="in different orders"):
        torch_cells({"passes": passes}, blocks)


@pytest.mark.parametrize("to", ["torch-csv", "torch-comms-csv"])
@pytest.mark.parametrize("words", [("V",), ("V", "--split-backward"), ("VV",)])
def test_torch_trains_by_it(words: tuple[str, ...], to: str, tmp_path: Path) -> None:
    """Gradients are those of the layers in one process."""
    pytest.importorskip("torch")
    done = scheduled("--shape", *words, "--devices", "2", "-n", "4")
    path = tmp_path / "schedule.csv"
    assert dnnp("export", "--to", to, "-o", path, stdin=done.out).status == 0
    words = [sys.executable, "-m", "support.torch_stages", path]
    trained = output_of(words, cwd=Path(torch_stages.__file__).parents[1])
    assert len(trained.splitlines()) == 2
