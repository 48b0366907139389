"""Rounds of planning, running and learning end at a plan that repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import dnnp
from dnnp import Graph
from dnnp.fits.runs import operators_of
from dnnp.formats.plan import plan_digest
from dnnp.samples import build
from dnnp.samples.fixed_point import Round, fixed_point, main

TRUE = {"MatMul": 1.6, "Add": 0.5, "Conv": 0.7, "DepthwiseConv": 2.5, "Gather": 4.0, "TopK": 3.0}
"""Ratio of real times of operators to the formula's; 1.2 where nothing is said."""
OTHERS = 1.2


def true_run(planned: Graph) -> Graph:
    """A run of a plan on a machine whose operators cost what `TRUE` says; transfers are free."""
    stream = planned.stream()
    operators = operators_of(stream)
    base = {r["id"]: r.get("base_s", r["time_s"])["cpu-core"] for r in stream.get("node")}
    rows = []
    for i, stage in enumerate(stream.get("stage")):
        measured = 0.0
        for group in stream.get("group"):
            if group["nodes"][0] in stage["nodes"]:
                own = sum(base[v] for v in group["nodes"])
                true = sum(base[v] * TRUE.get(operators[v], OTHERS) for v in group["nodes"])
                time = group.get("base_s", group["time_s"])["cpu-core"]
                measured += time * true / own if own else 0.0
        row = {"stage": i, "device": stage["device"], "predicted_s": stage["load_s"]}
        rows.append({**row, "measured_s": measured})
    record = {"type": "run", "mode": "pipeline", "provider": "cpu", "samples": 1, "stages": rows}
    record["digest"] = plan_digest(stream.get("plan")[0], stream.get("stage"))
    stream.replace("run", [record])
    return Graph(stream)


def rounds_of(name: str, folder: Path, k: int = 2) -> tuple[list[Round], bool]:
    groups = dnnp.coarsen(dnnp.load(build.write(name, folder)))

    def plan(files: Sequence[Path]) -> Graph:
        return dnnp.split(dnnp.profile(groups, from_run=[str(path) for path in files]), k=k)

    return fixed_point(plan, true_run, folder)


@pytest.mark.parametrize("name", ["moe-small", "mobilenet-v2-small", "two-tower-small"])
def test_rounds_end_at_a_plan_that_holds(name: str, tmp_path: Path) -> None:
    rounds, fixed = rounds_of(name, tmp_path)
    assert fixed
    assert abs(rounds[0].error) > 0.1
    assert abs(rounds[-1].error) < 0.02
    assert rounds[-1].measured_s <= 1.001 * min(r.measured_s for r in rounds)


def test_one_machine_tells_of_other_models(tmp_path: Path) -> None:
    ran, _ = rounds_of("two-tower-small", tmp_path)
    ran[-1].graph.save(tmp_path / "run.dnnp")
    groups = dnnp.coarsen(dnnp.load(build.write("bert-small", tmp_path)))
    off = []
    for files in ([], [str(tmp_path / "run.dnnp")]):
        planned = dnnp.split(dnnp.profile(groups, from_run=files), k=2)
        stages = true_run(planned).runs[0]["stages"]
        off.append(max(abs(s["predicted_s"] / s["measured_s"] - 1) for s in stages))
    assert off[1] < 0.3 * off[0]


def test_a_circle_is_no_fixed_point(tmp_path: Path) -> None:
    groups = dnnp.profile(dnnp.coarsen(dnnp.load(build.write("gnmt-small", tmp_path))))
    plans = [true_run(dnnp.split(groups, k=k)) for k in (2, 3)]
    rounds, fixed = fixed_point(lambda files: plans[len(files) % 2], lambda graph: graph, tmp_path)
    assert (len(rounds), fixed) == (3, False)
    assert fixed_point(lambda _: plans[0], lambda graph: graph, tmp_path, 1)[1] is False


def test_the_command_plans_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, result = build.write("gnmt-small", tmp_path), tmp_path / "best.dnnp"
    assert main([str(model), "--rounds", "2", "-n", "4", "-o", str(result)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["round", "predicted", "measured", "error"]
    assert lines[-1] in ("the plan repeats", "no fixed point")
    records = [json.loads(line) for line in result.read_bytes().splitlines()]
    assert any(r["type"] == "run" for r in records)
    assert main([str(tmp_path / "absent.onnx")]) == 1
    assert "absent.onnx" in capsys.readouterr().err
