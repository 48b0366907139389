"""Table III and figures 13 to 17 of Tessel, simulated: no GPU runs here.

Costs are by formula, placements as the paper describes them (`dnnp.samples.papers.tessel_plans`),
schedules from dnnp-schedule, transfers by `replay`.

A *blocking* transfer keeps all devices of both groups, from when the last of them has time for it,
right after the block that it moves the result of; every device follows one order of blocks and
transfers, that of the schedule (Tessel, IV-D). A *non-blocking* one keeps none, and one is under
way between two groups at a time. A block starts when all transfers to it have ended.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dnnp.samples.papers.tables import Table
from dnnp.samples.papers.tessel_plans import (
    ARCHITECTURES,
    AS_USUAL,
    NETWORK_BYTES_PER_S,
    PER_SERVER,
    PRINTED,
    Model,
    flava,
    models,
    placement,
    times_s,
)
from dnnp.samples.papers.tessel_runs import NONE, Runs, percent

SAMPLES = 128
"""Global batch (VI.D)."""

OWN = {"GPT": "M", "mT5": "NN-eager"}
"""Shape that 1F1B+ and Tessel use for a model."""

WAYS = (
    ("1F1B", "1f1b"), ("Chimera", "chimera"), ("1F1B+", "1f1b+"), ("Tessel", "tessel"),
    ("ours", "auto"),
)  # fmt: skip
"""Name in the paper, and method."""

SHAPES = {"1f1b": "V", "chimera": "X"}
"""Shapes of methods that do not use that of the model."""

SMALL = (4, 16)
"""GPUs of the sizes that are simulated unless all are asked for."""

BATCHES = (1, 2, 4, 8)
"""Samples of a micro-batch that are tried where all is asked for."""

RECOMPUTED = 4
"""Arithmetic of a sample over that of its forward pass."""

NETWORKS = math.inf, NETWORK_BYTES_PER_S, 4.1e9
"""Bytes a second between servers: sums for nothing; line rate; where GPT takes as long as printed,
nearly 400 s on 16 GPUs (figure 16)."""

SIMULATED = "simulated from analytic costs of V100s, not measured"


class Trained(NamedTuple):
    """The global batch by one way."""

    seconds: float
    record: dict[str, Any]
    blocks: Sequence[dict[str, Any]]
    plan: dict[str, Any]

    def pflop_per_s(self, model: Model) -> float:
        """As the paper counts throughput."""
        return RECOMPUTED * model.flop * SAMPLES / self.seconds / 1e15


def sizes(runs: Runs, name: str) -> list[Model]:
    """The models that are simulated."""
    return [model for model in models(name) if runs.full or model.devices in SMALL]


def trained(
    runs: Runs, found: Sequence[Model], ways: Sequence[tuple[str, str]] = WAYS
) -> dict[tuple[int, str], Trained]:
    """(GPUs, method) -> the batch by the best micro-batches; absent: nothing fits."""
    jobs: list[tuple[int, str, list[str], dict[str, Any]]] = []
    for model in found:
        for batch in BATCHES if runs.full else (model.batch,):
            for _, method in ways:
                plan = placement(model, SHAPES.get(method, OWN[model.name]), batch)
                if plan is None:
                    continue
                count = SAMPLES // batch
                if method == "chimera":
                    count //= 2  # pairs
                name = "-".join(f"{part:g}" for part in (batch, *model.how))
                words = _words(runs, f"{plan['name']}-{name}", plan, method, count)
                jobs.append((model.devices, method, words, plan))
    best: dict[tuple[int, str], Trained] = {}
    for (devices, method, _, plan), answer in zip(jobs, runs.all(j[2] for j in jobs), strict=True):
        if answer.record is None:
            continue
        record = answer.record
        one = Trained(record["makespan_s"], record, answer.blocks, plan)
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
        make, given = ARCHITECTURES[name]
        stated = [make(*row).parameters / 1e9 for row in given]
        for row, a, b, c in zip(given, printed, stated, scripted, strict=True):
            cells = (f"{name}, {row[0]} GPUs", *map(str, row[1:4]), f"{row[4] / 1e3:.0f}K")
            rows.append((*cells, f"{a:g}B", f"{b:.1f}B", f"{c:.1f}B"))
    header = (
        "model", "layers", "hidden", "heads", "words", "printed", "from table III", "from scripts",
    )  # fmt: skip
    title = "Table III: parameters that are printed and those that the architectures have"
    return Table("table-3", title, header, rows)


def throughput(number: int, name: str, runs: Runs) -> Table:
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


def factors(runs: Runs) -> Table:
    """Factors of Tessel's gain where a model needs several servers."""
    rows = []
    for model in (model for name in OWN for model in models(name) if model.devices > PER_SERVER):
        cases = {
            "1F1B, as planned": (AS_USUAL, "1f1b"),
            "1F1B, as run": (model.how, "1f1b"),
            "1F1B, nothing recomputed": (model.how._replace(recomputed=False), "1f1b"),
            "1F1B+": (model.how, "1f1b+"),
            "Tessel": (model.how, "tessel"),
        }
        found: dict[str, list[Trained | None]] = {name: [] for name in cases}
        for (name, (how, method)), network in itertools.product(cases.items(), NETWORKS):
            given = model._replace(how=how._replace(network_bytes_per_s=network))
            best = trained(runs, [given], [(name, method)])
            found[name].append(best.get((model.devices, method)))
        base = [_parts(one) for one in found["Tessel"] if one is not None]
        for name, ones in found.items():
            free = None if ones[0] is None else _parts(ones[0])
            for i, one in enumerate(ones[1:], 1):
                title = f"{model.name}, {model.devices} GPUs, {name}, {NETWORKS[i] / 1e9:g}"
                if one is None or free is None:
                    rows.append((title, *[NONE] * 8))
                    continue
                load, wait = _parts(one)
                balance = free[0] / base[0][0]
                sums = load / base[i][0] / balance
                gain = balance, sums, wait / base[i][1]
                homes = {tuple(block["devices"]) for block in one.plan["blocks"]}
                widths = "+".join(str(len(home)) for home in sorted(homes))
                most = max(unit["peak_bytes"] for unit in one.record["units"])
                idle = f"{max(1 - 1 / wait, 0.0):.1%}"
                cells = widths, f"{most / 1e9:.1f}", f"{one.seconds:.0f}", idle
                rows.append((title, *cells, *(f"{x:.2f}" for x in (*gain, math.prod(gain)))))
    header = (
        "model, way, GB/s between servers", "GPUs of stages", "GB a GPU", "seconds", "waits",
        "load", "sums", "waiting", "factor",
    )  # fmt: skip
    title = (
        f"What is behind Tessel's gain: {SAMPLES} samples by each way; time over Tessel's as load\n"
        "of the slowest device without sums between servers, times these sums, times waiting;\n"
        f"{SIMULATED}; {NONE}: out of memory"
    )
    return Table("factors", title, header, rows)


