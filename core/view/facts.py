"""Facts of a stream for all views: its graph, plan and results, joined once; and their words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.coarsen.coarsen import mirror_nodes
from dnnp.core.coarsen.layers import fill_gaps, paths_of
from dnnp.core.model.graph import Clustering, Floats, Graph, Ints, contract
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.model.text import (
    counted,
    located_words,
    printable,
    shown_bytes,
    shown_share,
    shown_time,
    table,
)
from dnnp.formats.graph import graph_of
from dnnp.formats.spread import is_blind
from dnnp.formats.stream import Record, Stream, forward_pass

NAMED = 2
"""Layers of a stage that are all named; of more, the first and the last."""


class Cut(NamedTuple):
    """A tensor that moves from one stage to others."""

    tensor: int
    """Its position in the graph."""
    source: int
    """Position of the stage that makes it."""
    targets: tuple[int, ...]
    """Positions of those that read it, ascending."""
    size_bytes: float


@dataclass(frozen=True, eq=False)
class Part:
    """A stage of the plan, and what its record does not say."""

    stage: Stage
    units: Ints
    """Positions of its units, in execution order."""
    times: Floats
    """Compute of each unit on the class of its device, in the stream's unit of time."""
    layers: str
    """Layers that it holds, such as `embed .. layer.3 (5 layers)`; empty: names tell none."""
    capacity_bytes: float
    """Memory of each of its devices; inf: no limit."""
    measured_s: float | None
    """Its load in the last run of the pipeline; None: there is none."""
    resident_bytes: float | None
    """Its memory in that run; None: it was not measured."""
    cache_bytes: float = 0.0
    """The part of its memory that the states of all sequences under way take."""

    @property
    def memory_share(self) -> str:
        """Share of the memory of its device, in words; empty: no limit."""
        if not 0 < self.capacity_bytes < np.inf:
            return ""
        return shown_share(self.stage.memory_bytes / self.capacity_bytes)


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts of a stream; absent ones are None or empty."""

    stream: Stream
    graph: Graph | None
    """None: a schedule of blocks that no model stands behind."""
    units: Clustering | None
    """Units that a split moves: groups, or every node alone."""
    layers: tuple[str, ...]
    """Layer of each unit; empty text: names do not tell."""
    plan: Plan | None
    parts: tuple[Part, ...]
    """The stages, in the order of the pipeline."""
    cuts: tuple[Cut, ...]
    """Tensors that move between them, the largest first."""
    attributes: Mapping[int, tuple[str, ...]] | None = None
    """Attributes of nodes in words, by id; None: not read from the model."""

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.stream.header["model"])

    @property
    def seconds(self) -> bool:
        """True where times are in seconds; else their unit is not known."""
        return self.stream.in_seconds

    @property
    def bound(self) -> Record | None:
        """The record of what was proven of the plan."""
        return next(iter(self.stream.get("bound")), None)

    @property
    def schedule(self) -> Record | None:
        """The record of the schedule; its blocks are `stream.get("block")`."""
        return next(iter(self.stream.get("schedule")), None)

    @property
    def blind(self) -> bool:
        """True where no gap is known, for want of costs or sizes."""
        return any(map(is_blind, self.stream.get("plan")))

    def shown_gap(self, gap: float) -> str:
        """A gap to the value of the plan."""
        return "unknown" if self.blind else shown_share(max(gap, 0.0))

    @property
    def runs(self) -> list[Record]:
        """Records of what was measured, in order."""
        return self.stream.get("run")

    @property
    def balance(self) -> float:
        """Mean load of the stages over the largest; 1: all are as busy. Of a plan for latency the
        compute."""
        late = self.plan is not None and self.plan.objective == "latency"
        shared = 0.0 if self.plan is None else self.plan.shared_s
        loads = [
            part.stage.compute_s if late else part.stage.load_s + shared
            for part in self.parts
            if not part.stage.shared
        ] or [shared]
        largest = max(loads, default=0.0)
        return sum(loads) / (len(loads) * largest) if largest > 0 else 1.0

    @property
    def memory_share(self) -> float | None:
        """Largest share of a device's memory that is needed; None: there is no limit."""
        shared = sum(part.stage.memory_bytes for part in self.parts if part.stage.shared)
        return max(
            (
                (part.stage.memory_bytes + (0.0 if part.stage.shared else shared))
                / part.capacity_bytes
                for part in self.parts
                if 0 < part.capacity_bytes < np.inf
            ),
            default=None,
        )

    @property
    def solving_s(self) -> float | None:
        """Time that the last dnnp-partition took, where its --timings says so."""
        steps = [s for s in self.stream.header["provenance"] if s["tool"] == "dnnp-partition"]
        return steps[-1].get("elapsed_s") if steps else None

    @property
    def rate(self) -> str:
        """Tokens or samples a second by the plan, in words; empty: not known."""
        plan = self.plan
        if plan is None or plan.objective == "latency" or not self.seconds:
            return ""
        tokens = plan.tokens_per_s
        return shown_rate(plan.value) if tokens is None else f"{tokens:.4g} tokens/s"

    @property
    def measured_per_s(self) -> float | None:
        """Samples a second in the last run of the pipeline; None: there is none."""
        found = [run for run in self.runs if run["mode"] == "pipeline"]
        return found[-1].get("throughput_per_s") if found else None

    @cached_property
    def unit_graph(self) -> Graph | None:
        """Graph of the units."""
        if self.graph is None or self.units is None:
            return None
        return contract(self.graph, self.units)

    @cached_property
    def stage_of(self) -> Ints:
        """Position of the stage of each unit, i64[units]; -1: there is no plan."""
        found = np.full(0 if self.units is None else self.units.g, -1, dtype=np.int64)
        for number, part in enumerate(self.parts):
            found[part.units] = number
        return found

    @cached_property
    def node_stages(self) -> Ints:
        """Position of the stage of each node, i64[n]; -1: there is no plan."""
        return self.stage_of if self.units is None else self.stage_of[self.units.label]

    @cached_property
    def unit_times(self) -> Floats:
        """Compute of each unit, f64[units]: on the device of its stage, or without a plan on the
        first class that runs all of them; nan: not priced."""
        if self.units is None:
            return np.zeros(0)
        times = np.full(self.units.g, np.nan)
        for part in self.parts:
            times[part.units] = part.times
        if not self.parts:
            whole = [t for t in self.units.times.values() if np.isfinite(t).all()]
            return whole[0] if whole else times
        return times

    def heaviest(self, most: int) -> list[tuple[int, float, float]]:
        """Unit, compute and share of the total of the longest units; empty: not all are priced."""
        times = self.unit_times
        total = float(times.sum())
        if not 0 < total < np.inf:
            return []
        order = sorted(range(len(times)), key=lambda u: (-times[u], u))[:most]
        return [(u, float(times[u]), float(times[u]) / total) for u in order]


