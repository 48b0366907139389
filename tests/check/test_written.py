"""Streams of commands pass the checker: earlier failures, and a few of the random runs."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from tools import written

from support import seeds
from support.run import Result, dnnp

Record = dict[str, Any]

FREE = {"type": "device", "class": "a", "kind": "accelerator", "count": 1}


def scheduled(blocks: list[dict[str, Any]], *words: str, **device: Any) -> Result:
    """The schedule of blocks on one device more than they name, or a refusal."""
    devices = [{"name": f"d{i}", **device} for i in range(3)]
    content = json.dumps({"devices": devices, "blocks": blocks}).encode()
    return dnnp("schedule", "--placement", "-", *words, stdin=content)


def block(name: str, memory: float, after: str = "", time_s: float = 1, **home: Any) -> Record:
    where = home or {"devices": [0]}
    waits = [after] if after else []
    return {"name": name, "time_s": time_s, "memory_bytes": memory, "after": waits, **where}


@pytest.mark.parametrize("method", ["exact", "ideal", "simple", "auto"])
@pytest.mark.parametrize("zero", [True, False])
def test_bounds_of_latency(method: str, zero: bool) -> None:
    """One argument alone proves nothing above 0, or the plan takes no time."""
    records = [
        seeds.header(provenance=[]),
        FREE | {"bandwidth_bytes_per_s": 0.3, "memory_bytes": 8},
        {"type": "device", "class": "b", "kind": "cpu", "count": 2},
        seeds.tensor(0, "input", 5),
        seeds.tensor(1, "activation", 5),
        seeds.tensor(2, "activation", 1),
        seeds.node(0, [0], [1], 1.0) | {"time_s": {"a": 0.0, "b": 0.0 if zero else 1.0}},
        seeds.node(1, [1], [2], 1.0) | {"time_s": {"a": 0.0 if zero else 2.0, "b": 0.0}},
    ]
    words = ("--objective", "latency", "--execution", "blocks", "--invocations", "2")
    made = dnnp("partition", *words, stdin=seeds.encode(records))
    proof = dnnp("bound", "--method", method, stdin=made.out)
    bound = proof.one("bound")
    assert bound["method"] in [entry["method"] for entry in bound["tried"]]
    result = dnnp("check", stdin=proof.out)
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    "blocks",
    [
        [block("F", 2), block("B", -2, "F", devices=[1])],
        [block("F", 2), block("B", -2, "F", turns=[[0], [1]])],
        [block("F", 2, turns=[[0], [1]]), block("B", -2, "F", turns=[[1], [0]])],
        [block("F", 2), block("B", -3, "F")],
    ],
)
def test_memory_is_freed_where_it_was_taken(blocks: list[dict]) -> None:
    result = scheduled(blocks, "-n", "3")
    assert result.status == 3
    assert "more on d" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("method", ["auto", "optimal", "tessel", "sequential", "gpipe"])
def test_a_block_that_fits_once_another_has_freed(method: str) -> None:
    """It alone needs 9 bytes with what is always held; 3 of these are freed before."""
    blocks = [block("X", -3), block("Y", 6, "X"), block("Z", -3, "Y")]
    made = scheduled(blocks, "-n", "3", "--method", method, memory_bytes=7, fixed_bytes=3)
    assert made.status == 0, made.err
    assert dnnp("check", stdin=made.out).status == 0
    blocks = [block("Y", 6), block("Z", -6, "Y")]
    alone = scheduled(blocks, "-n", "3", "--method", method, memory_bytes=7, fixed_bytes=3)
    assert alone.status == 4
    assert "block 'Y' alone needs 9 B" in alone.err


@pytest.mark.parametrize("words", [("--unroll", "2"), ("--pareto",), ()])
def test_memory_that_grows_with_every_micro_batch(words: tuple[str, ...]) -> None:
    """It counts with what the device always holds, in the figure and in its bound."""
    blocks = [block("F", 0, time_s=0, turns=[[0, 1], [0]]), block("B", 1, "F")]
    made = scheduled(blocks, "-n", "4", *words, fixed_bytes=2)
    assert made.status == 0, made.err
    repetend = made.one("schedule")["repetend"]
    assert repetend["memory_bytes"] == repetend["memory_bound_bytes"] == 2
    result = dnnp("check", stdin=made.out)
    assert result.status == 0, result.err


@pytest.mark.parametrize("kind", written.KINDS)
def test_some_random_runs(kind: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        data, steps = written.KINDS[kind][0](random.Random(f"{kind} {seed}"))
        assert list(written.faults(data, steps, counts)) == [], (kind, seed)
    assert counts["check 0"] > 0
