"""Price a stream by timing its model on this machine, or by what an earlier timing found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from dnnp.callbacks import Callbacks, check_nodes, open_source
from dnnp.core.model.errors import FormatError, UnavailableError
from dnnp.core.model.graph import Floats
from dnnp.core.model.processes import available_cores
from dnnp.core.model.search_context import Progress
from dnnp.core.model.text import called, counted, shown_seconds
from dnnp.core.runtime.measure_in_situ import (
    SURE,
    InSitu,
    Rounds,
    measure_parts,
    order_of,
    parts_of,
)
from dnnp.core.runtime.measure_operators import (
    Measurement,
    measure_groups,
    measure_nodes,
    profiler_charge,
    with_unique_names,
)
from dnnp.core.runtime.model.providers import (
    CPU,
    MEMORIES,
    PROVIDERS,
    CpuFallback,
    gpu_name,
    ort_version,
    places,
    provider_name,
    require_provider,
    shape_nodes,
    short_name,
)
from dnnp.core.runtime.usage import DISTURBED
from dnnp.formats.graph import clustering_of, graph_of
from dnnp.formats.inputs import cost_cache
from dnnp.formats.inputs.cost_cache import MeasuredCosts, cpu_model, groups_digest
from dnnp.formats.inputs.cost_files import where_it_ran
from dnnp.formats.inputs.devices import DeviceSpec
from dnnp.formats.onnx.value_types import known_shapes, types_of
from dnnp.formats.stream import Stream
from dnnp.options.graph import ProfileOptions
from dnnp.pricing import check_units, write_costs

_SETTING = ("provider", "threads", "optimization")

EVEN_S = 1e-4
"""Time of each node where none is known, to cut parts by, seconds."""


def price_measured(stream: Stream, device: DeviceSpec, options: ProfileOptions) -> None:
    """Price a stream by timing its model, or by what an earlier timing found."""
    options = checked(stream, options)
    write_measured(stream, device, measured_costs(stream, options), options.caller)


def checked(stream: Stream, options: ProfileOptions) -> ProfileOptions:
    """Refuse what cannot be timed; give the provider its usual name."""
    check_units(stream)
    require_provider(options.provider)
    clustering_of(stream, graph_of(stream), priced=False)
    return options.replaced(provider=short_name(options.provider))


def measured_costs(stream: Stream, options: ProfileOptions) -> MeasuredCosts:
    """Find what the model of a stream takes, measured now or before."""
    caller = options.caller
    model, path, digest = open_source(caller, stream, options.model)
    groups = [record["nodes"] for record in stream.get("group")]
    shapes = known_shapes(stream, "input")
    beside = _beside(stream, options)
    facts = _facts(options, digest, groups, shapes, beside)
    source = stream.header.get("source", {})
    facts |= {name: source[name] for name in ("set_inputs", "keep_outputs") if name in source}
    key = cost_cache.key_of(facts)
    folder = cost_cache.default_folder() if options.cache is None else Path(options.cache)
    costs = None
    if not options.no_cache:
        costs = cost_cache.load(folder, key, len(stream.get("node")), len(groups))
    if costs is not None:
        caller.note(f"costs measured before: {folder / key}.json")
        return costs
    check_nodes(stream, model, path)
    costs = _time_model(stream, model, path.parent, options, beside)
    keep = not (options.no_cache or costs.how.get("disturbed"))
    if keep and not cost_cache.store(folder, key, costs, facts):
        caller.detail(f"{folder}: cannot be written; the costs are not kept")
    return costs


def write_measured(
    stream: Stream, device: DeviceSpec, costs: MeasuredCosts, caller: Callbacks
) -> None:
    """Put measured costs into a stream, and what is known of the measurement."""
    name = device.name
    group_costs, how = None, "measured"
    if stream.get("group"):
        group_costs = {name: list(costs.group_s or ())}
        if costs.group_s is None:
            time_of = dict(zip((r["id"] for r in stream.get("node")), costs.node_s, strict=True))
            groups = [record["nodes"] for record in stream.get("group")]
            group_costs = {name: [sum(time_of[v] for v in members) for members in groups]}
            how = "summed"
    device = replace(device, provider=costs.how["provider"])
    write_costs(stream, [device], {name: list(costs.node_s)}, group_costs, how, caller)
    for kind, spreads in (("node", costs.node_spread), ("group", costs.group_spread)):
        for record, spread in zip(stream.get(kind), spreads, strict=bool(spreads)):
            record["spread"] = spread
    stream.header["measured"] = dict(costs.how)
    caller.note(f"{stream.header['model']}: {_in_words(costs)}")


def _in_words(costs: MeasuredCosts) -> str:
    """Describe a measurement in one line."""
    how = costs.how
    spread = f" +- {how['spread']:.1%}" if "spread" in how else ""
    rounds = counted(how["rounds"], "round")
    parts = "one piece" if not how["beside"] else f"{1 + how['beside']} parts side by side"
    return (
        f"{shown_seconds(how['total_s'])}{spread} in {parts}, {shown_seconds(how['cold_s'])} with "
        f"cold caches; {rounds}"
    )


def _beside(stream: Stream, options: ProfileOptions) -> int:
    """Parts that run beside each: for as many devices as the stream offers, or two.

    No more than there are cores for, unless a number is given.
    """
    if options.beside is not None:
        return options.beside
    known = sum(record.get("count", 0) for record in stream.get("device"))
    room = len(available_cores()) // options.threads
    return max(min(known or 2, room) - 1, 0)


def _facts(
    options: ProfileOptions,
    digest: str,
    groups: list[list[int]],
    shapes: dict[str, list[int]],
    beside: int,
) -> dict[str, Any]:
    """Everything that the measured times depend on."""
    others: dict[str, Any] = {}
    if options.provider in MEMORIES:
        others["gpu"] = gpu_name()
    if options.provider_options:
        others["provider_options"] = dict(options.provider_options)
    if options.allow_fallback:
        others["allow_fallback"] = True
    return {
        **others,
        "model": digest,
        "onnxruntime": ort_version(),
        "cpu": cpu_model(),
        "cores": len(available_cores()),
        **{name: getattr(options, name) for name in (*_SETTING, "repeats", "warmup")},
        "beside": beside,
        "shapes": shapes,
        "groups": groups_digest(groups),
    }


def measurement(stream: Stream, options: ProfileOptions, taken: list[float]) -> Measurement:
    """The way to time nodes of a stream; shares of time that others took are added to `taken`."""
    return Measurement(
        options.threads,
        options.repeats,
        options.warmup,
        shapes=known_shapes(stream),
        taken=taken.append,
        provider=options.provider,
        optimization=options.optimization,
        options=options.provider_options,
    )


def _time_model(
    stream: Stream,
    model: ModelProto,
    folder: Path,
    options: ProfileOptions,
    beside: int,
) -> MeasuredCosts:
    """Time nodes and groups alone, then parts of the model as they will run."""
    caller = options.caller
    taken: list[float] = []
    ran: list[tuple[dict[str, set[str]], str]] = []
    name = provider_name(options.provider)

    def saw(events: Sequence[Any]) -> None:
        if name != PROVIDERS["cpu"]:
            ran.append(where_it_ran(events, "profile"))

    how = replace(measurement(stream, options, taken), saw=saw)
    with caller.progress("measuring nodes"):
        by_index = measure_nodes(model, folder, how)
    own_s = profiler_charge().within * 1e-6
    caller.note(f"{shown_seconds(own_s)} that the profiler adds to each node are taken off")
    left = _left_to_cpu(model, ran[0][0], options) if ran else ()
    ids = [record["id"] for record in stream.get("node")]
    groups = [record["nodes"] for record in stream.get("group")]
    groups_alone = None
    if groups:
        try:
            with caller.progress("measuring groups") as bar:

                def tell(done: int) -> None:
                    doing = f"measuring groups, {done} of {len(groups)}"
                    bar.update(Progress(doing, share=done / len(groups)))

                groups_alone = measure_groups(model, folder, groups, how, types_of(stream), tell)
        except FormatError as error:
            caller.note(
                f"groups cost the sum of their nodes, as they cannot be timed: {error.reason}"
            )
    for caveat in sorted({caveat for _, caveat in ran if caveat}):
        caller.warn(caveat)
    units, alone_s = ([[v] for v in ids], np.array([by_index[v] for v in ids]))
    if groups_alone is not None:
        units, alone_s = groups, np.array(groups_alone)
    if not alone_s.any():
        caller.warn(
            f"'{options.provider}' tells no times of single nodes: parts of equally many are "
            "timed, and share their time out evenly"
        )
        alone_s = np.full(len(units), EVEN_S)
    first, found = _time_parts(stream, model, folder, units, alone_s, how, beside, caller)
    facts: dict[str, Any] = {
        **{name: getattr(options, name) for name in _SETTING},
        "beside": len(found.parts) - 1,
        **_provider_facts(options, left),
        "rounds": found.rounds,
        "total_s": round(found.total_s, 9),
        "cold_s": round(found.cold_s, 9),
    }
    if found.taken is not None:
        taken.append(found.taken)
        facts["taken"] = round(found.taken, 6)
    if found.interval is not None:
        facts["spread"] = round(found.interval, 6)
    if say_disturbed(taken, caller):
        facts["disturbed"] = True
    node_s = found.times(first.times(np.array(by_index), units), units)
    spread_of = found.intervals(len(by_index), units)
    return MeasuredCosts(
        _rounded(node_s[ids]),
        None if groups_alone is None else _rounded(found.times(first.times(alone_s))),
        _rounded(spread_of[ids]) if len(spread_of) else (),
        () if groups_alone is None else _rounded(found.intervals(len(groups))),
        facts,
    )


def _provider_facts(options: ProfileOptions, left: Sequence[str]) -> dict[str, Any]:
    """Facts of a measurement besides the name of its provider."""
    facts: dict[str, Any] = {}
    if options.provider_options:
        facts["provider_options"] = [f"{name}={value}" for name, value in options.provider_options]
    if left:
        facts["fallback"] = list(left)
    return facts


def _left_to_cpu(
    model: ModelProto, ran: dict[str, set[str]], options: ProfileOptions
) -> tuple[str, ...]:
    """Nodes that the CPU ran in place of the provider, by a profile of the whole model.

    UnavailableError: there are some, and they were not allowed.
    """
    named = with_unique_names(model)
    shapes = shape_nodes(named)
    left = tuple(
        f"{node.op_type} '{node.name}'" if node.name else called(node.op_type, "", node.output)
        for node, alias in zip(model.graph.node, named.graph.node, strict=True)
        if alias.name in ran.get(CPU, ()) and (alias.name, alias.op_type) not in shapes
    )
    if not left:
        return ()
    said = CpuFallback(left, sum(map(len, ran.values()))).words(options.provider)
    if not options.allow_fallback:
        raise UnavailableError(f"{said}; --allow-fallback times them there")
    options.caller.warn(said)
    return left


def _time_parts(
    stream: Stream,
    model: ModelProto,
    folder: Path,
    units: list[list[int]],
    alone_s: Floats,
    how: Measurement,
    beside: int,
    caller: Callbacks,
) -> tuple[InSitu, InSitu]:
    """Time parts of the model as they will run; then parts of equal times, by what was found.

    A plan balances what its stages take: so parts are cut about where it will cut.
    """
    with caller.progress("measuring parts") as bar:

        def tell(done: int, spread: float | None) -> None:
            known = "" if spread is None else f", known to {spread:.1%}"
            bar.update(Progress(f"measuring parts, {counted(done, 'round')}{known}"))

        order, types = order_of(model, units), types_of(stream)
        rounds = Rounds(replace(how.config(), pin=True), how.repeats, how.warmup)
        parts = parts_of(order, alone_s, 1 + beside)
        first = measure_parts(model, folder, units, parts, how, replace(rounds, few=True), types)
        parts = parts_of(order, first.times(alone_s), len(first.parts))
        rounds = replace(rounds, progress=tell)
        found = measure_parts(model, folder, units, parts, how, rounds, types)
    for notice in places(1 + beside, rounds.config, "part")[1]:
        caller.note(notice)
    if len(found.parts) == 1 < 1 + beside and len(units) > 1:
        caller.note("timed in one piece: what crosses the borders of parts cannot be handed over")
    if found.interval is None or found.interval > SURE:
        known = "not at all" if found.interval is None else f"to {found.interval:.1%} only"
        caller.note(
            f"after {counted(found.rounds, 'round')} the time of the model is known {known}"
        )
    return first, found


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(value, 9) for value in values.tolist())


def say_disturbed(taken: list[float], caller: Callbacks) -> bool:
    """True if other processes took enough time of a measurement to matter, and say so."""
    disturbed = [share for share in taken if share > DISTURBED]
    if disturbed:
        caller.warn(
            f"other processes took up to {max(disturbed):.0%} of the processor during "
            f"{len(disturbed)} of {counted(len(taken), 'measurement')}: times may be too long, and "
            "are not kept for later"
        )
    return bool(disturbed)