def facts_of(
    stream: Stream, graph: Graph | None, units: Clustering | None, plan: Plan | None
) -> Facts:
    """Join what a stream says.

    Parameters
    ----------
    stream
        The stream.
    graph, units, plan
        What it holds of them, read.
    """
    if graph is None or units is None:
        return Facts(stream, None, None, (), None, (), ())
    of_node = _layers(stream, graph)
    layers = tuple(of_node[first] for first in units.member_idx[units.member_ptr[:-1]].tolist())
    if plan is None:
        return Facts(stream, graph, units, layers, None, (), ())
    position = {number: i for i, number in enumerate(graph.node_ids.tolist())}
    owner = np.empty(graph.n, dtype=np.int64)
    held: list[Ints] = []
    for number, stage in enumerate(plan.stages):
        nodes = np.array([position[v] for v in stage.nodes], dtype=np.int64)
        owner[nodes] = number
        held.append(np.array(list(dict.fromkeys(units.label[nodes].tolist())), dtype=np.int64))
    records = sorted(stream.get("stage"), key=lambda r: r["id"])
    measured, resident = _measured(stream), _resident(stream)
    caches = np.zeros(len(plan.stages))
    if graph.states is not None:
        np.add.at(caches, owner[graph.producer[graph.states.output]], graph.states.held_bytes())
    capacities = {d.name: d.memory_bytes for d in plan.devices if not d.is_cpu}
    parts = tuple(
        Part(
            stage=stage,
            units=mine,
            times=units.times.get(stage.device_class, np.full(units.g, np.nan))[mine],
            layers=layer_range([layers[u] for u in mine.tolist()]),
            capacity_bytes=capacities.get(stage.device_class, np.inf),
            measured_s=measured.get(record["id"]),
            resident_bytes=resident.get(record["id"]),
            cache_bytes=cache,
        )
        for stage, mine, cache, record in zip(
            plan.stages, held, caches.tolist(), records, strict=True
        )
    )
    return Facts(stream, graph, units, layers, plan, parts, _cuts(graph, owner))


