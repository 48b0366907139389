"""The simulation for Tessel: costs, cuts, transfers, and the smallest of each figure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dnnp.formats.inputs.placement import read_placement
from dnnp.samples import build
from dnnp.samples.models import gpt
from dnnp.samples.papers import tessel_figures
from dnnp.samples.papers.tessel import main
from dnnp.samples.papers.tessel_figures import moves_of, replay
from dnnp.samples.papers.tessel_plans import (
    FLOP_PER_S,
    GPTS,
    NETWORK_BYTES_PER_S,
    NVLINK_BYTES_PER_S,
    PRINTED,
    ROOM_BYTES,
    How,
    Layer,
    Model,
    Stage,
    cut,
    flava,
    held,
    models,
    mt5,
    placement,
    sending_s,
    summing_s,
    times_s,
    transformer,
)
from dnnp.samples.papers.tessel_runs import Answer, answer
from dnnp.samples.weights import save
from support.run import dnnp


def test_parameters_of_table_3() -> None:
    """As printed, but for the words of the smallest mT5, which the authors' script doubles."""
    for name, printed in PRINTED.items():
        for model, billions in zip(models(name), printed, strict=True):
            assert model.parameters / 1e9 == pytest.approx(billions, rel=0.035)
    assert mt5(4, 48, 1024, 16, 512_000).parameters / 1e9 == pytest.approx(1.23, rel=0.01)
    assert len(GPTS) == 4


def test_costs_by_hand() -> None:
    layer = transformer(2048, 4096, 32)
    assert layer.flop == 24 * 2048 * 4096**2 + 4 * 2048**2 * 4096
    assert layer.parameters == 12 * 4096**2
    assert layer.summed_bytes == 2 * 2048 * 4096 * 2
    decoder = transformer(1024, 512, 8, 1024)
    assert decoder.flop - transformer(1024, 512, 8).flop == 8 * 1024 * 512**2 + 4 * 1024**2 * 512
    assert decoder.parameters == 16 * 512**2
    assert times_s([layer], 1, 2) == pytest.approx(
        (2 * layer.flop / FLOP_PER_S, 6 * layer.flop / FLOP_PER_S)
    )
    sums = 2 * 3 / 4 * layer.summed_bytes / NVLINK_BYTES_PER_S
    work = layer.flop / 4 / FLOP_PER_S
    assert times_s([layer], 4, 1) == pytest.approx((work + sums, 3 * work + 2 * sums))
    near, far = 2 * 7 / 8 * 1e9 / NVLINK_BYTES_PER_S, 2 * 3 / 4 * 1e9 / NETWORK_BYTES_PER_S
    assert summing_s(1e9, 32) == pytest.approx(near + far)
    assert summing_s(1e9, 1) == 0
    assert sending_s(1e9, (0, 1), (2, 7)) == 1e9 / NVLINK_BYTES_PER_S
    assert sending_s(1e9, (0, 1), (8, 9)) == 1e9 / NETWORK_BYTES_PER_S
    memory = held([layer] * 3, 2, 1)
    assert memory.always_bytes == pytest.approx(
        3 * layer.parameters * 8 / 2 + layer.scratch_bytes / 2
    )
    assert memory.each_bytes == 3 * layer.output_bytes
    assert held([layer], 1, 1, training=False).each_bytes == 0
    whole = How(recomputed=False)
    assert times_s([layer], 4, 1, whole) == pytest.approx((work + sums, 2 * work + sums))
    kept = 5 * layer.output_bytes + (layer.scratch_bytes - 5 * layer.output_bytes) / 2
    assert held([layer] * 3, 2, 1, whole).each_bytes == pytest.approx(3 * kept)
    slow = How(network_bytes_per_s=NETWORK_BYTES_PER_S / 2)
    assert summing_s(1e9, 32, slow) == pytest.approx(near + 2 * far)


def bottleneck(stages: Sequence[Stage], batch: int) -> float:
    return max(sum(times_s(stage.layers, len(stage.homes), batch)) for stage in stages)


