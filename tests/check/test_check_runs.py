"""The checker of run records: what they name, shares, counts and errors."""

from __future__ import annotations

from typing import Any

import pytest

from dnnp.core.check.stream import check_runs
from dnnp.core.check.violation import KINDS, Violation

Record = dict[str, Any]


def records() -> dict[str, list[Record]]:
    """Two stages, the second on two devices; the pipeline and the whole model, 12 samples each."""
    stages = [
        {"id": 0, "device": "acc/0", "nodes": [0, 1], "load_s": 2.0, "compute_s": 2.0},
        {"id": 1, "device": "acc/1", "nodes": [2], "load_s": 1.5, "compute_s": 3.0, "replicas": 2},
    ]
    entries = [
        {"stage": 0, "device": "acc/0", "predicted_s": 2.0, "measured_s": 2.5, "bubble": 0.1},
        {
            "stage": 1,
            "device": "acc/1",
            "predicted_s": 1.5,
            "measured_s": 1.0,
            "bubble": 0.3,
            "replicas": 2,
        },
    ]
    pipeline = {
        "mode": "pipeline",
        "k": 2,
        "samples": 12,
        "elapsed_s": 30.0,
        "throughput_per_s": 0.4,
        "latency_p50_s": 5.0,
        "latency_p99_s": 6.0,
        "bubble": 0.2,
        "threads": 1,
        "verified": True,
        "max_abs_error": 1e-3,
        "max_rel_error": 1e-5,
        "rtol": 1e-4,
        "atol": 1e-5,
        "stages": entries,
    }
    whole = {
        "mode": "whole",
        "k": 1,
        "samples": 12,
        "rounds": 3,
        "elapsed_s": 16.0,
        "throughput_per_s": 0.25,
        "latency_p50_s": 4.0,
        "latency_p99_s": 5.0,
    }
    return {"stage": stages, "run": [pipeline, whole], "plan": [{"objective": "throughput"}]}


def found_in(content: dict) -> list[Violation]:
    return [*check_runs(content)]


def test_runs_that_hold() -> None:
    assert found_in(records()) == []
    rounded = records()
    rounded["run"][0] |= {"rtol": 1e-4, "atol": 1e-5, "max_rel_error": 1e-3}
    assert "says that it is verified" in found_in(rounded)[0].message
    rounded["run"][0]["self_rel_error"] = 1e-3  # the whole model differs from itself by as much
    assert found_in(rounded) == []


WRONG: dict[str, tuple[int, Record, str]] = {
    "no error": (0, {"max_abs_error": 0.0}, "both are 0, or none"),
    "mismatch": (0, {"mismatch": "output 'y'"}, "verified, and names a mismatch"),
    "large error": (0, {"max_rel_error": 2e-4}, "above 0.00011"),
    "link": (0, {"links": [{"from": 0, "to": 2}]}, "link 0 to 2 is none of its 2 stages"),
    "loop": (0, {"links": [{"from": 1, "to": 1}]}, "link 1 to 1 is none of its 2 stages"),
    "choice": (0, {"choice": {"mode": "replicas"}}, "names replicas, which did not run"),
    "second": (0, {"choice": {"mode": "whole", "second": "replicas"}}, "names replicas, which"),
    "transfer": (0, {"transfers": {"moves": [{"pass": 0}]}}, "pass 0 of the schedule is no"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_hold(name: str) -> None:
    number, fields, message = WRONG[name]
    content = records()
    content["run"][number] |= fields
    (found,) = found_in(content)
    assert message in str(found)
    assert found.kind in KINDS


def test_entries_are_of_stages_of_the_plan() -> None:
    content = records()
    content["run"][0]["stages"][1]["stage"] = 2
    (found,) = found_in(content)
    assert str(found) == "run 0: there is no stage 2; there are 2"


def test_moves_are_transfers_of_the_schedule() -> None:
    content = records()
    content["schedule"] = [{"passes": [{"kind": "forward"}, {"kind": "transfer"}]}]
    content["run"][0]["transfers"] = {"moves": [{"pass": 1}]}
    assert found_in(content) == []
    for wrong in (0, 2):
        content["run"][0]["transfers"]["moves"][0]["pass"] = wrong
        assert f"pass {wrong} of the schedule is no transfer" in str(found_in(content)[0])
