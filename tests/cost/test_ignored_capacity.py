"""`--memory-mode ignore`: what exceeds a capacity is priced, and says that it does."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.check.claims import check_claims
from dnnp.core.check.plan import check_plan
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.auto import solve
from support.cases import random_case
from support.graphs import random_stream, to_bytes
from support.problems import UNBOUNDED
from support.run import Result, dnnp


@given(st.integers(0, 10**6))
def test_the_value_is_that_without_capacities(seed: int) -> None:
    case = random_case(seed, limited=True, memory_mode="ignore", memory_model="sum")
    problem = case.problem
    unlimited = problem.with_devices(*(replace(d, memory_bytes=UNBOUNDED) for d in case.devices))
    unlimited = unlimited.with_options(replace(case.options, memory_mode="hard"))
    try:
        best = solve(unlimited, MethodOptions())
    except InfeasibleError:  # unsupported nodes
        with pytest.raises(InfeasibleError):
            solve(problem.searched, MethodOptions())
        return
    plan = problem.plan(problem.own(solve(problem.searched, MethodOptions()).blocks))
    assert plan.value == pytest.approx(unlimited.value(best.blocks))
    room = {d.name: UNBOUNDED if d.is_cpu else d.memory_bytes for d in case.devices}
    over = max(stage.memory_bytes - room[stage.device_class] for stage in plan.stages)
    assert (plan.status == "infeasible") == (over > 0)
    assert plan.excess_bytes == max(over, 0.0)
    assert check_plan(case.graph, case.units, plan).violations == ()
    assert [*check_claims(plan)] == []


def split(*words: str) -> Result:
    """A chain of 6 nodes of 10 bytes each on two devices of 25."""
    stream = random_stream(3, 6, memory=True)
    for node in stream.get("node"):
        node["memory_bytes"] = 10.0
    return dnnp("partition", "-k", "2", "--memory", "25", *words, stdin=to_bytes(stream))


@pytest.mark.parametrize("words", [(), ("--objective", "latency"), ("--method", "local-search")])
def test_command(words: tuple[str, ...]) -> None:
    refused = split(*words)
    assert refused.status == 4
    done = split(*words, "--memory-mode", "ignore")
    assert done.status == 0
    assert "the split is infeasible: a device needs " in done.err
    plan = done.one("plan")
    held: dict[str, float] = {}
    for stage in done.records("stage"):
        held[stage["device"]] = held.get(stage["device"], 0.0) + stage["memory_bytes"]
    assert (plan["status"], plan["memory_mode"]) == ("infeasible", "ignore")
    assert plan["excess_bytes"] == max(held.values()) - 25
    checked = dnnp("check", stdin=done.out)
    assert (checked.status, f"infeasible by {plan['excess_bytes']:g} B" in checked.err) == (
        0,
        True,
    )
    bounded = dnnp("bound", "--time-limit", "2", stdin=done.out)
    assert bounded.one("plan")["status"] == "infeasible"
    assert dnnp("check", stdin=bounded.out).status == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "feasible"}, "lacks memory"),
        ({"excess_bytes": 1.0}, "its devices lack"),
        ({"memory_mode": "hard"}, "needs"),
    ],
)
def test_a_plan_that_hides_it_is_found(change: dict[str, object], said: str) -> None:
    lines = split("--memory-mode", "ignore").out.splitlines()
    changed = []
    for line in lines:
        record = json.loads(line)
        changed.append(json.dumps(record | change if record["type"] == "plan" else record))
    checked = dnnp("check", stdin="\n".join(changed).encode())
    assert checked.status in (3, 4)
    assert said in checked.err


def test_what_fits_is_not_marked() -> None:
    plan = split("--memory-mode", "ignore", "--memory", "60").one("plan")
    assert plan["status"] == "optimal"
    assert "excess_bytes" not in plan
    assert math.isfinite(plan["value"])


def test_it_says_nothing_about_ways() -> None:
    done = split("--memory-mode", "ignore", "--allow-replicas")
    assert (done.status, "--allow-replicas finds what fits" in done.err) == (
        UsageError.exit_status,
        True,
    )
