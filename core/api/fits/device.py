"""Make a device file for this machine from measured operators."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dnnp.callbacks import Callbacks
from dnnp.core.extras import operator_times
from dnnp.core.extras.fit import Block, Fit, fit
from dnnp.core.extras.operator_grid import Case, grid
from dnnp.core.extras.operator_times import cache_sizes, channel_block, copy_rate, memory_size
from dnnp.core.model.device_rates import DeviceRates
from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.search_context import Progress
from dnnp.core.profile.kernels import Kernels, subset
from dnnp.core.profile.work import work_of
from dnnp.core.runtime.model.providers import ort_version
from dnnp.formats.files import read_file, scratch_folder, whole_file
from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.inputs.cost_cache import cpu_model, default_folder, key_of
from dnnp.formats.inputs.devices import DeviceSpec, load_device, parse_device
from dnnp.formats.stream import Record, read_bytes
from dnnp.loading import load_onnx
from dnnp.options.table import DEFAULT_DEVICE, HERE
from dnnp.pricing import fused, kernels_by, kernels_in

Tell = Callable[[int, int, str], None]
"""Told how many points of how many are measured, and which is next."""

_START_BANDWIDTH, _START_LAUNCH, _START_PEAK = 20e9, 3e-7, 1e11
_CACHE_BANDWIDTH = 60e9
_LEAST_S = 1e-6
"""Least time of a group that is used: shorter ones are measured too coarsely."""
_OPEN = 0.1
"""Weight of a block of operators beside groups of models: it tells what these leave open."""
_GROUPS = "groups of "
"""Beginning of the kinds of blocks that are groups of a model."""
HERE_S = 20.0
"""Time in which this machine's rates are measured."""
_POINT_S, _FIT_S = 0.015, 4.0
"""Of this time, what a point takes, and what is left for the fit."""
_VERSION = 1
"""Raised whenever points or fit change: files of other versions are measured anew."""
_FAR = 10
"""Blocks in the two measured chains of a case together: their weights compete for the caches."""


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit: what to fit, and how long to measure."""

    name: str = "my-cpu"
    """Name of the device."""
    threads: int = 1
    """Threads of one stage; the device is as many cores."""
    seconds: float = 0.1
    """Time that the runs of one point take."""
    beside: int = 1
    """Other threads that run the same operators meanwhile, as other stages would."""
    quick: bool = False
    """A few small points only: to try things, not to price models."""
    streams: Sequence[str] = ()
    """Files of streams that `dnnp-profile --mode measure` priced on this machine's CPU: their
    groups were timed as stages run, and count most."""
    limit_s: float = math.inf
    """No point is begun later; those of other kinds than before come first."""


@dataclass(frozen=True)
class Measured:
    """Blocks with the kind of each, and what was not measured."""

    blocks: Sequence[Block]
    kinds: Sequence[str]
    failed: Sequence[str] = ()


def fit_device(options: FitOptions, tell: Tell = lambda done, total, title: None) -> Record:
    """Measure operators on this machine's CPU with ONNX Runtime, and fit a device to them.

    Returns
    -------
    dict
        The contents of a device file.

    Raises
    ------
    InputFileError
        ONNX Runtime runs none of the points, or a stream cannot be read.
    UsageError
        A stream was not measured on a CPU with as many threads.
    """
    groups = [group_blocks(path, options.threads) for path in options.streams]
    cases = grid(options.threads, quick=options.quick)
    if options.limit_s < math.inf:
        cases = _kinds_in_turn(cases)
    chains = measured(cases, options.seconds, options.beside, tell, options.limit_s)
    weight = _OPEN if groups else 1.0
    seen = Measured(
        [replace(block, weight=weight * block.weight) for block in chains.blocks]
        + [block for group in groups for block in group.blocks],
        [*chains.kinds, *(kind for group in groups for kind in group.kinds)],
        chains.failed,
    )
    return _record(options, fit(seen.blocks, start_of_machine()), seen)


def device_here(threads: int, cache: str | None, caller: Callbacks, *, keep: bool) -> DeviceSpec:
    """The device of this machine's processor: as it was measured before, or measured now.

    Parameters
    ----------
    threads
        Threads of a stage.
    cache
        Folder where its file is; None: the user's own.
    keep
        Look there, and write there what is measured.

    Raises InputFileError: ONNX Runtime runs none of the operators that are measured.
    """
    begin, beside = time.perf_counter(), min(1, len(available_cores()) // threads - 1)
    facts = {"cpu": cpu_model(), "caches": cache_sizes(), "threads": threads, "beside": beside}
    facts |= {"onnxruntime": ort_version(), "version": _VERSION}
    folder = default_folder() if cache is None else Path(cache)
    path = folder / f"{HERE}-{key_of(facts)[:16]}.json"
    with suppress(InputFileError, FormatError):
        if keep:
            found = parse_device(read_file(path), str(path))
            caller.note(f"{HERE}: rates measured before: {path}")
            return found
    doing = f"measuring the rates of {facts['cpu']}"
    caller.note(f"{HERE}: {doing}, some {HERE_S:.0f} s, once")
    with caller.progress(doing) as bar:

        def tell(done: int, total: int, title: str) -> None:
            share = max(done / total, (time.perf_counter() - begin) / HERE_S)
            bar.update(Progress(doing, share=min(share, 1.0)))

        limit_s = HERE_S - _FIT_S
        options = FitOptions(HERE, threads, _POINT_S, max(beside, 0), limit_s=limit_s)
        record = fit_device(options, tell)
    took = f"{HERE}: {record['notes'][2]}; took {time.perf_counter() - begin:.0f} s"
    try:
        if keep:
            folder.mkdir(parents=True, exist_ok=True)
            write_device(record, str(path))
            took += f", kept as {path}"
    except (OSError, InputFileError):
        caller.detail(f"{folder}: cannot be written; the rates are not kept")
    caller.note(took)
    return parse_device(json.dumps(record).encode(), HERE)


def write_device(record: Record, path: str) -> None:
    """Write a device file atomically.

    Raises InputFileError: it cannot be written.
    """
    data = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    with whole_file(path) as file:
        file.write(data.encode())


def group_blocks(path: str, threads: int) -> Measured:
    """A block for each group of a measured stream.

    Groups count by the square root of their share of the time, at most 1: what matters is right,
    and a model of many small groups does not outvote the others.

    Raises
    ------
    InputFileError, FormatError
        There is no such file, or it is malformed.
    UsageError
        It has no groups of one class, or was not measured on a CPU with as many threads.
    """
    stream = read_bytes(read_file(path), path)
    how = stream.header.get("measured", {})
    if how.get("provider") != "cpu" or how.get("threads") != threads:
        many = f"{threads} thread{'s' if threads > 1 else ''}"
        raise UsageError(f"{path}: not priced by dnnp-profile --mode measure on a CPU, with {many}")
    graph = graph_of(stream)
    groups = clustering_of(stream, graph)
    if groups is None or len(groups.times) != 1:
        raise UsageError(f"{path}: no groups, or costs of several device classes")
    work = work_of(graph, stream.get("node"), stream.get("tensor"))
    kernels, group = kernels_in(stream, graph, groups, work, fused(stream, graph))
    (times,) = groups.times.values()
    nothing = subset(kernels, np.zeros(len(group), dtype=np.bool_))
    blocks = []
    for g in np.flatnonzero(times > _LEAST_S).tolist():
        inside = subset(kernels, group == g)
        if inside.starts.any():
            weight = min(float(times[g] / times.mean()) ** 0.5, 1.0)
            blocks.append(Block(inside, nothing, 1, float(times[g]), weight))
    kind = f"{_GROUPS}{stream.header.get('model', path)}"
    return Measured(blocks, [kind] * len(blocks))


def _kinds_in_turn(cases: Sequence[Case]) -> list[Case]:
    """The first case of each kind, then the second of each, and so on."""
    turn = defaultdict[str, Iterator[int]](itertools.count)
    return sorted(cases, key=lambda case: next(turn[case.kind]))


def measured(
    cases: Sequence[Case], seconds: float, beside: int, tell: Tell, limit_s: float = math.inf
) -> Measured:
    """Time cases until `limit_s` have passed; the titles of those that fail are kept."""
    until = time.perf_counter() + limit_s
    kinds: list[str] = []
    blocks: list[Block] = []
    failed: list[str] = []
    reason = "they take less than can be told"
    for done, case in enumerate(cases):
        if blocks and time.perf_counter() > until:
            failed.append(f"{len(cases) - done} more, for want of time")
            break
        tell(done, len(cases), case.title)
        try:
            spent = operator_times.block_time(case, seconds, beside)
        except InputFileError as error:
            spent, reason = 0.0, str(error)
        if spent > 0:
            kinds.append(case.kind)
            blocks.append(
                Block(chain_kernels(case, 3), chain_kernels(case, 2), 1, spent, case.weight)
            )
        else:
            failed.append(case.title)
    tell(len(cases), len(cases), "")
    if not blocks:
        raise InputFileError(f"no operator could be measured: {reason}")
    return Measured(blocks, kinds, failed)


def chain_kernels(case: Case, length: int) -> Kernels:
    """Kernels of a chain; its weights lie where those of the chains that were measured do."""
    with scratch_folder() as folder:
        path = Path(folder) / "operators.onnx"
        path.write_bytes(case.chain(length).SerializeToString())
        stream = load_onnx(str(path))
    graph = graph_of(stream)
    work = work_of(graph, stream.get("node"), stream.get("tensor"))
    units = fused(stream, graph)
    label = np.unique(units[0], return_inverse=True)[1].reshape(-1)
    kernels = kernels_by(stream, graph, work, label, units)
    return replace(kernels, model_weights=kernels.model_weights * (_FAR / length))


def start_of_machine() -> DeviceRates:
    """Facts of this machine by the system, and rates to start a fit from."""
    caches = [(float(size), _CACHE_BANDWIDTH) for size in cache_sizes()]
    peak = {"float32": _START_PEAK}
    return DeviceRates(peak, _START_BANDWIDTH, _START_LAUNCH, caches, channel_block())


def _record(options: FitOptions, found: Fit, seen: Measured) -> Record:
    machine = found.machine
    caches = cache_sizes()
    cores = f"{options.threads} cores" if options.threads > 1 else "one core"
    record: Record = {
        "name": options.name,
        "description": f"{cpu_model()}, {cores}",
        "kind": "accelerator",
        "provider": "cpu",
        "peak_flop_per_s": {name: _short(rate) for name, rate in machine.peak_flop_per_s.items()},
        "memory_bytes": memory_size(),
        "overhead_bytes": load_device(DEFAULT_DEVICE).overhead_bytes,
    }
    if caches:
        record["fast_memory_bytes"] = caches[0]
    return record | {
        "memory_bandwidth_bytes_per_s": _short(machine.memory_bandwidth_bytes_per_s),
        "link_bandwidth_bytes_per_s": _short(copy_rate()),
        "launch_overhead_s": _short(machine.launch_overhead_s),
        "efficiency": dict(machine.efficiency),
        "caches": [
            {"bytes": int(size), "bandwidth_bytes_per_s": _short(rate)}
            for size, rate in machine.caches
        ],
        "channel_block": machine.channel_block,
        "operators": {
            family: {
                dtype: {name: _short(value) for name, value in vars(rate).items()}
                for dtype, rate in rates.items()
            }
            for family, rates in machine.operators.items()
        },
        "notes": _notes(options, found, seen),
        "sources": [f"ONNX Runtime {ort_version()}: measured on {cpu_model()}, {cores}"],
    }


def _notes(options: FitOptions, found: Fit, seen: Measured) -> list[str]:
    """Notes on what was fitted, on what, and how well."""
    seconds = np.array([block.seconds for block in seen.blocks])
    errors = np.abs(found.predicted_s / seconds - 1).tolist()
    # Beside groups, blocks of operators count little, as they take less than in a model.
    heeded = [k.startswith(_GROUPS) or not options.streams for k in seen.kinds]
    kinds = sorted(itertools.compress(zip(seen.kinds, errors, strict=True), heeded))
    off = np.array([error for _, error in kinds])
    by_kind = [
        f"{kind} {np.median([error for _, error in pairs]):.0%}"
        for kind, pairs in itertools.groupby(kinds, key=lambda pair: pair[0])
    ]
    notes = [
        "kind: a pipeline stage on a core pays for transfers and has a capacity, so it is an "
        "accelerator of the cost model",
        f"operators, caches, memory_bandwidth_bytes_per_s, launch_overhead_s: fitted by "
        f"dnnp.samples.fit_device to {len(seen.blocks)} blocks of operators, "
        f"of {options.threads} threads, {options.beside} of the same kind beside them"
        + (", a quick grid" if options.quick else "")
        + (f", and groups of {len(options.streams)} models as they run" * bool(options.streams)),
        f"residuals: median {np.median(off):.1%}, nine of ten within "
        f"{np.percentile(off, 90):.0%}, worst {off.max():.0%}",
        f"median residuals by kind of block: {', '.join(by_kind)}",
        "peak_flop_per_s: the highest rate among the blocks; link_bandwidth_bytes_per_s: one "
        "thread copying memory; memory_bytes: of the whole machine",
    ]
    if seen.failed:
        notes.append(f"not measured: {', '.join(seen.failed)}")
    return notes


def _short(value: float) -> float:
    """Three digits, as an integer where it is one."""
    short = float(f"{value:.3g}")
    return int(short) if short >= 1e3 else short
