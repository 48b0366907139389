"""dnnp-bound as a user meets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from fuzz.onnx_models import models

from dnnp.core.methods import plain
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.text import shown_seconds
from dnnp.formats.bounds import bound_record
from dnnp.formats.records import json_schema
from dnnp.formats.stream import read_bytes
from support import seeds
from support.graphs import random_stream, to_bytes
from support.run import Result, dnnp, edited, interrupted
from support.wide import branches

Record = dict[str, Any]


def stream(seed: int = 3, n: int = 12) -> bytes:
    return to_bytes(random_stream(seed, n))


def planned(method: str = "auto", *arguments: str, data: bytes | None = None) -> bytes:
    """A stream with a plan."""
    result = dnnp(
        "partition",
        "-k",
        "3",
        "--bandwidth",
        "9",
        "--method",
        method,
        *arguments,
        stdin=stream() if data is None else data,
    )
    assert result.status == 0, result.err
    return result.out


def checked(result: Result) -> Record:
    """The bound record of a command that succeeded and whose stream holds."""
    assert result.status == 0, result.err
    check = dnnp("check", stdin=result.out)
    assert check.status == 0, check.err
    validator = jsonschema.Draft202012Validator(json_schema())
    for record in result.records():
        validator.validate(record)
    return result.one("bound")


def test_the_record():
    result = dnnp("bound", stdin=planned())
    record = checked(result)
    plan = result.one("plan")
    assert (record["status"], record["gap"], record["validity"]) == ("optimal", 0, "ordered")
    assert record["value"] == pytest.approx(plan["value"], rel=1e-9)
    assert record["tried"][0]["method"] == "simple"
    assert record["method"] in [entry["method"] for entry in record["tried"]]
    assert record["certificate"]["argument"] == record["method"]
    assert not any("time_s" in entry for entry in record["tried"])
    kinds = [r["type"] for r in result.records()]
    assert kinds[-2:] == ["bound", "end"]
    last = result.err.splitlines()[-1]
    value = shown_seconds(record["value"])
    assert last.startswith(f"dnnp-bound: bound {value} by {record['method']}: value {value}, ")
    assert last.endswith(", optimal, ordered")


def test_the_bound_of_the_plan_becomes_better():
    data = planned("slice")
    before = Result(0, data, "").one("plan")
    result = dnnp("bound", stdin=data)
    checked(result)
    plan = result.one("plan")
    assert (before["status"], plan["status"], plan["gap"]) == ("feasible", "optimal", 0)
    assert before["bound"] < plan["bound"] <= plan["value"] == before["value"]
    assert {**plan, "bound": 0, "gap": 0, "status": ""} == {
        **before,
        "bound": 0,
        "gap": 0,
        "status": "",
    }


def test_a_weaker_argument_leaves_the_plan_alone():
    data = planned()
    result = dnnp("bound", "--method", "simple", stdin=data)
    record = checked(result)
    assert result.one("plan") == Result(0, data, "").one("plan")
    assert (record["method"], record["status"]) == ("simple", "proven")
    assert 0 < record["gap"] < 1
    assert [entry["method"] for entry in record["tried"]] == ["simple"]
    assert "(the plan states " in result.err


@pytest.mark.parametrize("method", ["uniform", "single"])
def test_a_better_split_replaces_the_plan(method):
    data = planned(method)
    before = Result(0, data, "")
    result = dnnp("bound", stdin=data)
    record = checked(result)
    plan = result.one("plan")
    best = Result(0, planned(), "").one("plan")
    assert plan["value"] == pytest.approx(best["value"])
    assert plan["value"] < before.one("plan")["value"]
    assert (plan["method"], plan["status"], record["gap"]) == ("bound-ideal", "optimal", 0)
    assert "ideal found a better split: " in result.err
    assert "the plan and its stages are replaced" in result.err
    assert result.records("stage") != before.records("stage")


def test_same_bytes_twice():
    data = planned("uniform")
    assert dnnp("bound", stdin=data).out == dnnp("bound", stdin=data).out


def test_bound_after_bound_replaces_it():
    first = dnnp("bound", "--method", "simple", stdin=planned())
    second = dnnp("bound", stdin=first.out)
    checked(second)
    assert "dropped" not in second.err
    assert second.one("bound") == dnnp("bound", stdin=planned()).one("bound")


def test_runs_are_dropped():
    run = {"type": "run", "mode": "pipeline", "provider": "cpu", "samples": 1, "digest": "0" * 64}
    lines = planned().splitlines()
    data = b"\n".join([*lines[:-1], orjson.dumps(run), lines[-1]]) + b"\n"
    result = dnnp("bound", stdin=data)
    checked(result)
    assert "dropped what earlier records led to: run records" in result.err
    assert not result.records("run")


def test_a_stream_without_a_plan():
    result = dnnp("bound", "-k", "3", "--bandwidth", "9", stdin=stream())
    record = checked(result)
    assert "no plan in the stream: split as by dnnp-partition" in result.err
    alone = Result(0, planned(), "").one("plan")
    assert result.one("plan") == alone
    assert record == dnnp("bound", stdin=planned()).one("bound")


def test_a_stream_without_costs(tmp_path):
    path = tmp_path / "mlp.onnx"
    path.write_bytes(models()["mlp"].SerializeToString())
    result = dnnp("bound", "-k", "2", stdin=dnnp("import", path).out)
    assert checked(result)["status"] == "optimal"
    assert "no costs in the stream" in result.err


def test_devices_of_the_stream_serve_as_well():
    result = dnnp("bound", stdin=seeds.encode(seeds.graph_records()))
    assert checked(result)["status"] == "optimal"
    assert result.one("plan")["k"] == 3


def test_neither_plan_nor_devices():
    result = dnnp("bound", stdin=stream())
    assert (result.status, result.out) == (2, b"")
    assert result.err == (
        "dnnp-bound: there is no plan in the stream: run dnnp-partition, or give -k N\n"
    )


@pytest.mark.parametrize("option", [("-k", "2"), ("--cluster-size", "2"), ("--memory", "1G")])
def test_devices_for_a_stream_with_a_plan(option):
    result = dnnp("bound", *option, stdin=planned())
    assert (result.status, result.out) == (2, b"")
    assert f"{option[0]} is for streams without a plan" in result.err


def test_a_split_that_cannot_be_made():
    result = dnnp("bound", "-k", "2", "--memory", "1", stdin=stream())
    assert (result.status, result.out) == (4, b"")


def test_a_plan_of_another_graph():
    def slower(node: Record) -> None:
        node["time_s"]["dev"] += 1

    result = dnnp("bound", stdin=edited(planned(), "node", slower))
    assert (result.status, result.out) == (3, b"")
    assert "field 'digest': the plan was made from another graph, costs or groups" in result.err


LIES: dict[str, tuple[str, Callable[[Record], Any], str]] = {
    "value": ("plan", lambda plan: plan.update(value=plan["value"] * 0.9), "field 'value': "),
    "bandwidth": (
        "plan", lambda plan: plan["devices"][0].update(bandwidth_bytes_per_s=0.5),
        "field 'value': ",
    ),
    "objective": ("plan", lambda plan: plan.update(objective="gpipe"), "field 'objective': "),
    "device": ("stage", lambda stage: stage.update(device="dev/9"), "there is no device"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_plan_that_is_not_what_it_says(name):
    kind, change, message = LIES[name]
    result = dnnp("bound", stdin=edited(planned("slice"), kind, change))
    assert (result.status, result.out) == (3, b"")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_bound_for_more_splits_than_those_of_the_plan():
    ordered = planned()
    record = checked(dnnp("bound", "--validity", "free", stdin=ordered))
    assert record["validity"] == "free"
    assert record["value"] <= checked(dnnp("bound", stdin=ordered))["value"]
    free = planned("anneal", "--validity", "free")
    if Result(0, free, "").one("plan")["validity"] == "free":
        result = dnnp("bound", "--validity", "ordered", stdin=free)
        assert result.status == 2
        assert "--validity ordered: the plan is free" in result.err
    latency = dnnp("partition", "-k", "2", "--objective", "latency", stdin=stream()).out
    result = dnnp("bound", "--validity", "free", stdin=latency)
    assert result.status == 2
    assert "--validity is for throughput and gpipe" in result.err


def test_a_validity_that_the_stages_do_not_have(tmp_path):
    """Nodes 1 and 2 of `seeds.graph_records` lie between 0 and 4."""
    split = tmp_path / "split.json"
    split.write_bytes(orjson.dumps([[0, 4], [1, 2], [3, 5]]))
    free = dnnp("partition", "--eval", split, stdin=seeds.encode(seeds.graph_records())).out
    assert Result(0, free, "").one("plan")["validity"] == "free"
    result = dnnp("bound", stdin=edited(free, "plan", lambda plan: plan.update(validity="ordered")))
    assert (result.status, result.out) == (3, b"")
    assert "field 'validity': ordered is stated, but the stages are only free" in result.err
    record = checked(dnnp("bound", "--effort", "0.01", stdin=free))
    refused = {e["method"] for e in record["tried"] if e["status"] == "refused"}
    assert record["validity"] == "free"
    assert {"chain", "ideal"} <= refused


def test_other_problems():
    """Clusters, a backward pass with its own objective, replicas, CPUs, and no order."""
    train = to_bytes(random_stream(5, 9, training=True))
    plain = stream(5, 9)
    clusters = ("--cluster-size", "2", "--inner-bandwidth", "20")
    for data, arguments in (
        (plain, clusters),
        (plain, ("--max-replicas", "2")),
        (train, ("--objective", "gpipe")),
        (train, ("--validity", "free", "--effort", "0.01")),
        (plain, ("--validity", "convex", "--method", "ip")),
        (plain, ("--comm", "duplex", "--charge-io")),
    ):
        split = dnnp("partition", "-k", "3", "--bandwidth", "9", *arguments, stdin=data)
        assert split.status == 0, split.err
        record = checked(dnnp("bound", stdin=split.out))
        assert record["gap"] < (0.1 if arguments == clusters or "free" in arguments else 1e-5)
        assert record["tried"][-1]["status"] != "failed"


def test_a_plan_that_does_not_fit():
    tight = edited(planned(), "plan", lambda plan: plan["devices"][0].update(memory_bytes=1))
    result = dnnp("bound", stdin=tight)
    assert (result.status, result.out) == (4, b"")


def latency_plan(*arguments: str) -> bytes:
    """A plan of the objective latency."""
    result = dnnp("partition", "-k", "3", "--objective", "latency", *arguments, stdin=planned())
    assert result.status == 0, result.err
    return result.out


@pytest.mark.parametrize("execution", ["blocks", "operators"])
def test_latency(execution):
    data = latency_plan("--execution", execution, "--method", "greedy")
    result = dnnp("bound", stdin=data)
    assert result.status == 0, result.err
    record, plan = result.one("bound"), result.one("plan")
    assert record["status"] == "optimal"
    assert record["value"] == pytest.approx(plan["value"])
    assert [t["method"] for t in record["tried"]][-1] in ("exact", record["method"])
    (stated,) = read_bytes(data).get("plan")
    raised = plan["bound"] > stated["bound"]
    assert plan["bound_method"] == (record["method"] if raised else stated["bound_method"])
    assert dnnp("check", stdin=result.out).status == 0


def test_latency_of_blocks_by_ideals():
    result = dnnp(
        "bound", "--method", "ideal", stdin=latency_plan("--execution", "blocks", "-k", "2")
    )
    assert result.status == 0, result.err
    record, plan = result.one("bound"), result.one("plan")
    assert (record["status"], record["method"]) == ("optimal", "ideals of blocks")
    assert record["value"] == pytest.approx(plan["value"])
    placed = latency_plan("--execution", "operators", "--method", "greedy")
    result = dnnp("bound", "--method", "ideal", stdin=placed)
    assert (result.status, result.out) == (2, b"")
    assert "method ideal is for plans of the execution blocks" in result.err


def test_latency_plan_that_lies():
    data = latency_plan("--execution", "operators", "--method", "heft")
    for change, message in (
        (lambda stage: stage.pop("starts_s"), "states 0 starts"),
        (lambda stage: stage["starts_s"].append(1.0), "starts"),
    ):
        result = dnnp("bound", stdin=edited(data, "stage", change))
        assert result.status == 3
        assert message in result.err
    wrong = edited(data, "plan", lambda plan: plan.update(value=plan["value"] + 1))
    assert dnnp("bound", stdin=wrong).status == 3


def test_latency_has_arguments_of_its_own():
    result = dnnp("bound", "--method", "chain", stdin=latency_plan("--method", "greedy"))
    assert (result.status, result.out) == (2, b"")
    assert "method chain is not for plans of the objective latency" in result.err


def test_an_argument_that_does_not_hold():
    data = edited(planned(), "plan", lambda plan: plan.update(validity="free"))
    result = dnnp("bound", "--method", "chain", stdin=data)
    assert (result.status, result.out) == (2, b"")
    assert "--method chain: " in result.err


def test_two_bounds_are_refused():
    lines = dnnp("bound", stdin=planned()).out.splitlines(keepends=True)
    data = b"".join([*lines[:-1], *lines[-2:]])
    result = dnnp("check", stdin=data)
    assert result.status == 3
    assert "a second bound; a stream holds one" in result.err


def test_missing_solver(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("PMIP_HIGHS_LIBRARY", raising=False)
    result = dnnp("bound", "--solver", "highs", stdin=planned())
    assert (result.status, result.out) == (7, b"")
    assert "pip install 'dnnp[highs]'" in result.err


def test_verbose_and_quiet():
    data = planned("uniform")
    lines = dnnp("bound", "-v", stdin=data).err.splitlines()
    said = [line.removeprefix("dnnp-bound: ") for line in lines]
    for name in ("simple", "chain", "ideal"):
        assert any(line.startswith(f"{name}: ") and line.endswith(" s") for line in said)
    assert dnnp("bound", "-q", stdin=data).err == ""


def test_timings():
    record = checked(dnnp("bound", "--timings", stdin=planned()))
    assert all(entry["time_s"] >= 0 for entry in record["tried"])


def test_no_time_at_all():
    result = dnnp("bound", "--time-limit", "0", stdin=planned("uniform"))
    record = checked(result)
    assert [entry["method"] for entry in record["tried"]] == ["simple"]
    assert record["status"] == "proven"


def test_help_explains_every_argument():
    text = " ".join(dnnp("bound", "--help-all").out.decode().split()).replace("- ", "-")
    for argument in BOUNDS.values():
        assert f"{argument.name} {plain(argument.help)}" in text


@pytest.mark.parametrize("method", ["simple", "chain", "node-cut", "pairs", "same-block", "cover"])
def test_certificates_are_verified(method):
    bounded = dnnp("bound", "--method", method, stdin=planned("slice"))
    record = checked(bounded)
    result = dnnp("check", "--certificate", stdin=bounded.out)
    assert result.status == 0, result.err
    assert result.err.endswith(f", bound verified ({record['method']})\n")


def test_large_numbers_survive_the_stream():
    lines = planned().splitlines()
    plan, *stages = (r for r in map(orjson.loads, lines) if r["type"] in ("plan", "stage"))
    record = bound_record(
        plan,
        stages,
        method="x",
        value=1.0,
        validity="ordered",
        tried=[],
        certificate={"argument": "x", "large": [2**80, -(2**80), 2**53 - 1]},
    )
    data = b"\n".join([*lines[:-1], orjson.dumps(record), lines[-1]]) + b"\n"
    (again,) = read_bytes(data).get("bound")
    assert again["certificate"]["large"] == [str(2**80), str(-(2**80)), 2**53 - 1]


CORRUPTED: dict[str, tuple[Callable[[Record], Any], str]] = {
    "digest": (lambda r: r.update(digest="0" * 64), "was proven for another plan"),
    "value": (lambda r: r.update(value=2 * r["value"]), "exceeds the value"),
    "gap": (lambda r: r.update(gap=0.5), "the gap is 0.5, recomputed"),
    "status": (lambda r: r.update(value=r["value"] / 2, gap=0.5), "says that the plan is optimal"),
    "tried": (lambda r: r["tried"][0].update(value=1e9), "which is more than"),
}


@pytest.mark.parametrize("name", CORRUPTED)
def test_the_checker_finds_what_is_wrong(name):
    change, message = CORRUPTED[name]
    good = dnnp("bound", stdin=planned()).out
    result = dnnp("check", stdin=edited(good, "bound", change))
    assert result.status == 3
    assert f"dnnp-check: bound: {message}" in result.err or message in result.err


STALE: dict[str, Callable[[Record], Any]] = {
    "memory": lambda plan: plan["devices"][0].update(memory_bytes=1e6),
    "replicas": lambda plan: plan.update(max_replicas=2),
    "validity": lambda plan: plan.update(validity="free"),
}


@pytest.mark.parametrize("name", STALE)
def test_a_bound_for_other_devices_or_costs_is_stale(name):
    good = dnnp("bound", stdin=planned()).out
    result = dnnp("check", stdin=edited(good, "plan", STALE[name]))
    assert result.status == 3
    assert "bound: was proven for another plan, other devices or another cost model" in result.err


def test_the_digest_does_not_mind_how_numbers_are_written():
    good = dnnp("bound", stdin=planned()).out
    assert b'"bandwidth_bytes_per_s":9.0' in good
    other = good.replace(b'"bandwidth_bytes_per_s":9.0', b'"bandwidth_bytes_per_s":9')
    assert dnnp("check", stdin=other).status == 0


def test_a_bound_older_than_its_plan():
    def reversed_(header: Record) -> None:
        header["provenance"] = header["provenance"][::-1]

    result = dnnp("check", stdin=edited(dnnp("bound", stdin=planned()).out, "header", reversed_))
    assert result.status == 3
    assert "dnnp-partition ran after dnnp-bound, yet the bound records are still" in result.err


LONG = branches(6, 9)
"""A million ideals: the exact search takes minutes."""


def long_plan(folder: Path) -> Path:
    path = folder / "long.dnnp"
    path.write_bytes(
        dnnp("partition", "-k", "5", "--bandwidth", "1", "--method", "slice", stdin=LONG).out
    )
    return path


@pytest.mark.parametrize("method", ["ideal", "exact"])
def test_interrupt(method, tmp_path):
    result = interrupted("bound", "-v", "--method", method, long_plan(tmp_path), after="simple: ")
    assert result.one("bound")["status"] == "interrupted"


def test_time_limit(tmp_path):
    result = dnnp("bound", "--time-limit", "1", long_plan(tmp_path))
    record = checked(result)
    assert record["status"] == "proven"
    assert record["gap"] > 0
