"""Views of plans that generate: rates, sequences, caches, and what a run measured."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest

from dnnp import check, split, view
from dnnp.core.model.errors import FormatError, GateError
from dnnp.core.view.facts import GENERATES, Facts, generation_rows
from dnnp.formats.plan import plan_digest
from dnnp.graph import Graph
from dnnp.viewing import read_facts
from support.generating import BANDWIDTH, Decoder, random_decoder
from support.graphs import random_stream

WORKLOAD = (8, 6)
RAN: dict[str, Any] = {
    "type": "generation", "sequences": 5, "tokens": 30, "rows": 2, "in_flight": 4,
    "tokens_per_s": 12345.6, "ttft_p50_s": 0.25, "ttft_p99_s": 0.5, "tpot_p50_s": 0.001,
    "tpot_p99_s": 0.002,
}  # fmt: skip


def planned(seed: int, ran: bool = False) -> Graph:
    stream = random_decoder(seed, phased=True)
    made = split(Graph(stream), k=2, in_flight=4, workload=[WORKLOAD], bandwidth=BANDWIDTH)
    stream = made.stream()
    if ran:
        digest = plan_digest(stream.get("plan")[0], stream.get("stage"))
        stream.records["generation"] = [{**RAN, "digest": digest}]
    return Graph(stream)


def facts_of(seed: int, ran: bool = False) -> Facts:
    return read_facts(planned(seed, ran).stream())


def rows(graph: Graph, table: str) -> list[dict[str, str]]:
    text = view(graph, as_="csv", table=table).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_caches_of_stages_against_plain_sums() -> None:
    compared = 0
    for seed in range(1, 20):
        decoder = Decoder(random_decoder(seed, phased=True), 4, sum(WORKLOAD), WORKLOAD)
        facts = facts_of(seed)
        for part in facts.parts:
            nodes = set(part.stage.nodes)
            held = sum(held for users, held in decoder.states if users & nodes)
            assert part.cache_bytes == pytest.approx(held), seed
            assert part.cache_bytes <= part.stage.memory_bytes
            compared += held > 0
    assert compared > 12


def test_rates_and_caches_in_text() -> None:
    graph = planned(1, ran=True)
    plan = graph.plan
    assert plan is not None
    lines = view(graph).decode().splitlines()
    assert all(len(line) <= 100 and not line.endswith("…") for line in lines)
    assert any(line.endswith(f"a sequence, {plan.tokens_per_s:.4g} tokens/s") for line in lines)
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == ["generates"])
    found = {line[:20].strip(): line[20:].split() for line in lines[at + 1 : at + 6]}
    assert found["tokens/s"] == [f"{plan.tokens_per_s:.4g}", "12346"]
    assert found["TTFT"][-4:] == ["250", "ms", "500", "ms"]
    assert found["TPOT"][-4:] == ["1", "ms", "2", "ms"]
    assert found["sequences under way"] == ["4", "4"]
    assert found["sequences a pass"] == ["2", "2"]
    head = next(line for line in lines if line.startswith("stage "))
    assert head.split() == ["stage", "device", "layers", "load", "memory", "cache"]
    assert f", {plan.tokens_per_s:.4g} tokens/s;" in view(graph, as_="svg").decode()
    assert f"{plan.tokens_per_s:.4g} tokens/s" in view([graph, graph], width=200).decode()


def test_what_was_planned_alone() -> None:
    cells = generation_rows(facts_of(1))
    assert len(cells) == 5
    assert all(len(row) == len(GENERATES) for row in cells)
    assert {row[2] for row in cells} == {"-"}


def test_rates_in_tables() -> None:
    graph = planned(1, ran=True)
    plan = graph.plan
    assert plan is not None
    (row,) = rows(graph, "plans")
    for name in ("tokens_per_s", "ttft_s", "tpot_s", "in_flight"):
        assert float(row[name]) == graph.records("plan")[0][name] == getattr(plan, name)
    caches = [float(row["cache_bytes"]) for row in rows(graph, "stages")]
    assert caches == [part.cache_bytes for part in facts_of(1).parts]
    assert sum(caches) > 0
    (row,) = rows(graph, "generation")
    assert {name: float(row[name]) for name in RAN.keys() - {"type"}} == {
        name: value for name, value in RAN.items() if name != "type"
    }
    assert rows(planned(1), "generation") == []


def test_an_interruption_is_shown_and_no_gate_takes_its_figures() -> None:
    stream = planned(1, ran=True).stream()
    assert "interrupted" not in view(Graph(stream)).decode()
    gates: dict[str, Any] = {"min_tokens_per_s": 1.0, "max_ttft": 1.0, "max_tpot": 1.0}
    assert [gate.holds for gate in check(Graph(stream), measured=True, **gates).gates] == [True] * 3
    with pytest.raises(GateError, match=r"^its rate is 12345\.6 tokens/s, below 99999 \("):
        check(Graph(stream), measured=True, min_tokens_per_s=99999)
    stream.records["generation"][0]["interrupted"] = True
    text = view(Graph(stream)).decode()
    assert re.search(r"^interrupted after +5 sequences$", text, re.MULTILINE)
    assert rows(Graph(stream), "generation")[0]["interrupted"] == "1"
    for name, limit in gates.items():
        with pytest.raises(FormatError, match=r"the generation was interrupted"):
            check(Graph(stream), measured=True, **{name: limit})


def test_other_plans_say_nothing_of_it() -> None:
    graph = split(Graph(random_stream(3, 12)), k=2)
    plan = graph.plan
    assert plan is not None
    assert (plan.tokens_per_s, plan.ttft_s, plan.tpot_s, plan.in_flight) == (None,) * 4
    assert generation_rows(read_facts(graph.stream())) == []
    text = view(graph).decode()
    assert "generates" not in text
    assert "cache" not in text
    assert {row["cache_bytes"] for row in rows(graph, "stages")} == {"0.0"}
