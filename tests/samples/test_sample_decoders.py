"""Decoders with caches: valid, of the sizes stated, and generated with by stages."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from dnnp import load, profile, split
from dnnp.generating import generate_stream
from dnnp.options.run import RunOptions
from dnnp.samples.build import CATALOG, make, make_sample, write

NAMES = [name for name, entry in CATALOG.items() if entry.size == "decoder"]


@pytest.mark.parametrize("name", NAMES)
def test_catalog_states_the_right_counts(name: str) -> None:
    entry, sample = CATALOG[name], make_sample(name)
    assert (sample.nodes, sample.parameters) == (entry.nodes, entry.parameters)
    assert len({node.name for node in sample.proto.graph.node}) == sample.nodes


def test_published_sizes() -> None:
    assert CATALOG["llama-405b"].parameters == pytest.approx(405e9, rel=0.01)
    assert 2 * CATALOG["llama-experts"].parameters == pytest.approx(1.4e12, rel=0.01)


@pytest.mark.parametrize("name", ["llama-small", "llama-opset24"])
def test_small_ones_are_valid(name: str) -> None:
    onnx.checker.check_model(make(name), full_check=True)


@pytest.mark.parametrize("name", ["llama-small", "llama-opset24", "llama-int4"])
def test_they_generate(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path, 0)
    phases = ["prompt:seq=8..64", "token:batch=4,past=8..96"]
    plan = split(profile(load(path, phase=phases)), k=2, workload=[(16, 12)], in_flight=8)
    stream = plan.stream()
    generate_stream(stream, RunOptions(generate=12, samples=8, verify=True, chunk=5))
    record = stream.get("generation")[0]
    assert (record["rows"], record["sequences"], record["tokens"]) == (4, 8, 96)
    assert record["ties"] == 0 or name == "llama-int4"  # its products take 8 bits


@pytest.mark.parametrize(("name", "least"), [("llama-405b", 16), ("llama-experts", 28)])
def test_giants_are_planned(tmp_path: Path, name: str, least: int) -> None:
    path = write(name, tmp_path, 0)
    phases = ["prompt:seq=512..2048", "token:batch=8,past=512..4096"]
    graph = load(path, phase=phases)
    assert len(graph.stream().get("state")) == 2 * (126 if name == "llama-405b" else 61)
    plan = split(profile(graph, device=["a100"]), k=64, memory=80e9, workload=[(1024, 256)])
    record = plan.stream().get("plan")[0]
    assert record["gap"] <= 0.05
    assert record["in_flight"] >= 8 * 64
    assert record["tokens_per_s"] > 0
    assert len(plan.stream().get("stage")) >= least
