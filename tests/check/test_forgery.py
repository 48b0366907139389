"""No forged number is accepted: a slice of `tests/tools/forge.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import seeds, training
from support.forgery import HARMLESS, accepts, forge, records_in
from support.run import dnnp
from support.running import SPLIT, network, planned

SCHEDULING = ("schedule", "block", "run")


def false_ones(name: str, stream: bytes, most: int, kinds: tuple[str, ...]) -> list[str]:
    records = records_in(stream)
    assert accepts(records)
    found = list(forge(name, records, most, kinds))
    assert found
    return [str(one) for one in found if one.accepted and not one.reason]


@pytest.mark.parametrize("shape", ["V", "M"])
def test_schedules_of_shapes(shape: str) -> None:
    result = dnnp(
        "schedule",
        "-q",
        "--shape",
        shape,
        "--devices",
        "2",
        "-n",
        "3",
        "--pareto",
        "--method",
        "1f1b+" if shape == "M" else "auto",
    )
    assert false_ones(shape, result.out, 1, SCHEDULING) == []


def test_schedules_of_a_plan() -> None:
    plan = seeds.encode(seeds.planned())
    result = dnnp("schedule", "-q", "-n", "3", stdin=plan)
    assert result.status == 0, result.err
    assert false_ones("plan", result.out, 1, SCHEDULING) == []


def test_schedules_of_training() -> None:
    result = dnnp("schedule", "-q", "-n", "4", stdin=seeds.encode(training.planned()))
    assert result.status == 0, result.err
    assert false_ones("training", result.out, 1, SCHEDULING) == []


@pytest.mark.parametrize("options", [(), ("--compare",)])
def test_runs(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The stages' memory is made up: only what the run adds is looked at."""
    cut = dnnp(
        "partition",
        "-q",
        "-k",
        "2",
        "--method",
        "uniform",
        stdin=planned(network(), tmp_path, SPLIT),
    )
    stream = cut.out if not options else dnnp("schedule", "-q", "-n", "3", stdin=cut.out).out
    result = dnnp("run", "-q", "--verify", *options, stdin=stream)
    assert result.status == 0, result.err
    assert false_ones("run", result.out, 1, ("run",)) == []


@pytest.mark.parametrize("options", [("blocking",), ("non-blocking", "--emulate-links")])
def test_runs_with_transfers(tmp_path: Path, options: tuple[str, ...]) -> None:
    way, *more = options
    plan = planned(network(), tmp_path, SPLIT)
    moving = ["--transfers", way, "--transfer-time", "1e-3"]
    stream = dnnp("schedule", "-q", "-n", "3", *moving, stdin=plan).out
    result = dnnp("run", "-q", "--warmup", "1", *more, stdin=stream)
    assert result.status == 0, result.err
    records = records_in(result.out)
    found = [f for f in forge("moves", records, 1, ("run",)) if "transfers" in f.field]
    assert {f.field for f in found} >= {"transfers.share_predicted", "transfers.moves[].pass"}
    assert [str(one) for one in found if one.accepted and not one.reason] == []


def test_a_choice_by_measurement(tmp_path: Path) -> None:
    stream = planned(network(), tmp_path, SPLIT)
    cut = dnnp("partition", "-q", "-k", "2", "--method", "uniform", stdin=stream)
    result = dnnp("run", "-q", "--choose", "-n", "4", stdin=cut.out)
    assert result.status == 0, result.err
    records = records_in(result.out)
    fields = [f for f in forge("choice", records, 1, ("run",)) if "choice" in f.field]
    assert {f.field for f in fields} >= {"choice.ratio", "choice.lead"}
    assert [str(one) for one in fields if one.accepted] == []


def test_every_exception_has_its_reason() -> None:
    assert all(reason for _, reason in HARMLESS.values())
