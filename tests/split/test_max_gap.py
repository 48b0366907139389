"""Gaps that are small enough: `--max-gap`, and the status within_gap."""

from __future__ import annotations

import orjson
import pytest

from support.run import dnnp

GRAPH = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "10", "--seed", "1").out
LARGE = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "320", "--seed", "1").out
SLICED = ("-k", "3", "--bandwidth", "100", "--method", "slice")


def planned(*words: str) -> tuple[bytes, dict, str]:
    result = dnnp("partition", *SLICED, *words, stdin=GRAPH)
    return result.out, result.one("plan"), result.err


def test_a_plan_within_the_gap_says_so_and_is_not_called_optimal() -> None:
    out, plan, said = planned("--max-gap", "0.9")
    assert (plan["status"], plan["max_gap"]) == ("within_gap", 0.9)
    assert 0 < plan["gap"] < 0.9
    assert ", within 90 %, ordered" in said
    assert "optimal" not in said
    assert dnnp("check", stdin=out).status == 0
    shown = dnnp("view", stdin=out).out.decode()
    assert "within 90 %, ordered: bound" in shown


@pytest.mark.parametrize("most", ["0", "0.0001"])
def test_a_larger_gap_is_feasible_as_before(most: str) -> None:
    _, plan, said = planned("--max-gap", most)
    assert plan["status"] == "feasible"
    assert "max_gap" not in plan
    assert ", gap " in said


@pytest.mark.parametrize(
    "lie",
    [{"max_gap": 1e-4}, {"status": "feasible"}, {"bound": 1e-9}, {"status": "optimal"}],
    ids=str,
)
def test_the_checker_compares_the_gap_with_what_is_claimed(lie: dict) -> None:
    out, plan, _ = planned("--max-gap", "0.9")
    forged = plan | lie
    forged["gap"] = (forged["value"] - forged["bound"]) / forged["value"]
    data = out.replace(orjson.dumps(plan), orjson.dumps(forged))
    assert data != out
    result = dnnp("check", stdin=data)
    assert result.status == 3, result.err
    assert "status" in result.err or "claims to be optimal" in result.err


def test_a_bound_that_meets_the_value_makes_it_optimal() -> None:
    words = ("-k", "3", "--bandwidth", "100", "--method", "anneal", "--validity", "ordered")
    data = dnnp("partition", "-q", *words, "--max-gap", "0.9", stdin=GRAPH).out
    plan = dnnp("bound", "-q", stdin=data).one("plan")
    assert plan["status"] == "optimal"
    assert "max_gap" not in plan


def efforts(*words: str) -> tuple[int, dict]:
    """Searches over ideals that `auto` ran on a large graph, and its plan."""
    words = ("-v", "-k", "4", "--bandwidth", "50", "--effort", "0.005", *words)
    result = dnnp("partition", *words, stdin=LARGE)
    return result.err.count("ideals, "), result.one("plan")


def test_auto_ends_once_the_gap_is_small_enough() -> None:
    first, plan = efforts("--max-gap", "0.9")
    assert (first, plan["status"]) == (1, "within_gap")
    both, plan = efforts("--max-gap", "0")
    assert (both, plan["status"]) == (2, "feasible")
