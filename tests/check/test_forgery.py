"""No forged number is accepted: a slice of `tests/tools/forge.py`."""

from __future__ import annotations

import pytest
from tools.forge import structures

from support import seeds, training
from support.forgery import HARMLESS, KINDS, accepts, forge, records_in
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


def test_no_forged_structure_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert structures(1, 3, 12, list(KINDS)) == 0, capsys.readouterr().out


def test_links_join_devices_of_the_plan() -> None:
    plan = {"from": "acc/0", "to": "acc/1", "bandwidth_bytes_per_s": 8.0, "latency_s": 0.0}
    for links, wrong in (
        ([plan | {"to": "acc/9"}], "a link names 'acc/9', which is not among its devices"),
        ([plan, plan], "a link from 'acc/0' to 'acc/1' is stated twice"),
    ):
        records = [{**r, "links": links} if r["type"] == "plan" else r for r in seeds.planned()]
        result = dnnp("check", "-q", stdin=seeds.encode(records))
        assert result.status == 3
        assert wrong in result.err


def test_every_exception_has_its_reason() -> None:
    assert all(reason for _, reason in HARMLESS.values())