def all_cuts(model: Model, layers: Sequence[Layer], batch: int) -> list[list[Stage]]:
    """Every way to cut layers into stages on groups of 1, 2, ... devices that fits."""
    found = []
    for depth in range(1, min(len(layers), model.devices) + 1):
        for inner in itertools.combinations(range(1, len(layers)), depth - 1):
            ends = (0, *inner, len(layers))
            for widths in itertools.product((1, 2), repeat=depth):
                if sum(widths) > model.devices:
                    continue
                stages = [
                    Stage(tuple(layers[a:b]), tuple(range(w)))
                    for a, b, w in zip(ends, ends[1:], widths, strict=False)
                ]
                need = [held(s.layers, len(s.homes), batch) for s in stages]
                if all(
                    n.always_bytes + (depth - i) * n.each_bytes <= ROOM_BYTES
                    for i, n in enumerate(need)
                ):
                    found.append(stages)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_the_best(seed: int) -> None:
    """Of all ways, for layers of different sizes on four devices."""
    sizes = [(seed * 7 + i * 5) % 11 + 1 for i in range(6)]
    layers = [transformer(256 * size, 2048 + 512 * (size % 3), 16) for size in sizes]
    layers = [layer._replace(parameters=layer.parameters * 12) for layer in layers]
    model = Model("any", 4, (), (tuple(layers),))
    ways = all_cuts(model, layers, 1)
    stages = cut(model, layers, 1, True)
    if not ways:
        assert stages is None
        return
    assert stages is not None
    assert bottleneck(stages, 1) == pytest.approx(min(bottleneck(way, 1) for way in ways))
    assert [layer for stage in stages for layer in stage.layers] == layers
    homes = [d for stage in stages for d in stage.homes]
    assert homes == list(range(len(homes)))


def test_cuts_that_do_not_fit() -> None:
    giant = transformer(2048, 8192, 64)._replace(parameters=1e11)
    assert cut(Model("any", 4, (), ()), [giant] * 4, 1, True) is None
    model = Model("any", 4, (), ((giant,) * 4,), first_bytes=1.0)
    assert placement(model, "V", 1) is None


@pytest.mark.parametrize("name", PRINTED)
def test_placements_fit_and_are_whole(name: str) -> None:
    for model in models(name):
        for shape in ("V", tessel_figures.OWN[name]):
            plan = placement(model, shape, model.batch)
            assert plan is not None
            placed = read_placement(json.dumps(plan).encode(), "plan")
            work = sum(
                b.time_s for b in placed.blocks if b.kind == "forward" and b.name[1:] not in "st"
            )
            assert work > 0
            forward = [b for b in placed.blocks if b.kind == "forward"]
            assert len(placed.blocks) == 2 * len(forward)
            assert sum(b.memory_bytes for b in placed.blocks) == 0
        # Two stages a device, parameters of both: only the smaller mT5 have the room.
        fits = placement(model, "X", model.batch) is not None
        assert fits == (name == "mT5" and model.devices <= 8)


def test_branches_of_flava() -> None:
    plan = placement(flava(), "K", 1, training=False)
    assert plan is not None
    after = {b["name"]: [w["block"] for w in b["after"]] for b in plan["blocks"]}
    assert after == {
        "Fa0": [], "Fa1": ["Fa0"], "Fb0": [], "Fb1": ["Fb0"], "Fs": ["Fa1", "Fb1"],
    }  # fmt: skip
    assert set(moves_of(plan)) == {
        ("Fa0", "Fa1"), ("Fb0", "Fb1"), ("Fa1", "Fs"), ("Fb1", "Fs"),
    }  # fmt: skip