def _layers(stream: Stream, graph: Graph) -> list[str]:
    """Layer of each node; gradients are in that of the node that they are of."""
    mirrors = mirror_nodes(stream.get("node"))
    if mirrors is None:
        return ["/".join(p) for p in fill_gaps(graph, paths_of(stream.get("node"), graph, None))]
    part = forward_pass(stream)
    found = dict(
        zip((r["id"] for r in part.get("node")), _layers(part, graph_of(part)), strict=True)
    )
    ids = graph.node_ids
    return [found.get(int(ids[v if of < 0 else of]), "") for v, of in enumerate(mirrors.tolist())]


def _measured(stream: Stream) -> dict[int, float]:
    """Measured load of stages in the last run of the pipeline, by id.

    A stage that ran in parts has several entries, which ran one after the other on each of its
    shards; the slowest of these counts.
    """
    found: dict[int, float] = {}
    for run in stream.get("run"):
        if run["mode"] == "pipeline" and run.get("stages"):
            shards: dict[tuple[int, int], float] = {}
            for entry in run["stages"]:
                home = entry["stage"], entry.get("shard", 0)
                shards[home] = shards.get(home, 0.0) + entry["measured_s"]
            found = {}
            for (stage, _), seconds in shards.items():
                found[stage] = max(found.get(stage, 0.0), seconds)
    return found


def _resident(stream: Stream) -> dict[int, float]:
    """Measured memory of each stage in the last run of the pipeline, bytes."""
    runs = [r for r in stream.get("run") if r["mode"] == "pipeline" and r.get("stages")]
    rows = runs[-1]["stages"] if runs else []
    return {r["stage"]: r["resident_bytes"] for r in rows if "resident_bytes" in r}


def layer_range(layers: Sequence[str]) -> str:
    """Layers in order, in few words.

    >>> layer_range(["embed", "embed", "layer.0", "layer.1", "layer.1"])
    'embed .. layer.1 (3 layers)'
    >>> layer_range(["layer.0", "", "layer.0"]), layer_range(["a", "b"]), layer_range([""])
    ('layer.0', 'a, b', '')
    """
    names = [name for name in dict.fromkeys(layers) if name]
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{names[0]} .. {names[-1]} ({len(names)} layers)"


def _cuts(graph: Graph, owner: Ints) -> tuple[Cut, ...]:
    """Tensors that cross from stage to stage; `owner` is the stage of each node."""
    found: list[Cut] = []
    producer, ptr = graph.producer.tolist(), graph.use_ptr.tolist()
    readers = owner[graph.use_idx].tolist()
    of_node = owner.tolist()
    for t, (a, b) in enumerate(pairwise(ptr)):
        if producer[t] < 0:
            continue
        source = of_node[producer[t]]
        targets = sorted({s for s in readers[a:b] if s != source})
        if targets:
            found.append(Cut(t, source, tuple(targets), float(graph.tensor_bytes[t])))
    return tuple(sorted(found, key=lambda cut: (-cut.size_bytes, cut.tensor)))


LOADS = ("in", "compute", "overflow", "out", "sync")
"""Parts of a load, in the order in which a bar shows them."""
SUM_TOLERANCE = 1e-9
"""Relative difference between a load and the sum of its parts that rounding explains."""
OVERLAP = "parts that overlap count once in a load, but are all in its bar"
"""Note below bars that are longer than loads."""


def amount(stage: Stage, name: str) -> float:
    """A part of a stage's load, for one sample, over its replicas."""
    found: float = getattr(stage, f"{name}_s")
    return found if name == "sync" else found / stage.replicas


def bar_length(stage: Stage) -> float:
    """The sum of the parts, which is the load where they do not overlap."""
    return sum(amount(stage, name) for name in LOADS)


def used_loads(parts: Sequence[Part]) -> list[str]:
    """Parts of a load that some stage has."""
    return [name for name in LOADS if any(amount(part.stage, name) > 0 for part in parts)]


def longest_bar(parts: Sequence[Part]) -> float:
    """Length of the longest bar; 1 where all loads are 0."""
    return max((bar_length(part.stage) for part in parts), default=0.0) or 1.0


def parts_overlap(parts: Sequence[Part]) -> bool:
    """True if a load is less than the sum of its parts: transfers overlap."""
    return any(part.stage.load_s < bar_length(part.stage) * (1 - SUM_TOLERANCE) for part in parts)


