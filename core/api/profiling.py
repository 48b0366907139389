"""Learn what every operator costs: by formula, by measuring, or from another device's times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from dnnp.callbacks import Callbacks
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.phases import TOKEN
from dnnp.core.model.text import shown_seconds
from dnnp.formats.graph import device_classes
from dnnp.formats.inputs.devices import DeviceSpec, device_names, load_device
from dnnp.formats.stream import Record, Stream, read_bytes
from dnnp.options.graph import ProfileOptions
from dnnp.options.table import MEASURED, step
from dnnp.pricing import (
    analytic_times,
    check_units,
    describe_costs,
    note_unfitted,
    price_phases,
    write_costs,
)


def profile_stream(stream: Stream, options: ProfileOptions) -> None:
    """Learn what every operator and every group costs.

    Costs that the graph already has are replaced, those in `costs` apart, which leave others alone;
    what was made from them is dropped.

    Raises
    ------
    UsageError
        Options that make no sense, or a graph with costs in an unknown unit.
    FormatError
        A device file, or the graph, is malformed; the model is not the one that was imported.
    InputFileError
        A file cannot be read.
    """
    before = device_classes(stream)
    if stream.rows("phase"):
        stream.drop("node", ("shards",))
        for name in ("costs", "from_run"):
            if getattr(options, name):
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag}: not known where the graph has phases")
    classes_matter = not options.costs or options.tensor_parallel is not None
    devices = devices_of(options) if classes_matter else []
    price_phases(
        stream,
        lambda part, caller: _price(part, devices, options.replaced(caller=caller)),
        options.caller,
        aloud=options.mode == "measure",
    )
    _put_pass_times(stream, options)
    if options.tensor_parallel is not None:
        from dnnp.core.extras.shards import price_shards

        price_shards(stream, devices, options.tensor_parallel)
    if gone := ", ".join(sorted({*before} - {*device_classes(stream)})):
        options.caller.note(f"dropped the prices of {gone}: one call prices all classes")
    describe_costs(stream, options.caller)


def _price(stream: Stream, devices: Sequence[DeviceSpec], options: ProfileOptions) -> None:
    """Price a graph in its first or only phase, as options say."""
    if options.costs:
        from dnnp.given_costs import price_given

        price_given(stream, options.costs, options.device, options.model, options.caller)
    elif options.mode == "analytic":
        from dnnp.pricing import price_analytic

        price_analytic(stream, devices, options.caller)
    elif options.mode == "scaled":
        start = options.source or MEASURED
        price_scaled(stream, devices, start, options.against, options.caller)
    else:
        from dnnp.measuring import price_measured as price

        if any(record.get("backward") for record in stream.rows("node")):
            from dnnp.fits.gradients import price_training as price
        price(stream, devices[0], options)
    if options.from_run:
        from dnnp.fits.runs import price_by_runs

        price_by_runs(stream, options.from_run, options.caller)


def _put_pass_times(stream: Stream, options: ProfileOptions) -> None:
    """State what a pass takes in a stage besides its nodes, where it was priced on this machine."""
    if not stream.rows("phase"):
        return
    stream.drop("phase", ("pass_s",))
    analytic = options.mode == "analytic" and all(isinstance(d, str) for d in options.devices)
    if not analytic and options.mode != "measure":
        return
    from dnnp.core.runtime.generate.hand_over import pass_seconds
    from dnnp.core.runtime.model.providers import short_name

    if not analytic and short_name(options.provider) != "cpu":
        return
    states, seconds = stream.rows("state"), cache(pass_seconds)  # both ends of a phase are alike
    shared = all(state.get("shared", False) for state in states)
    for record in stream.get("phase"):
        once = shared and record["name"] == TOKEN
        record["pass_s"] = seconds(len(states), record["rows"], shared=once)


profile = step("dnnp-profile", ProfileOptions)(profile_stream)


def devices_of(options: ProfileOptions) -> list[DeviceSpec]:
    """The devices to price; this machine's is measured, unless it was before."""
    return [_here(options) if isinstance(d, str) else d for d in options.devices]


def _here(options: ProfileOptions) -> DeviceSpec:
    from dnnp.fits.device import device_here

    return device_here(options.threads, options.cache, options.caller, keep=not options.no_cache)


