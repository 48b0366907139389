"""The checker agrees with the cost model on any split, good or bad, under every option."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from support import seeds
from support.graphs import random_stream, to_bytes
from support.run import dnnp


@pytest.mark.parametrize("seed", range(60))
def test_random_splits(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    n = random_.randint(2, 14)
    stream = random_stream(seed, n, params=seed % 3 > 0)
    stream.records["device"] = [
        {"type": "device", "class": "dev", "kind": "accelerator", "count": 3}
    ]
    nodes = stream.get("node")
    if seed % 4 == 0:
        for record in nodes:
            record["memory_bytes"] = random_.random() * 50
    if seed % 5 == 0:
        for record in nodes:
            record["backward"] = record["id"] > n // 2
    units = [[v] for v in range(n)]
    if seed % 2:
        units = [list(range(v, min(v + 2, n))) for v in range(0, n, 2)]
        stream.records["group"] = [
            seeds.group(g, unit, **({"time_s": {"dev": random_.random()}} if g % 2 else {}))
            for g, unit in enumerate(units)
        ]
    parts: list[list[int]] = [[], [], []]
    for unit in units:
        random_.choice(parts).extend(unit)
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps([part for part in parts if part]))
    options = ["--comm", random_.choice(("sum", "overlap", "duplex"))]
    options += ["--bandwidth", str(random_.choice((0.3, 7.0, 1e9)))]
    options += ["--charge-io"] if random_.random() < 0.5 else []
    if random_.random() < 0.5:
        options += ["--memory", str(random_.choice((10, 60, 500))), "--memory-mode", "overflow"]
    if seed % 5:
        options += ["--memory-model", random_.choice(("sum", "peak"))]
    planned = dnnp("partition", "--eval", file, *options, stdin=to_bytes(stream))
    assert planned.status == 0, planned.err
    checked = dnnp("check", "--json", stdin=planned.out)
    assert checked.status == 0, checked.err
    summary = orjson.loads(checked.out)
    plan = planned.one("plan")
    assert summary["validity"] == plan["validity"]
    assert summary["value"] == pytest.approx(plan["value"], rel=1e-9)


def test_importers_and_solvers_on_workloads(shared_workloads: Path) -> None:
    paths = sorted((shared_workloads / "throughput").glob("*.json"))[:4]
    assert len(paths) == 4
    for path in paths:
        planned = dnnp("partition", "-q", stdin=dnnp("import", path).out)
        assert planned.status == 0, planned.err
        assert dnnp("check", stdin=planned.out).status == 0
