"""Table III and figures 13 to 17 of Tessel, simulated: no GPU runs here.

Costs are by formula (`dnnp.samples.papers.tessel_costs`), placements as the paper describes them
(`dnnp.samples.papers.tessel_plans`), schedules from dnnp-schedule, transfers by
`dnnp.samples.papers.replay`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dnnp.samples.papers import tessel_costs
from dnnp.samples.papers.replay import replay
from dnnp.samples.papers.tables import Table
from dnnp.samples.papers.tessel_costs import PRINTED, Model, flava, models, times_s
from dnnp.samples.papers.tessel_plans import placement
from dnnp.samples.papers.tessel_runs import NONE, Answer, Runs, percent

SAMPLES = 128
"""Global batch (VI.D)."""

OWN = {"GPT": "M", "mT5": "NN-eager"}
"""Shape that 1F1B+ and Tessel use for a model."""

WAYS = (
    ("1F1B", "1f1b"),
    ("Chimera", "chimera"),
    ("1F1B+", "1f1b+"),
    ("Tessel", "tessel"),
    ("ours", "auto"),
)
"""Name in the paper, and method."""

SHAPES = {"1f1b": "V", "chimera": "X"}
"""Shapes of methods that do not use that of the model."""

SMALL = (4, 16)
"""GPUs of the sizes that are simulated unless all are asked for."""

BATCHES = (1, 2, 4, 8)
"""Samples of a micro-batch that are tried where all is asked for."""

RECOMPUTED = 4
"""Arithmetic of a sample over that of its forward pass."""

SIMULATED = "simulated from analytic costs of V100s, not measured"


class Trained(NamedTuple):
    """The global batch by one way."""

    seconds: float
    answer: Answer
    plan: dict[str, Any]

    def pflop_per_s(self, model: Model) -> float:
        """As the paper counts throughput."""
        return RECOMPUTED * model.flop * SAMPLES / self.seconds / 1e15


def sizes(runs: Runs, name: str) -> list[Model]:
    """The models that are simulated."""
    return [model for model in models(name) if runs.full or model.devices in SMALL]


def trained(runs: Runs, found: Sequence[Model]) -> dict[tuple[int, str], Trained]:
    """(GPUs, method) -> the batch by the best micro-batches; absent: nothing fits."""
    jobs: list[tuple[int, str, list[str], dict[str, Any]]] = []
    for model in found:
        for batch in BATCHES if runs.full else (model.batch,):
            for _, method in WAYS:
                plan = placement(model, SHAPES.get(method, OWN[model.name]), batch)
                if plan is None:
                    continue
                count = SAMPLES // batch
                if method == "chimera":
                    count //= 2  # pairs
                words = _words(runs, f"{plan['name']}-{batch}", plan, method, count)
                jobs.append((model.devices, method, words, plan))
    best: dict[tuple[int, str], Trained] = {}
    for (devices, method, _, plan), answer in zip(jobs, runs.all(j[2] for j in jobs), strict=True):
        if answer.record is None:
            continue
        one = Trained(answer.record["makespan_s"], answer, plan)
        known = best.get((devices, method))
        if known is None or one.seconds < known.seconds:
            best[devices, method] = one
    return best


def _words(runs: Runs, name: str, plan: dict[str, Any], method: str, count: int) -> list[str]:
    """Arguments for a placement, which is written to a file; transfers come later."""
    path = runs.folder / f"{name}.json"
    path.write_text(json.dumps(plan))
    how = ["--method", method, "--transfers", "none", "-n", str(count)]
    return ["--placement", str(path), *how, "--time-limit", f"{runs.seconds:g}"]


def table_3(runs: Runs) -> Table:
    """Parameters of the architectures."""
    rows = []
    for name, printed in PRINTED.items():
        scripted = [model.parameters / 1e9 for model in models(name)]
        make, given = (
            (tessel_costs.gpt, tessel_costs.GPTS)
            if name == "GPT"
            else (tessel_costs.mt5, tessel_costs.MT5S)
        )
        stated = [make(*row).parameters / 1e9 for row in given]
        for row, a, b, c in zip(given, printed, stated, scripted, strict=True):
            cells = (f"{name}, {row[0]} GPUs", *map(str, row[1:4]), f"{row[4] / 1e3:.0f}K")
            rows.append((*cells, f"{a:g}B", f"{b:.1f}B", f"{c:.1f}B"))
    header = (
        "model", "layers", "hidden", "heads", "words", "printed", "from table III", "from scripts",
    )  # fmt: skip
    title = "Table III: parameters that are printed and those that the architectures have"
    return Table("table-3", title, header, rows)


def throughput(runs: Runs, number: int, name: str) -> Table:
    """Figures 13 and 14: training throughput."""
    found = sizes(runs, name)
    best = trained(runs, found)
    rows = []
    for model in found:
        cells = []
        for _, method in WAYS:
            one = best.get((model.devices, method))
            cells.append(NONE if one is None else f"{one.pflop_per_s(model):.3f}")
        gains = [
            f"{best[model.devices, slow].seconds / best[model.devices, 'tessel'].seconds:.2f}"
            if {(model.devices, slow), (model.devices, "tessel")} <= set(best)
            else NONE
            for slow in ("1f1b", "1f1b+")
        ]
        label = f"{model.parameters / 1e9:.1f}B, {model.devices} GPUs"
        rows.append((label, *cells, *gains))
    header = (name, *(way for way, _ in WAYS), "Tessel / 1F1B", "Tessel / 1F1B+")
    title = (
        f"Figure {number}: training throughput of {name} in PFLOP/s, recomputation counted,\n"
        f"{SIMULATED}; {NONE}: out of memory"
    )
    return Table(f"figure-{number}", title, header, rows)


def figure_13(runs: Runs) -> Table:
    """GPT."""
    return throughput(runs, 13, "GPT")


def figure_14(runs: Runs) -> Table:
    """mT5."""
    return throughput(runs, 14, "mT5")


def figure_15(runs: Runs) -> Table:
    """Latency and throughput of inference with Flava on 4 GPUs."""
    model = flava()
    counts = (1, 2, 4, 8, 16, 32, 64, 128) if runs.full else (1, 4, 16, 128)
    ways = (("1F1B", "V", "1f1b"), ("Tessel", "K", "tessel"), ("ours", "K", "auto"))
    rows: list[tuple[str, ...]] = []
    layers = [layer for part in model.parts for layer in part]
    together = times_s(layers, model.devices, 1)[0]
    each = [f"{1 / together:.2f}"] * len(counts)
    rows.append(("tensor parallelism", f"{1e3 * together:.0f}", *each))
    for label, shape, method in ways:
        plan = placement(model, shape, 1, training=False)
        if plan is None:
            rows.append((f"{label} ({shape})", *[NONE] * (1 + len(counts))))
            continue
        name = f"Flava-{shape}"
        found = runs.all(_words(runs, name, plan, method, n) for n in counts)
        spans = [
            NONE if answer.record is None else f"{n / answer.record['makespan_s']:.2f}"
            for n, answer in zip(counts, found, strict=True)
        ]
        one = found[0].record
        latency = NONE if one is None else f"{1e3 * one['makespan_s']:.0f}"
        rows.append((f"{label} ({shape})", latency, *spans))
    header = ("way", "latency, ms", *(f"N = {n}" for n in counts))
    title = (
        "Figure 15: Flava on 4 GPUs, micro-batches of 1: latency of one, and samples per second\n"
        f"of N; {SIMULATED}"
    )
    return Table("figure-15", title, header, rows)


def moves_of(plan: dict[str, Any]) -> dict[tuple[str, str], float]:
    """How long results move: (pass, pass that waits for it) -> seconds."""
    return {
        (wait["block"], block["name"]): wait["transfer_s"]
        for block in plan["blocks"]
        for wait in block["after"]
        if "transfer_s" in wait
    }


def figure_16(runs: Runs) -> Table:
    """Time of blocks and of waiting on the busiest device."""
    rows = []
    for name in OWN:
        found = sizes(runs, name)
        best = trained(runs, found)
        for model in found:
            for way, method in WAYS:
                one = best.get((model.devices, method))
                if one is None or one.answer.record is None:
                    continue
                record = one.answer.record
                moved = replay(record, one.answer.blocks, moves_of(one.plan), blocking=False)
                busy = max(unit["busy_s"] for unit in record["units"])
                waits = (1 - busy / record["makespan_s"], 1 - busy / moved.makespan_s)
                label = f"{name}, {model.devices} GPUs, {way}"
                rows.append((label, f"{busy:.1f}", *map(percent, waits)))
    header = ("model, way", "blocks, s", "waits, no transfers", "waits, transfers")
    title = (
        f"Figure 16: time of blocks on the busiest device for {SAMPLES} samples, and the part of\n"
        f"the whole time that it waits; {SIMULATED}"
    )
    return Table("figure-16", title, header, rows)


def figure_17(runs: Runs) -> Table:
    """Blocking and non-blocking transfers of Tessel's schedules."""
    rows = []
    for name in OWN:
        found = sizes(runs, name)
        best = trained(runs, found)
        for model in found:
            one = best.get((model.devices, "tessel"))
            if one is None or one.answer.record is None:
                continue
            moves = moves_of(one.plan)
            spans = [
                replay(one.answer.record, one.answer.blocks, moves, blocking=blocking).makespan_s
                for blocking in (True, False)
            ]
            label = f"{name}, {model.devices} GPUs"
            longest = max(moves.values(), default=0.0)
            numbers = (f"{1e3 * longest:.1f}", *(f"{s:.1f}" for s in (one.seconds, *spans)))
            rows.append((label, *numbers, f"{spans[0] / spans[1]:.2f}"))
    header = ("model", "longest, ms", "none, s", "blocking, s", "non-blocking, s", "gain")
    title = (
        f"Figure 17: {SAMPLES} samples by Tessel's schedule without transfers, with blocking and\n"
        f"with non-blocking ones; {SIMULATED}"
    )
    return Table("figure-17", title, header, rows)
