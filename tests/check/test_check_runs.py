"""The checker of run records: what follows from other figures, the plan and the schedule."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dnnp.core.check.runs import check_runs
from dnnp.core.check.violation import KINDS

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


def test_figures_that_agree() -> None:
    assert check_runs(records()) == []


WRONG: dict[str, tuple[int, Record, str]] = {
    "throughput": (0, {"throughput_per_s": 0.41}, "make 12.29"),
    "elapsed": (1, {"elapsed_s": 17.0}, "make 12.75"),
    "rounds": (1, {"rounds": 4}, "make 16.0"),
    "samples": (0, {"samples": 13}, "but it states 13"),
    "median": (0, {"latency_p50_s": 6.5}, "half of the samples take more than 6.5"),
    "less than a stage": (0, {"latency_p50_s": 2.0}, "takes 2.5 in stage 0, but 2.0 in all"),
    "longer than all": (1, {"latency_p99_s": 16.5}, "samples take up to 16.5"),
    "no room": (
        1, {"rounds": 1, "throughput_per_s": 0.75, "latency_p99_s": 16.0}, "do not fit into 16.0"
    ),
    "bubble": (0, {"bubble": 0.4}, "those of stages are 0.1 to 0.3"),
    "more than all": (1, {"bubble": 1.5}, "above 1"),
    "no thread": (0, {"threads": 0}, "threads is 0"),
    "stages": (0, {"k": 3}, "k is 3, recomputed 2"),
    "copies": (1, {"k": 2}, "k is 2, recomputed 1"),
    "no error": (0, {"max_abs_error": 0.0}, "both are 0, or none"),
    "large error": (0, {"max_rel_error": 2e-4}, "above 0.00011"),
    "latency": (0, {"latency_predicted_s": 1.0}, "the plan is not one for latency"),
    "makespan": (0, {"makespan_predicted_s": 1.0}, "there is no schedule"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_figures_that_do_not(name: str) -> None:
    number, fields, message = WRONG[name]
    content = records()
    content["run"][number] |= fields
    found = check_runs(content)
    assert message in "\n".join(map(str, found))
    assert all(violation.kind in KINDS for violation in found)


ENTRIES: dict[str, tuple[int, Record, str]] = {
    "load": (0, {"predicted_s": 1.9}, "predicted_s is 1.9, recomputed 2.0"),
    "device": (1, {"device": "acc/2"}, "device of stage 1 is 'acc/2', recomputed 'acc/1'"),
    "replicas": (1, {"replicas": 3}, "replicas of stage 1 is 3, recomputed 2"),
    "no such stage": (1, {"stage": 2}, "there is no stage 2; there are 2"),
    "another": (1, {"stage": 0}, "says nothing about stage 1"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_are_the_stages_of_the_plan(name: str) -> None:
    number, fields, message = ENTRIES[name]
    content = records()
    content["run"][0]["stages"][number] |= fields
    assert message in "\n".join(map(str, check_runs(content)))


def test_parts_of_a_stage_compute_what_it_does() -> None:
    content = records()
    entries = content["run"][0]["stages"]
    entries[0]["predicted_s"] = 1.5
    entries.append(copy.deepcopy(entries[0]) | {"predicted_s": 0.5})
    content["run"][0]["k"] = 3
    assert check_runs(content) == []
    entries[2]["predicted_s"] = 0.6
    assert "predicted_s is 2.1, recomputed 2.0" in str(check_runs(content)[0])


def test_runs_of_a_schedule() -> None:
    """Stage 0 in two passes: predicted are their times, makespan and samples of the schedule."""
    content = records()
    passes = [
        {"kind": "forward", "stage": 0, "nodes": [0], "time_s": 1.25},
        {"kind": "forward", "stage": 1, "time_s": 3.0},
        {"kind": "transfer", "stage": 1, "time_s": 9.0},
        {"kind": "forward", "stage": 0, "nodes": [1], "time_s": 0.75},
    ]
    content["schedule"] = [{"passes": passes, "makespan_s": 20.0, "micro_batches": 12}]
    run = content["run"][0]
    run |= {"k": 3, "makespan_predicted_s": 20.0, "makespan_measured_s": 30.0, "bubble": 0.5}
    run["stages"].insert(1, copy.deepcopy(run["stages"][0]))
    run["stages"][0]["predicted_s"], run["stages"][1]["predicted_s"] = 1.25, 0.75
    assert check_runs(content) == []
    for fields, message in (
        ({"makespan_predicted_s": 21.0}, "makespan_predicted_s is 21.0, recomputed 20.0"),
        ({"makespan_measured_s": 31.0}, "makespan_measured_s is 31.0, recomputed 30.0"),
        ({"samples": 11, "elapsed_s": 27.5}, "samples is 11, recomputed 12"),
    ):
        wrong = copy.deepcopy(content)
        wrong["run"][0] |= fields
        assert message in "\n".join(map(str, check_runs(wrong)))
    run["stages"][1]["predicted_s"] = 1.0
    assert "predicted_s is 1.0, recomputed 0.75" in str(check_runs(content)[0])
