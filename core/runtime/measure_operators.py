"""Times of operators and groups on this machine, by ONNX Runtime's own profiler.

Nodes are timed in one session without graph optimisation, so that they keep their names.
Groups are timed as models of their own at the level that the runner uses, so that what
ONNX Runtime fuses inside a group is fused in the measurement too.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.limits import making_session, watched
from dnnp.core.runtime.model.inputs import Sample, blaming, random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import CpuStage, make_session, open_session
from dnnp.core.runtime.model.weights import Weights, absent_files, random_weights, use_weights
from dnnp.core.runtime.usage import DISTURBED, WaitClock, with_threads
from dnnp.formats.files import scratch_folder
from dnnp.formats.inputs.cost_files import Charge, Spent, charge_of, net, node_events, spent_by

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx.value_types import TensorType

T = TypeVar("T")
Ints = np.ndarray[Any, np.dtype[np.intp]]
Runs = dict[str, Spent]
"""Node name -> what it took in each counted run."""

_SEED = 0
"""Seed of the random inputs and weights."""
_DISTINCT = 4
"""Random inputs, as many as a run draws."""
_GROUP = "group "
"""Beginning of the names of groups."""
_LAYOUT_CHANGES = frozenset({"ReorderInput", "ReorderOutput"})
"""Inside a stage a layout holds over many groups; a group alone pays for both ends."""
MOST_REPEATS = 3
"""Most runs made, as a multiple of those counted, to find undisturbed ones."""
PATIENCE_S = 2.0
"""Runs are made beyond those that are to count for so long only, seconds."""
_EMPTY_NODES, _EMPTY_RUNS = 64, 40
"""Size and runs of a model without work, to measure the profiler's overhead."""


@dataclass(frozen=True)
class Measurement:
    """Settings of a measurement."""

    threads: int = 1
    repeats: int = 10
    warmup: int = 3
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Shape of each input of the model, where it declares none."""
    taken: Callable[[float], None] = lambda share: None
    """Callback after each model: share of its time lost to other processes."""
    provider: str = "cpu"
    """Execution provider, as in `SessionConfig`."""
    optimization: str = "all"
    """Level at which groups are timed: that of the run."""
    saw: Callable[[Sequence[Any]], None] = lambda events: None
    """Callback with the events of the profile of each model."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of the provider, as in `SessionConfig`."""

    def config(self, optimization: str | None = None) -> SessionConfig:
        """Configuration of sessions at an optimisation level; None: that of the run.

        Fallback to the CPU is allowed: the profile says which provider ran each node.
        """
        return SessionConfig(
            self.provider,
            optimization or self.optimization,
            self.threads,
            pin=False,
            options=self.options,
            allow_fallback=True,
        )


def measure_nodes(model: ModelProto, folder: Path, how: Measurement) -> list[float]:
    """Time every node of a model; seconds, by index in the main graph.

    The time of what ONNX Runtime inlines for a node (a local function, an operator without a
    kernel) and of the casts it inserts around it is the node's; nodes of `If`, `Loop` and
    `Scan` bodies are part of the node that holds them. Nodes that do not run, such as
    `Constant`, take 0.

    Raises `InputFileError` if weights are missing, or ONNX Runtime cannot load or run the model.
    """
    feeds, weights = prepare(model, folder, how)
    named = with_unique_names(model)
    count = len(named.graph.node)
    if weights:
        named = use_weights(named, weights)

    def profiled(model: ModelProto) -> Runs:
        with blaming(feeds):
            return _profiled(model, folder, "disable", how, weights, feeds)[0]

    runs = profiled(named)
    owner = {f"n{i}": i for i in range(count)}
    if _unowned(runs, owner) and (resolved := resolved_model(named)) is not None:
        owners = owners_of(resolved, named, owner)
        nodes = resolved.graph.node
        owner.update((n.name, v) for n, v in zip(nodes, owners, strict=True) if n.name)
        if _unowned(runs, owner):
            # ONNX Runtime leaves some without a name. A resolved model that does not load again,
            # since names in its bodies repeat, leaves the first runs.
            names = [f"n{v}#{position}" for position, v in enumerate(owners)]
            for node, name in zip(nodes, names, strict=True):
                node.name = name
            with suppress(InputFileError):
                runs = profiled(resolved)
                owner = {name: v for name, v in zip(names, owners, strict=True) if v >= 0}
    return _sums(runs, [owner.get(name, -1) for name in runs], count)