def price_scaled(
    stream: Stream,
    devices: Sequence[DeviceSpec],
    start: str,
    against: str | None,
    caller: Callbacks,
) -> None:
    """Carry the times of one class to others, by ratios of their rooflines.

    Parameters
    ----------
    devices
        The others.
    start
        The class, or the path of its device file; `MEASURED`: the only one that is priced.
    against
        A stream of the same model that was measured on the others, to say how far off they are.

    Raises UsageError: the class to start from is not clear, not priced, unknown, or among the
    targets.
    """
    check_units(stream)
    from dnnp.core.profile.work import scaled_times, work_of
    from dnnp.formats.graph import clustering_of, graph_of

    graph = graph_of(stream)
    groups = clustering_of(stream, graph)
    source = _source(stream, start)
    if any(source.name == d.name for d in devices):
        raise UsageError(f"--device {source.name}: this class is what times are carried from")
    if source.name not in graph.times:
        priced = ", ".join(graph.times) or "none"
        raise UsageError(f"--from {source.name}: the stream does not price it (priced: {priced})")
    work = work_of(graph, stream.rows("node"), stream.rows("tensor"))
    note_unfitted([source, *devices], caller)
    own, own_groups = analytic_times(stream, graph, groups, work, source)
    times = {source.name: graph.times[source.name]}
    group_costs = None if groups is None else {source.name: groups.times[source.name]}
    for device in devices:
        theirs, their_groups = analytic_times(stream, graph, groups, work, device)
        times[device.name] = scaled_times(times[source.name], own, theirs)
        if group_costs is not None and own_groups is not None and their_groups is not None:
            before = group_costs[source.name]
            group_costs[device.name] = scaled_times(before, own_groups, their_groups)
    if against is not None:
        _report_errors(stream, devices, group_costs or times, against, caller)
    write_costs(
        stream,
        [source, *devices],
        _lists(times),
        None if group_costs is None else _lists(group_costs),
        "scaled",
        caller,
    )


def _lists(times: dict[str, Floats]) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in times.items()}


def _source(stream: Stream, start: str) -> DeviceSpec:
    """The device that was measured."""
    if start != MEASURED:
        return load_device(start)
    priced = device_classes(stream)
    if len(priced) != 1:
        found = ", ".join(priced) or "none"
        raise UsageError(
            f"--from {MEASURED} needs a stream that prices one class (priced: {found}); measure "
            "it by dnnp-profile --mode measure, or name the class"
        )
    if priced[0] not in device_names():
        raise UsageError(f"class '{priced[0]}' is not known; give its device file by --from FILE")
    return load_device(priced[0])


def _report_errors(
    stream: Stream,
    devices: Sequence[DeviceSpec],
    times: dict[str, Floats],
    path: str,
    caller: Callbacks,
) -> None:
    """Compare with a stream of the same model that was measured on the target."""
    from dnnp.core.profile.work import scaling_error

    other = read_bytes(caller.read_input(path), path)
    kind = "group" if stream.get("group") else "node"
    shape = [_members(r) for r in stream.get(kind)]
    if shape != [_members(r) for r in other.get(kind)]:
        raise FormatError(f"its {kind}s are not those of the stream; measure the same model", path)
    compared = False
    for device in devices:
        times_s = [r.get("time_s", {}) for r in other.get(kind)]
        held_out = [float(time.get(device.name, float("inf"))) for time in times_s]
        if not any(time < float("inf") for time in held_out):
            continue
        import numpy as np

        error = scaling_error(times[device.name], np.array(held_out))
        compared = True
        change = 100 * (error.predicted_s / error.measured_s - 1) if error.measured_s else 0.0
        caller.note(
            f"{device.name}: {error.count} {kind}s, {shown_seconds(error.predicted_s)} predicted, "
            f"{shown_seconds(error.measured_s)} measured ({change:+.1f} %); error "
            f"{100 * error.weighted:.1f} % by time, {100 * error.median:.1f} % median"
        )
    if not compared:
        names = ", ".join(d.name for d in devices)
        raise UsageError(f"--against {path}: it prices none of: {names}")


def _members(record: Record) -> object:
    """Key that is equal where two records stand for the same operators."""
    return record["id"], record.get("nodes", record.get("op"))
