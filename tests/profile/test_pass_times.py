"""Time of a pass in a stage besides its nodes: measured on this machine, for its plans alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dnnp import check, load, profile, split
from dnnp.core.runtime.generate import hand_over
from dnnp.core.runtime.generate.loop import Pass, StageRunner
from dnnp.formats.inputs.devices import load_device
from dnnp.graph import Graph
from support.decoder_models import eager_decoder, grouped_decoder

PHASES = ["prompt:seq=4..8", "token:batch=4,past=4..12"]


@pytest.mark.parametrize("states", [0, 5])
@pytest.mark.parametrize("shared", [False, True])
def test_passes_of_next_to_nothing_take_some_time(states: int, *, shared: bool) -> None:
    assert 0 < hand_over.pass_seconds(states, 2, shared=shared) < math.inf


def test_all_rows_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that join one after the other would be laid side by side while times count."""
    passes, run = list[int](), StageRunner.run

    def counted(self: StageRunner, item: Pass) -> dict[str, Any]:
        passes.append(len(item.rows))
        return run(self, item)

    monkeypatch.setattr(StageRunner, "run", counted)
    hand_over.pass_seconds(2, 8, shared=False)
    assert passes == [8] * (2 * 2 * hand_over._TOKENS)


@pytest.mark.parametrize("make", [grouped_decoder, eager_decoder])
def test_it_is_measured_for_as_many_states(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(states: int, rows: int, *, shared: bool) -> float:
        return states + rows / 10 + shared / 100

    monkeypatch.setattr(hand_over, "pass_seconds", told)
    monkeypatch.setattr("dnnp.profiling.devices_of", lambda _: [load_device("cpu-core")])
    make(tmp_path / "m.onnx")
    graph = profile(load(tmp_path / "m.onnx", phase=PHASES), device=["cpu-here"])
    rows = graph.records("phase")
    states, shared = len(graph.records("state")), make is grouped_decoder
    assert [row["pass_s"] for row in rows] == pytest.approx(
        [states + row["rows"] / 10 + (shared and row["name"] == "token") / 100 for row in rows]
    )
    made = split(graph, k=2, workload=[(6, 5)])
    assert check(made).ok
    stream = made.stream()
    assert stream.get("plan")[0]["tpot_s"] > 2 * states
    stream.get("phase")[1]["pass_s"] = 0.0
    assert not check(Graph(stream)).ok
    monkeypatch.undo()
    elsewhere = profile(graph, device=["v100"]).records("phase")
    assert not any("pass_s" in row for row in elsewhere)
