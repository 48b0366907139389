"""Costs edited in a stream have an effect, or are refused: none is passed over."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import orjson
import pytest
from fuzz.onnx_models import models

from support import seeds
from support.run import Result, dnnp

Record = dict[str, Any]

KINDS: dict[str, tuple[str, ...]] = {
    "nodes": ("profile --device v100",),
    "summed": ("profile --device v100", "coarsen --to 3"),
    "analytic": ("coarsen --to 3", "profile --device v100"),
    "scaled": ("coarsen --to 3", "profile", "profile --mode scaled --device v100"),
}
"""Kind of costs -> commands that make them."""


@cache
def priced(kind: str) -> bytes:
    """A model with such costs."""
    with NamedTemporaryFile(suffix=".onnx") as file:
        file.write(models()["mlp"].SerializeToString())
        file.flush()
        data = dnnp("import", file.name).out
    for command in KINDS[kind]:
        name, *arguments = command.split()
        result = dnnp(name, *arguments, stdin=data)
        assert result.status == 0, result.err
        data = result.out
    return data


def records_of(data: bytes) -> list[Record]:
    return [orjson.loads(line) for line in data.splitlines()]


def encode(records: list[Record]) -> bytes:
    return seeds.encode([r for r in records if r["type"] != "end"])


def units_of(records: list[Record]) -> list[list[int]]:
    """Nodes of every unit: of groups, or single nodes."""
    groups = [r["nodes"] for r in records if r["type"] == "group"]
    return groups or [[r["id"]] for r in records if r["type"] == "node"]


def crossing(records: list[Record]) -> set[int]:
    """Ids of tensors that one unit writes and another one reads."""
    home = {v: u for u, nodes in enumerate(units_of(records)) for v in nodes}
    nodes = [r for r in records if r["type"] == "node"]
    maker = {t: home[r["id"]] for r in nodes for t in r["outputs"]}
    return {t for r in nodes for t in r["inputs"] if maker.get(t, home[r["id"]]) != home[r["id"]]}


def places(records: list[Record]) -> Iterator[tuple[Record, str]]:
    """Objects that hold a cost above 0 of the class that plans use, and its name."""
    moved = crossing(records)
    used = next(r["class"] for r in records if r["type"] == "device")
    for r in records:
        if r["type"] in ("node", "group") and r["time_s"][used]:
            yield r["time_s"], used
        if r["type"] == "node":
            yield from ((r, name) for name in ("flop", "bytes") if r.get(name))
        if r["type"] == "tensor" and r["id"] in moved:
            yield r, "size_bytes"
        if r["type"] == "device" and r["class"] == used:
            yield r, "bandwidth_bytes_per_s"


def alone(records: list[Record], folder: Path) -> Result:
    """Price the split that has every unit in a stage of its own."""
    units = units_of(records)
    file = folder / "split.json"
    file.write_bytes(orjson.dumps(units))
    return dnnp("partition", "-k", str(len(units)), "--eval", file, stdin=encode(records))


def said(result: Result) -> list[Record]:
    """Statements of a plan about itself and its stages."""
    plan = {name: value for name, value in result.one("plan").items() if name != "digest"}
    return [plan, *result.records("stage")]


def edits(count: int, folder: Path) -> Counter[str]:
    """Make so many random edits; returns how many were refused and how many had an effect."""
    found: Counter[str] = Counter()
    base = {kind: said(alone(records_of(priced(kind)), folder)) for kind in KINDS}
    for seed in range(count):
        rng = random.Random(seed)
        kind = rng.choice(list(KINDS))
        records = records_of(priced(kind))
        place, name = rng.choice(list(places(records)))
        place[name] *= rng.choice((0.5, 0.999, 1 + 1e-6, 2.0, 1e6))
        result = alone(records, folder)
        if result.status == 0:
            assert said(result)[1:] != base[kind][1:], (seed, kind, name)
            found["effect"] += 1
        else:
            assert result.status == 3, result.err
            assert "edited" in result.err
            found["refused"] += 1
        assert dnnp("check", stdin=encode(records)).status == result.status
    return found


def test_random_edits(tmp_path):
    found = edits(40, tmp_path)
    assert found["effect"] > 5
    assert found["refused"] > 5


def doubled(kind: str) -> bytes:
    """The recipe of the manual: another time for every node of an operator."""
    records = records_of(priced(kind))
    for record in records:
        if record["type"] == "node" and record["op"] == "MatMul":
            record["time_s"] = {name: 2 * time for name, time in record["time_s"].items()}
    return encode(records)


def value(data: bytes, *options: str) -> float:
    """Value of the plan for one device."""
    result = dnnp("partition", "-k", "1", *options, stdin=data)
    assert result.status == 0, result.err
    return result.one("plan")["value"]


@pytest.mark.parametrize("kind", ["summed", "analytic", "scaled"])
def test_costs_of_nodes_below_groups(kind):
    for command in (("partition", "-k", "2"), ("bound", "-k", "2"), ("check",)):
        result = dnnp(*command, stdin=doubled(kind))
        assert (result.status, result.out) == (3, b"")
        line = next(i for i, r in enumerate(records_of(priced(kind)), 1) if r["type"] == "group")
        assert f"<stdin>:{line}: field '" in result.err
        assert "group 0 " in result.err
        assert "dnnp-partition --reprice takes the sum" in result.err
    result = dnnp("partition", "-k", "1", "--reprice", stdin=doubled(kind))
    assert result.status == 0
    assert "priced again, as the sum of their nodes" in result.err
    used = result.one("stage")["class"]
    total = sum(r["time_s"][used] for r in records_of(doubled(kind)) if r["type"] == "node")
    # Groups whose nodes were left alone keep their own cost.
    assert value(priced(kind)) < result.one("plan")["value"] < total * (1 + 1e-9)
    assert dnnp("check", stdin=result.out).status == 0
    assert value(dnnp("coarsen", stdin=doubled(kind)).out) == pytest.approx(total)


def test_dnnp_profile_prices_anew_whatever_was_edited():
    again = dnnp("profile", "--device", "v100", stdin=doubled("analytic"))
    assert again.status == 0
    assert value(again.out) == value(priced("analytic"))


def test_nothing_to_price_again():
    data = priced("analytic")
    assert value(data, "--reprice") == value(data)


def test_a_time_of_a_group_is_its_own_unless_it_says_otherwise():
    records = records_of(priced("summed"))
    group = next(r for r in records if r["type"] == "group")
    group["time_s"]["v100"] *= 3
    result = dnnp("partition", "-k", "1", stdin=encode(records))
    assert result.status == 3
    assert "but its nodes add up to" in result.err
    del group["cost"]
    assert value(encode(records)) > value(priced("summed"))


def test_work_that_times_were_made_from():
    records = records_of(priced("nodes"))
    node = next(r for r in records if r["type"] == "node" and r.get("flop"))
    node["flop"] *= 1e9
    result = dnnp("partition", "-k", "2", stdin=encode(records))
    assert result.status == 3
    assert "<stdin>:1: field 'work': flop or bytes of nodes were edited" in result.err
    again = dnnp("profile", "--device", "v100", stdin=encode(records))
    assert value(again.out) > value(priced("nodes"))


@pytest.mark.parametrize("kind", ["summed", "analytic"])
def test_work_of_a_group_is_that_of_its_nodes(kind):
    records = records_of(priced(kind))
    next(r for r in records if r["type"] == "group" and r["flop"])["flop"] *= 2
    result = dnnp("check", stdin=encode(records))
    assert result.status == 3
    assert "group 0: flop is " in result.err


def test_digests_do_not_mind_how_numbers_are_written():
    data = priced("analytic")
    records = records_of(data)
    for record in records:
        for name in ("flop", "bytes"):
            if name in record:
                record[name] = int(record[name])
    assert value(encode(records)) == value(data)
