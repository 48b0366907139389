"""No forged number is accepted: a slice of `tests/tools/forge.py`."""

from __future__ import annotations

import pytest

from support import seeds, training
from support.forgery import HARMLESS, accepts, forge, records_in
from support.run import dnnp

SCHEDULING = ("schedule", "block")


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


def test_every_exception_has_its_reason() -> None:
    assert all(reason for _, reason in HARMLESS.values())