def _parts(one: Trained) -> tuple[float, float]:
    """Seconds of blocks on the busiest device, and the whole time over them."""
    busy = max(unit["busy_s"] for unit in one.record["units"])
    return busy, one.seconds / busy


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
    """Time that results move: (pass, pass that waits for it) -> seconds."""
    return {
        (wait["block"], block["name"]): wait["transfer_s"]
        for block in plan["blocks"]
        for wait in block["after"]
        if "transfer_s" in wait
    }


def replay(
    schedule: dict[str, Any],
    blocks: Sequence[dict[str, Any]],
    moves: Mapping[tuple[str, str], float],
    *,
    blocking: bool,
) -> Replayed:
    """Start everything as early as the order allows; `moves` says how long a result takes.

    `schedule` and `blocks` are the records of dnnp-schedule; `moves` goes by the names of a pass
    and of one that waits for it.
    """
    run = Replayed(schedule, moves, blocking)
    # What ends when another block starts moves first.
    events = [(block["end_s"], 0, block) for block in blocks]
    events += [(block["start_s"], 1, block) for block in blocks]
    for _, kind, block in sorted(events, key=lambda event: event[:2]):
        (run.start if kind else run.move)(block["pass"], block["micro_batch"])
    return run


class Replayed:
    """The devices of a schedule that is replayed, and what has arrived on them."""

    def __init__(
        self, schedule: dict[str, Any], moves: Mapping[tuple[str, str], float], blocking: bool
    ) -> None:
        self.passes, self.moves, self.blocking = schedule["passes"], moves, blocking
        self.free = [0.0] * len(schedule["units"])
        self.busy_s = list(self.free)
        """Of each device, with blocks."""
        self.roads: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        self.ended: dict[tuple[int, int], float] = {}
        self.ready: dict[tuple[int, int], float] = {}
        self.makespan_s = 0.0
        self.readers: dict[int, list[int]] = {}
        for i, each in enumerate(self.passes):
            for wait in each["after"]:
                self.readers.setdefault(wait["pass"], []).append(i)

    def homes(self, number: int, batch: int) -> tuple[int, ...]:
        """Devices of a pass for a micro-batch."""
        homes = self.passes[number]["homes"]
        return tuple(homes[batch % len(homes)])

    def start(self, number: int, batch: int) -> None:
        """Run a block."""
        homes, time = self.homes(number, batch), self.passes[number]["time_s"]
        end = max(self.ready.get((number, batch), 0.0), *(self.free[d] for d in homes)) + time
        for d in homes:
            self.free[d] = end
            self.busy_s[d] += time
        self.ended[number, batch] = end
        self.makespan_s = max(self.makespan_s, end)

    def move(self, number: int, batch: int) -> None:
        """Move the result of a block to where it is waited for."""
        homes, done = self.homes(number, batch), self.ended[number, batch]
        for reader in self.readers.get(number, ()):
            to = self.homes(reader, batch)
            time = self.moves.get((self.passes[number]["name"], self.passes[reader]["name"]), 0.0)
            arrival = done
            if time and self.blocking:
                group = {*homes, *to}
                arrival = max(self.free[d] for d in group) + time
                self.free = [arrival if d in group else t for d, t in enumerate(self.free)]
            elif time:
                arrival = max(done, self.roads.get((homes, to), 0.0)) + time
                self.roads[homes, to] = arrival
            key = reader, batch
            self.ready[key] = max(self.ready.get(key, 0.0), arrival)