def scheduled(*words: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    done = dnnp("schedule", *words)
    assert done.status == 0, done.err
    return done.one("schedule"), done.records("block")


@pytest.mark.parametrize("name", ["V", "X", "M", "NN", "K"])
def test_replay_without_transfers_is_the_schedule(name: str) -> None:
    record, blocks = scheduled("--shape", name, "-n", "6")
    for blocking in (True, False):
        again = replay(record, blocks, {}, blocking=blocking)
        assert again.makespan_s == pytest.approx(record["makespan_s"])
        assert again.busy_s == pytest.approx([unit["busy_s"] for unit in record["units"]])


def test_replay_by_hand() -> None:
    """Two stages, two micro-batches, forward 1, a transfer takes 2.

    Blocking: F0.0 0-1, move 1-3 on both, F0.1 3-4 beside F1.0 3-4, move 4-6, F1.1 6-7. Else F0.1
    runs 1-2, its move waits for the road until 3 and arrives at 5.
    """
    record, blocks = scheduled(
        "--shape", "V", "--devices", "2", "--inference", "--method", "inference", "-n", "2"
    )
    moves = {("F0", "F1"): 2.0}
    assert replay(record, blocks, moves, blocking=True).makespan_s == 7.0
    assert replay(record, blocks, moves, blocking=False).makespan_s == 6.0


def test_replay_counts_every_wait() -> None:
    record, blocks = scheduled("--shape", "M", "-n", "8")
    names = [each["name"] for each in record["passes"]]
    moves = {
        (names[wait["pass"]], each["name"]): 0.25
        for each in record["passes"]
        for wait in each["after"]
        if wait["pass"] is not None
    }
    free, kept = (replay(record, blocks, moves, blocking=b).makespan_s for b in (False, True))
    assert record["makespan_s"] < free < kept


def in_process(words: Sequence[str]) -> Answer:
    """Answers of the command, without a process of its own."""
    done = dnnp("schedule", "-q", "--timings", *words)
    return answer(done.out, done.err) if done.status == 0 else Answer(None, 0.0)


def table(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """Cells of the lines below the header; cells are two blanks apart."""
    main(in_process, words)
    lines = capsys.readouterr().out.splitlines()
    cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in lines]
    width = max(map(len, cells))
    return [row for row in cells if len(row) == width][1:]


def test_figures_13_to_17(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On four GPUs, with the claims of the paper that these costs bear out."""
    monkeypatch.setattr(tessel_figures, "SMALL", (4,))
    ((label, *gpt),) = table(capsys, "figure-13")
    assert label == "10.6B, 4 GPUs"
    assert gpt[1] == "x"  # Chimera
    assert float(gpt[3]) > 1.4 * max(float(gpt[0]), float(gpt[2]))
    ((_, *mt5s),) = table(capsys, "figure-14")
    assert float(mt5s[3]) > 1.1 * float(mt5s[1]) > 1.1 * float(mt5s[2])
    parallel, one, tessel, ours = table(capsys, "figure-15")
    assert float(one[1]) > 400 > float(tessel[1]) > float(parallel[1])
    assert float(tessel[2]) > 2 * float(one[2])
    assert float(tessel[5]) < float(one[5])
    assert tessel[1:] == ours[1:]
    waits = {row[0]: row[2:] for row in table(capsys, "figure-16")}
    assert waits["GPT, 4 GPUs, 1F1B+"][0] == "34.2%"
    plain, moved = (float(cell.rstrip("%")) for cell in waits["GPT, 4 GPUs, Tessel"])
    assert plain <= moved < 1.06 * plain
    for row in table(capsys, "figure-17"):
        assert 1.5 < float(row[-1]) < 1.9


def test_table_3_and_what_the_paper_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(capsys, "table-3")
    assert len(rows) == 8
    assert rows[4][-3:] == ["1.8B", "1.2B", "1.8B"]
    cases = {row[0]: row[1:] for row in table(capsys, "cases")}
    assert cases["fine-tuning"][0] == cases["fine-tuning"][3] == cases["fine-tuning"][6] == "4"
    assert cases["multi-modal"][6:] == ["8", "6", "46"]


def test_factors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between servers, 1F1B is tensor parallelism; its sums make what the paper prints."""
    monkeypatch.setattr(tessel_figures, "OWN", {"mT5": "NN-eager"})
    monkeypatch.setattr(tessel_figures, "PER_SERVER", 16)  # 32 GPUs alone
    rows = {row[0]: row[1:] for row in table(capsys, "factors")}
    assert all(name.startswith("mT5, 32 GPUs") for name in rows)
    assert rows["mT5, 32 GPUs, Tessel, 12.5"][-4:] == ["1.00"] * 4
    assert rows["mT5, 32 GPUs, 1F1B, as run, 4.1"][0] == "16+16"
    assert float(rows["mT5, 32 GPUs, 1F1B, as run, 4.1"][-1]) > 4
    load, sums, waiting, factor = map(float, rows["mT5, 32 GPUs, 1F1B, as planned, 12.5"][-4:])
    assert factor == pytest.approx(load * sums * waiting, rel=0.02)
    assert factor < 1.1
    assert float(rows["mT5, 32 GPUs, 1F1B+, 12.5"][-2]) > 1.4


def test_a_large_vocabulary_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is one stage, unless embedding and scores are shared."""
    path = tmp_path / "small.onnx"
    size = gpt.Size(4, 64, 4, vocabulary=20_000, context=64, length=64, planning=True)
    save(gpt.build(size), path)
    monkeypatch.setattr(build, "write", lambda *_: path)
    monkeypatch.setattr(tessel_figures, "SAMPLES", 8)
    alone, several, plus, best = table(capsys, "shared-stages", "--devices", "2")
    assert [row[1] for row in (alone, plus, best)] == ["1 + 0", "2 + 2", "2 + 2"]
    assert [row[2] for row in (plus, best)] == ["1f1b+", "auto"]
    assert float(several[3]) <= float(alone[3])
    assert float(best[3]) == float(plus[3]) < float(alone[3])
    assert float(best[4]) <= float(plus[4])
