"""The bound of splits with contiguous clusters, beside that of all."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from dnnp.core.bounds.apart import apart_bound
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.auto import solve
from dnnp.formats.bounds import raise_bound
from support.cases import random_case
from support.run import dnnp

GRAPH = dnnp("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "12", "--seed", "2").out
DEVICES = ("-k", "6", "--bandwidth", "20", "--cluster-size", "2", "--inner-bandwidth", "200")
AMONG = "optimal among splits contiguous in clusters"


@pytest.fixture(scope="module")
def made() -> tuple[bytes, dict, str]:
    result = dnnp("partition", *DEVICES, stdin=GRAPH)
    return result.out, result.one("plan"), result.err


def test_what_is_proven_of_the_class_is_said_of_the_class_alone(
    made: tuple[bytes, dict, str],
) -> None:
    out, plan, said = made
    assert plan["bound"] < plan["contiguous_bound"] == plan["value"]
    assert plan["status"] == "feasible"
    assert f", gap 0.55 %, {AMONG}, ordered" in said
    assert f", gap 0.55 %\nstated, not checked: {AMONG}" in dnnp("view", stdin=out).out.decode()
    checked = dnnp("check", stdin=out)
    assert checked.status == 0
    assert f"{AMONG} (stated, not checked)" in checked.err


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"contiguous_bound": 300.0}, "is not between"),
        ({"contiguous_bound": 200.0}, "is not between"),
        ({"contiguous_bound": -1.0}, "is not a number of at least 0"),
        ({"swapped": True}, "a cluster is apart"),
        ({"flat": True}, "for clusters of one size"),
    ],
    ids=str,
)
def test_the_checker_refuses_what_cannot_be(
    made: tuple[bytes, dict, str], lie: dict, complaint: str
) -> None:
    records = [orjson.loads(line) for line in made[0].splitlines()]
    for record in records:
        if record["type"] == "plan":
            record |= {name: lie[name] for name in lie if name in record}
        if lie.get("flat") and record["type"] == "plan":
            for name in ("cluster_size", "inner_bandwidth_bytes_per_s"):
                record["devices"][0].pop(name, None)
        if record["type"] == "stage" and lie.get("swapped"):
            swap = {"1": "2", "2": "1"}
            kind, _, number = record["device"].rpartition("/")
            record["device"] = f"{kind}/{swap.get(number, number)}"
    result = dnnp("check", stdin=b"\n".join(map(orjson.dumps, records)))
    assert result.status == 3
    assert complaint in result.err


def test_a_bound_of_all_that_is_as_large_replaces_it(made: tuple[bytes, dict, str]) -> None:
    _, plan, _ = made
    for value, stays in ((plan["bound"] * 1.001, True), (plan["value"], False)):
        raised = raise_bound(plan, value, "chain")
        assert ("contiguous_bound" in raised) == stays


def test_items_apart_prove_no_more_than_is_true() -> None:
    """Of what the search of all ideals proves of the class; for some graphs more than of all."""
    more = 0
    for seed in range(150):
        case = random_case(seed, 9, comm="sum", max_replicas=1, objective="throughput")
        device, *others = (d for d in case.devices if d.name != "other")
        if device.is_cpu:
            continue
        fast = device.bandwidth_bytes_per_s * (2, 10, 100)[seed % 3]
        clusters = replace(device, count=6, cluster_size=2 + seed % 2)
        clusters = replace(clusters, inner_bandwidth_bytes_per_s=fast)
        problem = case.problem.with_devices(clusters, *others)
        try:
            found = solve(problem, MethodOptions())
        except InfeasibleError:
            continue
        value = problem.value(found.blocks)
        low = apart_bound(problem, 0.0, 2 * value)
        assert low <= value * (1 + 1e-9), seed
        more += low > found.bound * (1 + 1e-9)
    assert more > 1
