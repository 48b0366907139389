"""Confidence intervals of a plan's value, by hand, and as the checker has them."""

from __future__ import annotations

from typing import Any

import pytest

from dnnp.formats.spread import plan_spread
from dnnp.formats.stream import Stream


def stream(nodes: list[dict[str, Any]], groups: list[dict[str, Any]], **header: object) -> Stream:
    """A stream of these records."""
    numbered = [{"type": "node", "id": i, **node} for i, node in enumerate(nodes)]
    return Stream(dict(header), {"node": numbered, "group": groups})


def priced(time_s: float, spread: float | None) -> dict[str, Any]:
    return {"time_s": {"cpu": time_s}} | ({} if spread is None else {"spread": spread})


NODES = [priced(1.0, 0.1), priced(3.0, 0.02), priced(6.0, 0.3), priced(0.0, None)]
STAGES = [
    {"class": "cpu", "nodes": [0, 1, 3], "load_s": 7.0},
    {"class": "cpu", "nodes": [2], "load_s": 6.0},
]


def test_the_stage_with_the_largest_load_counts() -> None:
    found = plan_spread(stream(NODES, [], measured={}), {"objective": "throughput"}, STAGES)
    assert found == pytest.approx((1.0 * 0.1 + 3.0 * 0.02) / 4.0)
    found = plan_spread(stream(NODES, [], measured={}), {"objective": "latency"}, STAGES)
    assert found == pytest.approx((1.0 * 0.1 + 3.0 * 0.02 + 6.0 * 0.3) / 10.0)


def test_groups_count_instead_of_their_nodes() -> None:
    groups = [{"nodes": [0, 1], **priced(2.0, 0.05)}, {"nodes": [3], **priced(0.0, None)}]
    groups += [{"nodes": [2], **priced(6.0, None)}]
    found = plan_spread(stream(NODES, groups, measured={}), {"objective": "throughput"}, STAGES)
    assert found == pytest.approx(0.05)
    # A group that was made later is known as well as its nodes.
    found = plan_spread(stream(NODES, groups, measured={}), {"objective": "latency"}, STAGES)
    assert found == pytest.approx((2.0 * 0.05 + 6.0 * 0.3) / 8.0)


def test_what_is_not_known() -> None:
    plan = {"objective": "throughput"}
    assert plan_spread(stream(NODES, []), plan, STAGES) is None
    assert plan_spread(stream(NODES, [], measured={}), plan, []) is None
    unknown = [priced(1.0, None), *NODES[1:]]
    assert plan_spread(stream(unknown, [], measured={}), plan, STAGES) is None
    nothing = [priced(0.0, 0.1)] * 4
    assert plan_spread(stream(nothing, [], measured={}), plan, STAGES) is None
