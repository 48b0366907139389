"""Statements without evidence are not claimed: without costs, by other methods or bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dnnp import sweep
from dnnp.core.check import claims
from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.core.methods.schedules import RECIPES, SCHEDULES
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.formats.stream import read_bytes
from dnnp.graph import Graph
from support import seeds, training
from support.forgery import records_in, resealed
from support.run import Result, dnnp

Records = list[dict[str, Any]]

GRAPH = seeds.encode(seeds.graph_records())
NOTHING = "digraph g { a -> b -> c -> d; a -> c }"
ZEROS = "digraph g { a [time_s=0]; b [time_s=0]; a -> b }"
MOVED = "digraph g { a [bytes=1e3]; b [bytes=1e3]; a -> b }"


def piped(data: bytes, *commands: str) -> Result:
    """The last of some commands; the others succeed."""
    for words in commands:
        name, *arguments = words.split()
        result = dnnp(name, *arguments, stdin=data)
        if words is not commands[-1]:
            assert result.status == 0, result.err
        data = result.out
    return result


def check(records: Records, *options: str) -> Result:
    return dnnp("check", *options, stdin=seeds.encode(records))


def changed(data: bytes, kind: str, **fields: Any) -> Records:
    """The records of a stream with fields of one kind changed, or removed by None."""
    records = records_in(data)
    for record in records:
        if record["type"] == kind:
            record |= fields
            for name in [name for name, value in fields.items() if value is None]:
                del record[name]
    return resealed(records)


@pytest.mark.parametrize("graph", [NOTHING, ZEROS])
@pytest.mark.parametrize(
    "words",
    [
        "partition -k 2",
        "partition -k 2 --objective latency",
        "partition -k 2 --method slice,greedy",
        "partition -k 2 --max-gap 0.5",
        "partition -k 2 --allow-replicas",
        "partition -k 2 --data-parallel 2",
        "partition -k 1",
    ],
)
def test_without_costs_nothing_is_optimal(graph: str, words: str) -> None:
    made = piped(graph.encode(), "import --from dot -", words)
    plan = made.one("plan")
    assert plan["status"] == "feasible"
    assert plan["unknown"]["time"] == 1
    assert {x["status"] for x in plan.get("tried", ())} <= {"feasible"}
    assert made.err.count("no costs are known") == 1
    assert "optimal," not in made.err
    assert piped(made.out, "check").status == 0
    for gate in ("--max-gap 0.9", "--max-latency 9999s", "--min-throughput 1"):
        if plan["objective"] == "latency" and gate.startswith("--min"):
            continue
        result = piped(made.out, f"check -q {gate}")
        assert (result.status, "no costs are known" in result.err) == (8, True), gate
    shown = piped(made.out, "view").out.decode()
    assert "gap unknown" in shown
    assert "optimal" not in shown
    for status in ("optimal", "within_gap"):
        result = check(changed(made.out, "plan", status=status))
        assert result.status == 3
        assert "no costs are known" in result.err
    if "parallel" not in plan:
        proof = piped(made.out, "bound")
        assert proof.one("bound")["status"] == "proven"
        assert proof.one("plan")["status"] == "feasible"
        assert piped(proof.out, "check").status == 0
        assert check(changed(proof.out, "bound", status="optimal")).status == 3
    if plan["objective"] != "latency":
        scheduled = piped(made.out, "schedule -n 3")
        assert scheduled.one("schedule")["status"] == "feasible"
        assert "optimal," not in scheduled.err.replace("nothing is optimal", "")
        assert piped(scheduled.out, "check").status == 0
        assert piped(scheduled.out, "check --max-latency 9999s").status == 8
        assert check(changed(scheduled.out, "schedule", status="optimal")).status == 3


def test_without_a_formula_for_anything_nothing_is_optimal() -> None:
    """All that is known of the nodes are the bytes that they move."""
    made = piped(MOVED.encode(), "import --from dot -", "profile", "partition -k 2")
    plan = made.one("plan")
    assert plan["value"] > 0
    assert plan["unknown"]["time"] == 1
    assert plan["status"] == "feasible"
    assert piped(made.out, "check").status == 0
    assert piped(made.out, "check --max-gap 0.5").status == 8


def test_a_sweep_and_its_advice() -> None:
    stream = read_bytes(piped(NOTHING.encode(), "import --from dot -").out, "g")
    plans = [graph.plan for graph in sweep(Graph(stream), (1, 2, 3))]
    assert [plan.status for plan in plans] == ["feasible"] * 3


def test_blocks_without_times() -> None:
    block = {"name": "F", "devices": [0], "time_s": 0}
    placement = json.dumps({"devices": 1, "blocks": [block]}).encode()
    made = piped(placement, "schedule --placement - -n 2")
    assert made.one("schedule")["status"] == "feasible"
    assert made.one("schedule")["repetend"]["status"] == "feasible"
    assert "no costs are known, so nothing is optimal" in made.err
    assert piped(made.out, "check").status == 0
    for lie in ({"status": "optimal"}, {"repetend": {"status": "optimal"}}):
        (schedule,) = (r for r in records_in(made.out) if r["type"] == "schedule")
        lie = {k: schedule[k] | v if isinstance(v, dict) else v for k, v in lie.items()}
        assert check(changed(made.out, "schedule", **lie)).status == 3


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--memory-model", "peak"], 3),
        (["--memory-mode", "hard"], 3),
        (["--memory-mode=hard"], 3),
        (["--mem", "60"], 3),
        (["--memory", "1000"], 0),
        (["--memory=1000"], 0),
        (["--devices", "d.json"], 0),
        ([], 3),
    ],
)
def test_an_option_hides_what_it_overrides_alone(arguments: list[str], status: int) -> None:
    """The memory of a device was changed after the plan was made."""
    records = records_in(piped(GRAPH, "partition --method single").out)
    records[0]["provenance"][-1]["arguments"] = [*arguments, "--method", "single"]
    assert records[1]["type"] == "device"
    assert records[1]["memory_bytes"] == 1000
    records[1]["memory_bytes"] = 1
    assert check(records).status == status


def test_options_of_an_earlier_split_hide_nothing() -> None:
    twice = piped(GRAPH, "partition --memory 900 --method single", "partition --method single")
    records = records_in(twice.out)
    records[1]["memory_bytes"] = 1
    assert check(records).status == 3


def test_count_is_overridden_by_k_alone() -> None:
    records = records_in(piped(GRAPH, "partition -k2 --method single").out)
    assert check(records).status == 0
    records[0]["provenance"][-1]["arguments"] = ["--method", "single"]
    assert check(records).status == 3


CLUSTERS = "partition -k 4 --bandwidth 1 --cluster-size 2 --inner-bandwidth 8 --method single"


def test_a_bound_of_contiguous_clusters_is_no_more_than_stated() -> None:
    made = piped(GRAPH, CLUSTERS, "bound --method simple").out
    assert piped(made, "check --certificate").status == 0
    (plan,) = (r for r in records_in(made) if r["type"] == "plan")
    lie = changed(made, "plan", contiguous_bound=plan["value"])
    result = check(lie)
    assert result.status == 0
    assert "(stated, not checked)" in result.err
    result = check(lie, "--certificate")
    assert result.status == 9
    assert "contiguous_bound" in result.err
    shown = dnnp("view", stdin=seeds.encode(lie)).out.decode()
    assert "stated, not checked: optimal among splits contiguous in clusters" in shown


def test_parallel_plans_that_charge_inputs() -> None:
    graph = training.graph_records()
    inputs = seeds.tensor(9, "input", 4)
    graph.insert(next(i for i, r in enumerate(graph) if r["type"] == "node"), inputs)
    next(r for r in graph if r["type"] == "node")["inputs"].append(9)
    flat = [
        {k: v for k, v in r.items() if k not in ("cluster_size", "inner_bandwidth_bytes_per_s")}
        for r in graph
    ]
    made = piped(seeds.encode(flat), "partition --data-parallel 1 --recompute full")
    assert any(stage.get("recomputed") for stage in made.records("stage"))
    result = check(changed(made.out, "plan", charge_io=True))
    assert result.status == 3
    assert "charge_io is not for parallel plans" in result.err
    assert "Traceback" not in result.err
    assert "in_s" not in result.err


SPLIT = "partition -k 3 --method uniform"
SEVERAL = "partition -k 3 --method uniform,exact"
LATE = "partition --objective latency --execution operators --method heft"


@pytest.mark.parametrize(
    ("commands", "kind", "lie", "status"),
    [
        ([SPLIT], "plan", {"method": "exact"}, 3),
        ([SPLIT], "plan", {"method": "auto"}, 3),
        ([SPLIT], "plan", {"method": "bound-exact"}, 3),
        ([SPLIT], "plan", {"method": "hybrid"}, 3),
        ([SPLIT], "plan", {"method": "my own"}, 9),
        (["partition -k 3"], "plan", {"method": "uniform"}, 3),
        ([SEVERAL], "plan", {"tried": None}, 3),
        ([LATE], "plan", {"bound_method": "exact"}, 3),
        ([LATE], "plan", {"bound_method": "magic"}, 9),
        ([SPLIT, "bound --method simple"], "bound", {"method": "exact"}, 3),
        ([SPLIT, "bound --method simple"], "bound", {"tried": []}, 3),
        ([SPLIT, "schedule -n 2 --method gpipe"], "schedule", {"method": "auto"}, 3),
        ([SPLIT, "schedule -n 2"], "schedule", {"method": "magic"}, 9),
    ],
    ids=str,
)
def test_another_method(commands: list[str], kind: str, lie: dict[str, Any], status: int) -> None:
    made = piped(GRAPH, *commands)
    assert piped(made.out, "check").status == 0
    result = check(changed(made.out, kind, **lie))
    # What is no method at all is not the one that was asked for, either.
    assert result.status == (3 if kind == "plan" and "method" in lie else status), result.err
    assert (status == 9) == ("there is no method" in result.err)


def test_a_plan_by_hand_that_was_bounded() -> None:
    made = piped(seeds.encode(training.planned()), "bound --method node-cut")
    assert made.one("plan")["method"] == "given"
    assert piped(made.out, "check").status == 0


@pytest.mark.parametrize(
    "lie",
    [
        {"bound": 18.0, "gap": 1 / 19},
        {"status": "optimal"},
        {"method": "greedy"},
        {"made_by": "magic"},
        {"gap": 0.0},
    ],
    ids=str,
)
def test_a_method_that_was_tried(lie: dict[str, Any]) -> None:
    made = piped(GRAPH, SEVERAL).out
    (plan,) = (r for r in records_in(made) if r["type"] == "plan")
    first, second = plan["tried"]
    assert first["value"] > second["value"]
    assert first["bound"] < first["value"]
    result = check(changed(made, "plan", tried=[first | lie, second]))
    assert result.status in ((9,) if "made_by" in lie else (3,)), result.err


def test_steps_of_the_search_of_a_certificate_are_not_checkable() -> None:
    graph = "import --synthetic erdos-renyi --nodes 8 --seed 1"
    made = piped(
        b"", graph, "partition -k 3 --bandwidth 10 --method uniform", "bound --method cover"
    ).out
    (bound,) = (r for r in records_in(made) if r["type"] == "bound")
    assert bound["certificate"]["argument"] == "cover"
    assert piped(made, "check --certificate").status == 0
    lie = {**bound["certificate"], "searched": 5}
    assert check(changed(made, "bound", certificate=lie), "--certificate").status == 9


def test_every_method_has_its_name() -> None:
    """Those of the tables, and those that stand in for them."""
    assert set(SPLITS) | set(LATENCY) <= claims.SPLITS
    assert set(BOUNDS) - {"auto"} == claims.BOUNDS
    assert set(SCHEDULES) == claims.SCHEDULES - {"in-turn"}
    assert set(RECIPES) == claims.RECIPES
    assert {"simple", "exact"} <= set(LATENCY_BOUNDS) & claims.PATHS
