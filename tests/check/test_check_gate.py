"""dnnp-check as a gate of scripts: --max-gap, and what --json says of a plan."""

from __future__ import annotations

import orjson
import pytest

from support.graphs import random_stream, to_bytes
from support.run import dnnp
from support.seeds import encode, graph_records

GRAPH = to_bytes(random_stream(3, 7))


def planned(method: str) -> bytes:
    """A stream with a plan by this method."""
    plan = dnnp("partition", "-k", "3", "--method", method, stdin=GRAPH)
    assert plan.status == 0, plan.err
    return plan.out


def test_what_json_says_of_a_plan() -> None:
    data = planned("uniform")
    record = next(r for r in map(orjson.loads, data.splitlines()) if r["type"] == "plan")
    summary = orjson.loads(dnnp("check", "--json", stdin=data).out)
    assert summary["gap"] == pytest.approx(record["gap"])
    assert 0 < summary["gap"] < 1
    names = ("bound", "status", "method", "objective")
    assert {name: summary[name] for name in names} == {name: record[name] for name in names}


def test_plans_hold_numbers_as_doubles() -> None:
    records = graph_records()
    next(r for r in records if r["type"] == "device")["memory_bytes"] = 2**63 - 1
    plan = dnnp("partition", "--method", "uniform", stdin=encode(records))
    assert plan.status == 0
    assert dnnp("check", "-q", stdin=plan.out).err == ""


def test_gaps_above_the_limit_have_a_status_of_their_own() -> None:
    data = planned("uniform")
    gap = orjson.loads(dnnp("check", "--json", stdin=data).out)["gap"]
    assert dnnp("check", "--max-gap", gap, stdin=data).status == 0
    result = dnnp("check", "-q", "--max-gap", gap / 2, stdin=data)
    assert result.status == 8
    assert result.err == f"dnnp-check: the gap is {gap:.3g}, above {gap / 2:g} (--max-gap)\n"
    assert dnnp("check", "--max-gap", "0", stdin=planned("exact")).status == 0


def test_with_a_certificate_the_proven_gap_counts() -> None:
    """The mean load proves less than slicing reaches."""
    bound = dnnp("bound", "--method", "simple", stdin=planned("slice"))
    result = dnnp("check", "--certificate", "--json", stdin=bound.out)
    summary = orjson.loads(result.out)
    assert result.status == 0
    proven = next(r for r in map(orjson.loads, bound.out.splitlines()) if r["type"] == "bound")
    assert summary["bound"] == proven["value"]
    assert summary["gap"] == pytest.approx(proven["gap"])
    limit = summary["gap"] / 2
    assert dnnp("check", "--certificate", "--max-gap", limit, stdin=bound.out).status == 8


def test_what_is_not_verified_has_no_gap() -> None:
    bound = dnnp("bound", "--method", "exact", stdin=planned("slice"))
    result = dnnp("check", "--certificate", "--json", "--max-gap", "1", stdin=bound.out)
    assert result.status == 9
    assert orjson.loads(result.out)["gap"] is None


def test_no_plan_no_gap() -> None:
    result = dnnp("check", "--max-gap", "0.1", stdin=GRAPH)
    assert result.status == 3
    assert "no plan record, so no gap" in result.err
    broken = planned("uniform").replace(b'"gap":0.', b'"gap":0.0', 1)
    assert dnnp("check", "--max-gap", "1", stdin=broken).status == 3


def test_what_is_proven_in_whole_quanta_has_no_gap() -> None:
    """A certificate proves the optimum up to the rounding of its quanta."""
    bound = dnnp("bound", "--method", "ideal", stdin=planned("slice"))
    result = dnnp("check", "--certificate", "--max-gap", "0", stdin=bound.out)
    assert result.status == 0, result.err
    assert ", gap 0, bound verified (ideal)" in result.err