def bar_bound(plan: Plan, parts: Sequence[Part]) -> float | None:
    """The bound, where bars are drawn of the quantity it bounds; None: they are not."""
    alike = plan.objective == "throughput" and not plan.shared_s and not parts_overlap(parts)
    return plan.bound if alike and plan.bound > 0 else None


def most_loaded(parts: Sequence[Part], most: int) -> list[int]:
    """Numbers of the stages with the largest loads, in the order of the pipeline."""
    order = sorted(range(len(parts)), key=lambda i: (-parts[i].stage.load_s, i))
    return sorted(order[:most])


def shared_words(facts: Facts) -> list[str]:
    """Describe load and memory of shared stages on each device; empty: there are none."""
    plan = facts.plan
    if plan is None or len(plan.own) == len(plan.stages):
        return []
    memory = sum(stage.memory_bytes for stage in plan.stages if stage.shared)
    return [f"shared: {shown_time(plan.shared_s, facts.seconds)}, {shown_bytes(memory)}"]


def working(part: Part) -> Iterator[tuple[float, float]]:
    """Intervals in which a stage of a plan for latency computes: start and end of each."""
    stage = part.stage
    if stage.starts_s:
        for start, time in zip(stage.starts_s, part.times.tolist(), strict=False):
            yield start, start + time
    elif stage.begin_s is not None:
        yield stage.begin_s + stage.in_s, stage.begin_s + stage.in_s + stage.compute_s


@dataclass(frozen=True)
class Page:
    """Layout of a text."""

    width: int = 100
    """Columns."""
    plain: bool = False
    """ASCII alone."""
    color: bool = False
    """Bars in colours of a terminal."""
    more: bool = False
    """All rows; else the most important ones."""
    rows: int = 16
    """Rows of a list, unless `more`."""

    def most(self, count: int) -> int:
        """Number of rows of a list that are shown."""
        return count if self.more else min(count, self.rows)


def lacking(excess_bytes: float) -> str:
    """Describe a plan that exceeds the memory of a device."""
    return f"infeasible: a device lacks {shown_bytes(excess_bytes)} of memory"


def rule_words(facts: Facts) -> str:
    """The rules that a plan keeps, as the options that state them; empty: there are none."""
    return "" if facts.plan is None else " ".join(rule.words for rule in facts.plan.rules)


def plan_notes(facts: Facts) -> list[str]:
    """Say what rules a plan keeps, and why devices are idle; empty: neither."""
    plan, idle = facts.plan, [str(r["idle"]) for r in facts.stream.get("plan") if "idle" in r]
    if plan is None or not plan.rules:
        return idle
    proven = "no split that keeps them is better"
    if plan.status != "optimal":
        proven = "bound and gap are those of splits that keep them"
    return [f"rules: {rule_words(facts)}: {proven}", *idle]


def shown_rate(value: float) -> str:
    """Format samples a second, from the time that one takes.

    >>> shown_rate(0.002), shown_rate(8.667e-5), shown_rate(0.0)
    ('500/s', '11538/s', '-')
    """
    if not value > 0:
        return "-"
    return f"{1 / value:.0f}/s" if 1e-9 < value < 1e-3 else f"{1 / value:.4g}/s"


def shortened(text: str, width: int) -> str:
    """A name on at most `width` columns: without a number of layers, or else its middle.

    >>> shortened("layers.103 .. layers.111 (9 layers)", 24)
    'layers.103 .. layers.111'
    >>> shortened("/encoder/layer.11/attention/MatMul", 20)
    '/encoder...on/MatMul'
    >>> shortened("short", 20)
    'short'
    """
    text = printable(text)
    if len(text) > width and text.endswith(" layers)"):
        text = text.rpartition(" (")[0]
    if len(text) <= width:
        return text
    if width < 6:
        return text[:width]
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


MEANINGS = {
    "simple": "all devices share the work evenly, or the longest unit takes so long",
    "packing": "so many units of such times take some device so long, by themselves",
    "node-cut": "every stage that holds a certain unit computes and moves at least so much",
    "cpu-cut": "units that cost accelerators more are too many for the CPUs",
    "pairs": "pairs of units that share no stage make tensors move so often that the loads add up",
    "chain": "stages with smaller loads do not get to the end of a path through the graph",
    "zone-cut": "stages that pay at least for minimum cuts do not get to the end of a path",
    "same-block": "inequalities that every split meets, multiplied and added up",
    "cover": "units have prices, and too few stages with smaller loads to pay for all of them",
    "cover-cut": "units have prices; with smaller loads all devices hold less than there is",
    "ideal": "all order ideals were searched",
    "halves": "a tree of cuts leaves no better split over two devices",
    "links": "not even the best links between the devices allow less",
    "exact": "an integer program of all splits, or its relaxation",
}
"""Argument of a certificate -> its meaning."""


