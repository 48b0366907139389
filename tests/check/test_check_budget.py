"""Expensive checks: linear where possible, else counted, and not checkable above a limit."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from dnnp.core.certificates import exact
from dnnp.core.certificates.certificate import NOT_CHECKABLE, VERIFIED, check_certificate
from dnnp.core.check import load
from dnnp.core.check.graph import _first_left, _leaves_and_returns, tables_of
from dnnp.core.check.load import Mesh
from dnnp.core.model.device import DeviceClass, Link
from dnnp.core.model.errors import FormatError, LimitError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.formats import rows
from dnnp.formats.graph import graph_of
from support import seeds
from support.graphs import random_stream
from support.problems import chain
from support.run import dnnp

LONG = 240


def star(readers: int) -> Graph:
    """One tensor that all other nodes read."""
    records = [seeds.tensor(0, "activation", 8), seeds.node(0, [], [0], 1.0)]
    records += [seeds.node(v, [0], [], 1.0) for v in range(1, readers + 1)]
    return graph_of(seeds.read_bytes(seeds.encode([seeds.header(), *records])))


def cuts(pairs: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"items": list(pair), **(fields or {"flows": []})} for pair in pairs]


PAIRS = list(combinations(range(0, LONG, 7), 2))
ATTACKS: dict[str, dict[str, Any]] = {
    "pairs": {"argument": "pairs", "units": 1, "cuts": cuts(PAIRS), "cliques": []},
    "pairs, memory": {
        "argument": "pairs", "units": 1, "cuts": cuts(PAIRS, memory=1), "cliques": [],
    },
    "pairs, a clique": {
        "argument": "pairs", "units": 1, "cuts": cuts((v, v) for v in range(LONG)),
        "cliques": [[0, list(range(LONG))]],
    },
    "same-block, pins": {
        "argument": "same-block", "units": 1, "target": 1, "scale": 1, "cuts": [],
        "rows": [["paid", [0, *range(LONG)], 1]] * 9,
    },
    "same-block, totals": {
        "argument": "same-block", "units": 1, "target": 1, "scale": 1, "cuts": [],
        "rows": [["total", [0], 1]] * 999,
    },
    "same-block, stages": {
        "argument": "same-block", "units": 1, "target": 1, "scale": 1, "cuts": [],
        "rows": [["stage", [0, v], 1] for v in range(LONG)],
    },
    "cover": {"argument": "cover", "units": 40, "prices": [[v, 1 + v % 7] for v in range(LONG)]},
    "chain": {"argument": "chain", "units": 9, "path": list(range(LONG)), "weights": {"dev": 1}},
}  # fmt: skip
"""Certificates that are much more work than they are long."""

ON_A_STAR = ("pairs, a clique", "same-block, pins", "same-block, totals", "same-block, stages")


@pytest.mark.parametrize("name", ATTACKS)
def test_work_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MOST_STEPS", 20_000)
    certificate = {"quantum": 1.0, **ATTACKS[name]}
    graph = star(LONG - 1) if name in ON_A_STAR else chain(*[1.0] * LONG)
    owner = "acc" if name in ON_A_STAR else "dev"
    device = DeviceClass(owner, count=4, bandwidth_bytes_per_s=1.0, memory_bytes=0.5)
    record = {"value": certificate["units"], "validity": "ordered", "certificate": certificate}
    report = check_certificate(
        graph, singletons(graph), (device,), CostOptions(memory_model="sum"), record
    )
    assert report.verdict == NOT_CHECKABLE, report.detail
    assert report.detail == "it takes more than 20000 steps to verify"


def test_all_bounds_of_a_stream_share_the_steps() -> None:
    graph = chain(10.0, 10.0)
    certificate = {
        "argument": "simple",
        "quantum": 1.0,
        "units": 10,
        "parts": [{"pass": "all", "kind": "mean", "weights": {"dev": 1}}],
    }
    record = {"value": 10, "validity": "ordered", "certificate": certificate}
    device = DeviceClass("dev", count=2, bandwidth_bytes_per_s=1.0)
    shared = exact.Budget()
    shared.left = 20
    verdicts = [
        check_certificate(
            graph, singletons(graph), (device,), CostOptions(memory_model="sum"), record, shared
        ).verdict
        for _ in range(9)
    ]
    assert verdicts[0] == VERIFIED
    assert verdicts[-1] == NOT_CHECKABLE


@pytest.mark.parametrize("seed", range(60))
def test_the_first_block_that_is_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many searches from single blocks say."""
    monkeypatch.setattr("dnnp.core.check.graph.AT_A_TIME", 3)
    tables = tables_of(graph_of(random_stream(seed, 14)))
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    where = [rng.randrange(count) for _ in range(tables.n)]
    blocks = [[v for v in range(tables.n) if where[v] == b] for b in range(count)]
    before = {v: tables.producers(v) for v in range(tables.n)}
    left = [b for b in range(count) if _leaves_and_returns(blocks[b], before) is not None]
    found = _first_left(before, dict(enumerate(where)), count)
    assert found == (left[0] if left else None)


def test_paths_between_devices_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring: all paths of a device are found at once."""
    names = [f"dev/{i}" for i in range(9)]
    links = [Link(a, b, 1.0, 1.0) for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    plan = Plan(
        (),
        9,
        "x",
        "free",
        0.0,
        0.0,
        "feasible",
        CostOptions(objective="latency"),
        (DeviceClass("dev", count=9),),
        "0" * 64,
        tuple(links),
    )
    monkeypatch.setattr(load, "MOST_STEPS", 40)
    ring = Mesh(plan)
    assert [ring.path(names[0], name).latency for name in names[1:]] == list(range(1, 9))
    with pytest.raises(LimitError, match="not checkable: it takes more than 40 steps"):
        ring.path(names[1], names[0])


def test_too_many_classes_to_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_TIMES", 5)
    records = [seeds.node(v, [], [], 1.0) | {"time_s": {f"c{v}": 1.0}} for v in range(3)]
    with pytest.raises(FormatError, match="3 records are priced for 3 device classes; at most 5"):
        graph_of(seeds.read_bytes(seeds.encode([seeds.header(), *records])))


def test_one_node_with_many_tensors() -> None:
    """Tensors in the tens of thousands, written and read by one node each."""
    many = range(40_000)
    records = [seeds.tensor(i, "activation", 4) for i in many]
    records += [seeds.node(0, [], [*many], 1.0), seeds.node(1, [*many], [], 1.0)]
    result = dnnp("check", stdin=seeds.encode([seeds.header(), *records]))
    assert (result.status, result.err) == (0, "dnnp-check: ok: 2 nodes, 40000 tensors\n")
