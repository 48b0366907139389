"""No forged number of a plan, its stages or its bound is accepted."""

from __future__ import annotations

import json

import pytest
from fuzz.targets import PIPER

from support import seeds, shapes, training
from support.forgery import accepts, forge, records_in
from support.run import dnnp

STREAMS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "bound": (seeds.encode(seeds.graph_records()), ("partition --method slice", "bound")),
    "single": (seeds.encode(seeds.graph_records()), ("partition --method single",)),
    "replicas": (
        seeds.encode(training.graph_records()),
        ("partition -k 4 --method uniform --max-replicas 2",),
    ),
    "ways": (
        seeds.encode(seeds.graph_records()),
        ("partition -k 4 --allow-replicas",),
    ),
    "tried": (
        seeds.encode(seeds.graph_records()),
        ("partition -k 3 --method uniform,exact",),
    ),
    "blocks": (
        seeds.encode(seeds.graph_records()),
        ("partition --objective latency --execution blocks --method greedy",),
    ),
    "ignored": (
        seeds.encode(seeds.graph_records()),
        ("partition -k 2 --method uniform --memory 10 --memory-mode ignore",),
    ),
    "parallel": (
        json.dumps(PIPER).encode(),
        (
            "import --from piper -",
            "partition --tensor-parallel 2 --data-parallel 2 --recompute auto",
        ),
    ),
    "shared": (shapes.shape_stream("NN"), ("partition --shared-stages 2",)),
    "operators": (
        seeds.encode(seeds.graph_records()),
        ("partition --objective latency --execution operators --method heft",),
    ),
}  # fmt: skip
"""Graphs, and commands that make what is forged."""


@pytest.mark.parametrize("name", STREAMS)
def test_numbers_of_plans(name):
    data, commands = STREAMS[name]
    for words in commands:
        command, *arguments = words.split()
        result = dnnp(command, *arguments, stdin=data)
        assert result.status == 0, result.err
        data = result.out
    records = records_in(data)
    assert accepts(records)
    found = list(forge(name, records, 1, ("plan", "stage", "bound")))
    assert len(found) > 40
    assert [str(one) for one in found if one.accepted and not one.reason] == []