def proof_lines(facts: Facts) -> list[str]:
    """The bound, what was tried for it, and what its certificate says."""
    record = facts.bound
    if record is None:
        return []
    value, gap = shown_time(record["value"], facts.seconds), facts.shown_gap(record["gap"])
    lines = [
        f"bound by {record['method']}: {value}, gap {gap}, {record['status']}, for "
        f"{record['validity']} splits"
    ]
    rows = [
        [
            entry["method"],
            entry["status"],
            shown_time(entry.get("value"), facts.seconds),
            printable(entry.get("reason", "")),
        ]
        for entry in record["tried"]
    ]
    if rows:
        lines += [line.rstrip() for line in table(["tried", "", "value", ""], rows, left=(0, 1, 3))]
    certificate = record.get("certificate")
    if certificate is not None:
        argument = str(certificate["argument"])
        meaning = MEANINGS.get(argument)
        text = f"certificate: {printable(argument)}" + (f": {meaning}" if meaning else "")
        lines += [text, "verify it with: dnnp-check --certificate"]
        if certificate.get("checkable") is False:
            lines[-1] = "it cannot be verified without the search that found it"
    return lines


METHODS = ("method", "value", "gap", "time", "", "")
"""Columns of `method_rows`; the last two are status and reason."""


def method_rows(facts: Facts) -> list[list[str]]:
    """Cells of what each method found, where several were tried."""
    if facts.plan is None:
        return []
    return [
        [
            one.method,
            shown_time(one.value, facts.seconds),
            "-" if one.value is None else facts.shown_gap(one.gap),
            "-" if one.time_s is None else shown_time(one.time_s, True),
            ", ".join(part for part in (one.validity, one.status) if part),
            one.reason,
        ]
        for one in facts.plan.tried
    ]


GENERATES = ("generates", "planned", "measured", "at 99 %")
"""Columns of `generation_rows`."""


def generation_rows(facts: Facts) -> list[list[str]]:
    """Cells of the rates of a plan and of its last run; empty: it generates nothing."""
    plan, ran = facts.plan, (facts.stream.get("generation") or [{}])[-1]
    if plan is None or (plan.options.workload is None and not ran):
        return []
    planned = plan.options.workload and plan.options.workload.rows
    rows = [
        [name, *("-" if n is None else f"{n:.4g}" if n < 1000 else f"{n:.0f}" for n in pair), ""]
        for name, *pair in (
            ("tokens/s", plan.tokens_per_s, ran.get("tokens_per_s")),
            ("sequences under way", plan.options.in_flight, ran.get("in_flight")),
            ("sequences a pass", planned, ran.get("rows")),
        )
    ]
    for name, time in (("ttft", plan.ttft_s), ("tpot", plan.tpot_s)):
        times = time, *(ran.get(f"{name}_p{part}_s") for part in (50, 99))
        rows.append([name.upper(), *(shown_time(t, in_seconds=True) for t in times)])
    if ran.get("interrupted"):
        rows.append(["interrupted after", "", counted(ran["sequences"], "sequence"), ""])
    return rows


def way_rows(facts: Facts) -> list[list[str]]:
    """Cells of each compared way to use the devices: name, and value or reason."""
    if facts.plan is None:
        return []
    return [
        [way.name, way.reason or shown_time(way.value, facts.seconds)] for way in facts.plan.ways
    ]


def verdict_words(run: Record) -> str:
    """Say by how much outputs of a run differ from the whole model's, and what is allowed."""
    error, relative = run.get("max_abs_error"), run.get("max_rel_error")
    said = [run.get("mismatch") or ("" if error is None else f"largest error {error:.3g}")]
    said += [] if not relative else [f"{relative:.2g} of the largest value"]
    said += [f"rtol {run['rtol']:g}, atol {run['atol']:g}"] if "rtol" in run else []
    return ", ".join(filter(None, said))


def run_notes(run: Record) -> list[str]:
    """Say where a run parts from the whole model, and what it advises to deploy; empty: neither."""
    found, place = run.get("choice"), located_words(run.get("located", {}))
    advice = f"to deploy: {found['mode']}, {found['reason']}" if found else ""
    return [*filter(None, (place, advice))]
