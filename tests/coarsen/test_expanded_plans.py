"""A plan of groups is a plan of their members: the same objective, and valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from dnnp.core.model.graph import singletons
from dnnp.formats.graph import digest_of, graph_of
from dnnp.formats.stream import read_bytes
from dnnp.samples.build import write
from support.graphs import random_stream, to_bytes
from support.run import Result, dnnp

WAYS = (
    ("--rules", "ort-cpu"), ("--chains",), ("--to", "7"), ("--layers", "--depth", "1"),
    ("--rules", "ort-cpu", "--chains", "--max-share", "0.05", "--to", "9"),
)  # fmt: skip


def good(result: Result) -> Result:
    assert result.status == 0, result.err
    return result


def assert_same_when_expanded(priced: bytes, way: tuple[str, ...], folder: Path, k: int) -> None:
    """Plan the groups; judge the split of their members on the stream without groups."""
    coarse = good(dnnp("coarsen", *way, stdin=priced))
    assert all(r["cost"] == "summed" for r in coarse.records("group"))
    plan = good(dnnp("partition", "-k", str(k), "--effort", "0.2", stdin=coarse.out))
    good(dnnp("check", stdin=plan.out))
    split = folder / "split.json"
    good(dnnp("export", "--to", "msr-split", "-o", split, stdin=plan.out))
    fine = good(dnnp("partition", "-k", str(k), "--eval", split, stdin=priced))
    good(dnnp("check", stdin=fine.out))
    assert fine.records("group") == []
    assert fine.one("plan")["value"] == pytest.approx(plan.one("plan")["value"], rel=1e-9)
    assert fine.one("plan")["validity"] == plan.one("plan")["validity"]
    stages = zip(plan.records("stage"), fine.records("stage"), strict=True)
    for mine, other in stages:
        assert sorted(mine["nodes"]) == sorted(other["nodes"])
        # Peak memory differs: groups run whole, which is another order of the same nodes.
        for part in ("load_s", "in_s", "compute_s", "out_s"):
            assert mine[part] == pytest.approx(other[part], rel=1e-9, abs=1e-12)
    good(dnnp("check", stdin=expanded(plan.out)))


def expanded(planned: bytes) -> bytes:
    """The plan as it is, in its order of nodes, without the groups it was made of."""
    stream = read_bytes(planned)
    del stream.records["group"]
    graph = graph_of(stream)
    stream.get("plan")[0]["digest"] = digest_of(graph, singletons(graph))
    return to_bytes(stream)


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed, way, tmp_path):
    stream = random_stream(seed, 40, params=True)
    for node in stream.get("node"):
        node["name"] = f"/{node['id'] // 5}/n"
    assert_same_when_expanded(to_bytes(stream), way, tmp_path, 3)


@pytest.mark.parametrize("way", [("--rules", "ort"), *WAYS], ids=" ".join)
def test_a_model(way, tmp_path):
    path = write("gnmt-small", tmp_path)
    priced = good(dnnp("profile", stdin=good(dnnp("import", path)).out)).out
    assert_same_when_expanded(priced, way, tmp_path, 4)