def measure_groups(
    model: ModelProto,
    folder: Path,
    groups: Sequence[Sequence[int]],
    how: Measurement,
    types: Mapping[str, TensorType] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[float]:
    """Time every group as a model of its own; seconds, by group.

    Groups run in an order in which each finds what it reads; all run on the values that the
    whole model would give them. Changes of data layout at the ends do not count.

    Parameters
    ----------
    groups
        Node indices of each group in execution order; they must form an ordered split.
    types
        Types of tensors that the model does not declare.
    progress
        Called with the number of groups done.

    Raises
    ------
    FormatError
        The groups wait for each other in a circle, or hand over a sequence.
    InputFileError
        Weights are missing, or ONNX Runtime cannot load or run a group.
    """
    from dnnp.formats.onnx.stages import MODEL, split_model

    feeds, weights = prepare(model, folder, how)
    stages = split_model(model, groups, types)
    readers: dict[str, int] = defaultdict(int)
    for stage in stages:
        for name in stage.inputs:
            readers[name] += 1
    times = [0.0] * len(stages)
    values = dict(feeds)
    before = {i: sorted({*stage.sources.values()} - {MODEL}) for i, stage in enumerate(stages)}
    for done, i in enumerate(TopologicalSorter(before).static_order(), 1):
        stage = stages[i]
        part = with_unique_names(stage.model)
        part.graph.name = f"{_GROUP}{i}"
        if weights:
            part = use_weights(part, weights)
        own = {name: values[name] for name in stage.inputs}
        with blaming(feeds):
            runs, results = _profiled(part, folder, how.optimization, how, weights, own)
        counted = [-int(one.op in _LAYOUT_CHANGES) for one in runs.values()]
        (times[i],) = _sums(runs, counted, 1)
        values.update(results)
        for name in stage.inputs:
            readers[name] -= 1
            if not readers[name]:
                del values[name]
        progress(done)
    return times


def prepare(model: ModelProto, folder: Path, how: Measurement) -> tuple[Sample, Weights]:
    """Random inputs, and values for weights that the model only makes while it runs."""
    absent = absent_files(model, folder)
    if absent:
        location, tensor = next(iter(absent.items()))
        raise InputFileError(
            f"{folder / location}: no such file; it holds weights of the model ('{tensor}'), "
            "and a model without weights cannot be measured; --mode analytic needs none"
        )
    return random_inputs(model, _SEED, shapes=how.shapes), random_weights(model, _SEED, folder)


def distinct_inputs(model: ModelProto, how: Measurement) -> list[Sample]:
    """Random inputs for a pipeline, which takes them in turn."""
    return [random_inputs(model, [_SEED, i], shapes=how.shapes) for i in range(_DISTINCT)]


_BODY = re.compile(r"b#(n\d+|f)#\d+$")
"""Names of nodes in bodies, behind any prefix of inlining; the group is their holder."""


def with_unique_names(model: ModelProto) -> ModelProto:
    """A copy whose nodes are called n0, n1, ...; in bodies b#n0#0, ...; in functions f#0, ..."""
    from dnnp.formats.onnx.scope import inner_nodes

    copy = type(model)()
    copy.CopyFrom(model)
    bodies = functions = 0
    for i, node in enumerate(copy.graph.node):
        node.name = f"n{i}"
        for inner in inner_nodes(node):
            inner.name = f"b#n{i}#{bodies}"
            bodies += 1
    for function in copy.functions:
        for node in function.node:
            node.name = f"f#{functions}"
            functions += 1
            for inner in inner_nodes(node):
                inner.name = f"b#f#{bodies}"
                bodies += 1
    return copy


def _sums(runs: Runs, owners: Sequence[int], count: int) -> list[float]:
    """Seconds of each of `count` owners, by those of each node; of below 0 nothing counts."""
    found = np.zeros((count, 2, next((len(one.times) for one in runs.values()), 1)))
    for owner, one in zip(owners, runs.values(), strict=True):
        if owner >= 0:
            found[owner] += one.times, one.added
    return [net(*both) * 1e-6 for both in found]


def _profiled(
    model: ModelProto,
    folder: Path,
    optimization: str,
    how: Measurement,
    weights: Weights,
    feeds: Mapping[str, Any],
    *,
    empty: bool = False,
) -> tuple[Runs, dict[str, Any]]:
    """Run a model under the profiler; if it is `empty`, to learn what that adds.

    Returns what each node took, and the outputs of the last run.
    """
    config = replace(how.config(optimization), alone=True)
    results: dict[str, Any] = {}
    title = model.graph.name if model.graph.name.startswith(_GROUP) else "the model"
    try:
        with scratch_folder() as scratch:
            profile = os.path.join(scratch, "p")
            with making_session(title):
                session, threads = with_threads(
                    lambda: make_session(model, folder, config, weights, profile)
                )
            stage = CpuStage(session, tuple(o.name for o in session.get_outputs()))
            for _ in range(how.warmup):
                with watched(title):
                    results = stage(feeds)
            shares: list[float] = []
            begin = time.perf_counter()
            while _is_wanted(shares, how.repeats, time.perf_counter() - begin):
                with watched(title):
                    results, share = _timed(partial(stage, feeds), threads)
                shares.append(share)
            events = orjson.loads(Path(session.end_profiling()).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputFileError(f"ONNX Runtime's profile cannot be had: {error}") from None
    how.saw(events)
    charge = Charge() if empty else profiler_charge()
    spent, seen = spent_by(*node_events(events, profile), charge)
    # The least disturbed runs count; the profiler stops after a million events.
    kept = np.argsort(shares, kind="stable")[: how.repeats]
    how.taken(float(np.mean(np.array(shares)[kept])))
    rows = how.warmup + kept
    rows = rows[rows < len(seen)] if rows.min() < len(seen) else np.arange(len(seen))
    return {n: Spent(s.op, s.times[rows], s.added[rows]) for n, s in spent.items()}, results


@cache
def profiler_charge() -> Charge:
    """Measure what the profiler adds here, by nodes that do next to nothing."""
    from onnx import parser

    nodes = "".join(f"t{i + 1} = Neg (t{i}) " for i in range(_EMPTY_NODES))
    ends = f"(float[1,2,8] t0) => (float[1,2,8] t{_EMPTY_NODES})"
    text = f'<ir_version: 8, opset_import: ["" : 13]> empty {ends} {{ {nodes} }}'
    rows: list[Any] = []
    how = Measurement(repeats=_EMPTY_RUNS, saw=rows.extend)
    feeds = {"t0": np.zeros((1, 2, 8), np.float32)}
    model = with_unique_names(parser.parse_model(text))
    _profiled(model, Path(), "disable", how, {}, feeds, empty=True)
    return charge_of(*node_events(rows, "profile"))


def _timed(call: Callable[[], T], threads: Sequence[int]) -> tuple[T, float]:
    """Make a call; returns its result, and the share of its time that other processes took."""
    waits, start = WaitClock(threads), time.perf_counter_ns()
    result = call()
    spent = time.perf_counter_ns() - start
    return result, min(waits.passed_ns(threads) / max(spent, 1), 1.0)


def _is_wanted(shares: Sequence[float], repeats: int, spent_s: float) -> bool:
    """True if another run is needed, by the shares of time lost in those before."""
    if len(shares) < repeats:
        return True
    quiet = sum(share <= DISTURBED for share in shares)
    return quiet < repeats and len(shares) < MOST_REPEATS * repeats and spent_s < PATIENCE_S


def _unowned(runs: Runs, owner: Mapping[str, int]) -> bool:
    """True if a node ran whose owner is unknown; nodes of bodies have theirs."""
    return any(name not in owner and not _BODY.search(name) for name in runs)


_SMALL_ELEMENTS = 256
"""Weights that the resolving session gets to see: they may be shapes."""


def resolved_model(model: ModelProto) -> ModelProto | None:
    """The model as ONNX Runtime runs it without optimisation; None if it cannot be had.

    Functions are inlined in it, operators without a kernel expanded, casts inserted. Weights
    are kept from the resolving session, as only the structure matters to it.
    """
    import onnx

    from dnnp.formats.onnx.scope import leave_only

    light = onnx.ModelProto()
    light.CopyFrom(model)
    large = {t.name: t for t in model.graph.initializer if math.prod(t.dims) > _SMALL_ELEMENTS}
    leave_only(light.graph.initializer, lambda tensor: tensor.name not in large)
    declared = {v.name for v in model.graph.input}
    for tensor in large.values():
        if tensor.name not in declared:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    try:
        with scratch_folder() as scratch:
            path = os.path.join(scratch, "resolved.onnx")

            def tune(options: Any) -> None:
                options.optimized_model_filepath = path

            config = SessionConfig(optimization="disable", pin=False)
            with making_session("the model"):
                open_session(light.SerializeToString(), Path(), config, tune=tune)
            resolved = onnx.load(path, load_external_data=False)
    except (InputFileError, OSError):
        return None
    leave_only(resolved.graph.input, lambda v: v.name in declared or v.name not in large)
    resolved.graph.initializer.extend(large.values())
    return resolved


def owners_of(resolved: ModelProto, model: ModelProto, known: Mapping[str, int]) -> list[int]:
    """Index of the node in `model` that each node of a resolved model serves; -1: none.

    Tensors of the model keep their names when ONNX Runtime inlines and inserts nodes: all nodes
    on the way to an output of a node, through new tensors, belong to it.
    """
    original = {name: known[n.name] for n in model.graph.node for name in n.output if name}
    original.update((v.name, -1) for v in model.graph.input)
    original.update((t.name, -1) for t in model.graph.initializer)
    wanted: dict[str, int] = {}
    owners: list[int] = []
    for node in reversed(resolved.graph.node):
        owner = known.get(node.name, -1)
        for name in node.output:
            if owner < 0:
                owner = original.get(name, wanted.get(name, -1))
        owners.append(owner)
        for name in node.input:
            if name not in original:
                wanted.setdefault(name, owner)
    return owners[::-1]