def _all_trained(runs: Runs, ways: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, Trained]]:
    """Model, way and what was trained, for all models that are simulated."""
    for name in OWN:
        found = sizes(runs, name)
        best = trained(runs, found)
        for model in found:
            for way, method in ways:
                if (model.devices, method) in best:
                    label = f"{name}, {model.devices} GPUs"
                    yield label, way, best[model.devices, method]


def figure_16(runs: Runs) -> Table:
    """Time of blocks and of waiting on the busiest device."""
    rows = []
    for label, way, one in _all_trained(runs, WAYS):
        record = one.record
        moved = replay(record, one.blocks, moves_of(one.plan), blocking=False)
        busy = max(unit["busy_s"] for unit in record["units"])
        waits = (max(1 - busy / s, 0.0) for s in (record["makespan_s"], moved.makespan_s))
        rows.append((f"{label}, {way}", f"{busy:.1f}", *map(percent, waits)))
    header = ("model, way", "blocks, s", "waits, no transfers", "waits, transfers")
    title = (
        f"Figure 16: time of blocks on the busiest device for {SAMPLES} samples, and the part of\n"
        f"the whole time that it waits; {SIMULATED}"
    )
    return Table("figure-16", title, header, rows)


def figure_17(runs: Runs) -> Table:
    """Blocking and non-blocking transfers of Tessel's schedules."""
    rows = []
    for label, _, one in _all_trained(runs, [("Tessel", "tessel")]):
        moves = moves_of(one.plan)
        spans = [
            replay(one.record, one.blocks, moves, blocking=blocking).makespan_s
            for blocking in (True, False)
        ]
        longest = max(moves.values(), default=0.0)
        numbers = (f"{1e3 * longest:.1f}", *(f"{s:.1f}" for s in (one.seconds, *spans)))
        rows.append((label, *numbers, f"{spans[0] / spans[1]:.2f}"))
    header = ("model", "longest, ms", "none, s", "blocking, s", "non-blocking, s", "gain")
    title = (
        f"Figure 17: {SAMPLES} samples by Tessel's schedule without transfers, with blocking and\n"
        f"with non-blocking ones; {SIMULATED}"
    )
    return Table("figure-17", title, header, rows)
