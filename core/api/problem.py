"""The problem that a stream and the options of a split state: graph, devices, cost model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dnnp.core.cost.problem import SplitProblem, check_options
from dnnp.core.methods.splits import SPLITS
from dnnp.core.model.device import DeviceClass, Level, Link
from dnnp.core.model.errors import DnnpError, FormatError, UsageError
from dnnp.core.model.graph import Graph
from dnnp.core.model.phases import PROMPT, Point, rows_of, sequences_of, usual_lengths
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.text import counted, shown_bytes
from dnnp.formats.graph import device_classes
from dnnp.formats.phases import check_positions
from dnnp.formats.plan import device_of
from dnnp.formats.stream import Record, Stream
from dnnp.options.split import DeviceOptions, SplitOptions
from dnnp.placing import SINGLE, capacity_of, check_rules, limits_of, rules_of, with_limits
from dnnp.workload import Workload


def problem_of(work: Workload, options: SplitOptions) -> SplitProblem:
    """The problem that options state of a priced workload: graph, devices and cost model."""
    caller, graph, units = options.caller, work.graph, work.units
    with caller.held():
        rules = rules_of(work.stream, graph, options)
        single = () if options.parallel else rules  # parallel plans number devices at the end
        devices, links = devices_of(work.stream, options, single)
        if options.objective == "latency" and graph.phases is None:
            cost = latency_options(options, graph, devices, links)
        else:
            cost = throughput_options(options, graph)
        if options.allow_replicas:
            cost = _with_all_replicas(options, cost, devices, linked=bool(links))
        if any(d.members for d in devices) and (options.parallel or cost.max_replicas > 1):
            what = "parallel plans" if options.parallel else "replicas"
            raise UsageError(f"{SINGLE} cannot be told from others with {what}")
        cost = _with_sequences(options, cost, graph)
        cost = _with_workload(options, cost, graph, devices)
        for name in ("max_length", "workload"):
            if getattr(options, name) is not None:
                check_positions(work.stream, cost.max_length or 0, str(options.rows[name].flag))
        problem = work.problem(devices, cost, links, rules)
        if cost.objective != "latency":
            check_options(problem)
            if problem.links:
                _ = problem.machine  # refuses links that do not connect all devices
        _check_method(options, problem)
        check_rules(problem, options)
    if options.devices is None and len(units.times) > 1 and len(devices) == 1:
        others = ", ".join(name for name in units.times if name != devices[0].name)
        caller.note(f"devices of class '{devices[0].name}'; the stream also prices {others}")
    flag, most = "--tensor-parallel", 1 if graph.shards is None else graph.shards.degrees.max()
    if (options.tensor_parallel or 1) > most:
        what = f"nodes are priced on no more devices than {most}; see dnnp-profile {flag}"
        caller.note(f"{flag} {options.tensor_parallel}: {what}")
    return problem


def _check_method(options: SplitOptions, problem: SplitProblem) -> None:
    """Refuse methods that do not make what is asked for, before any search begins."""
    if options.eval is not None:
        return
    if problem.options.objective == "latency":
        from dnnp.core.latency.solve import check_method

        for method in options.methods:
            check_method(method, problem.options.execution, problem.rules)
    else:
        from dnnp.core.split.auto import method_asked

        rules = () if options.parallel else problem.rules
        for method in options.methods:
            method_asked(method, options.validity, clustered=problem.clustered, rules=rules)


def _with_all_replicas(
    options: SplitOptions, cost: CostOptions, devices: tuple[DeviceClass, ...], *, linked: bool
) -> CostOptions:
    """The cost model where a stage may run on all devices of a class.

    `linked`: links are stated, and take the place of clusters.

    UsageError: fewer are asked for, or devices form clusters.
    """
    from dnnp.core.split.ways import all_replicas

    most = all_replicas(devices)
    if options.max_replicas is not None and options.max_replicas < most:
        reason = f"compares up to all {most} devices of a class: leave --max-replicas"
        raise UsageError(f"--allow-replicas {reason} {options.max_replicas} out")
    if not linked and any(device.cluster_size for device in devices):
        raise UsageError("--allow-replicas knows no clusters; --max-replicas does")
    return replace(cost, max_replicas=most)


def _with_sequences(options: SplitOptions, cost: CostOptions, graph: Graph) -> CostOptions:
    """The cost model with the sequences whose states are kept.

    UsageError: there are no states, fewer sequences than a pass has, or a parallel plan is asked
    for.
    """
    states = graph.states
    if states is None and (options.in_flight or options.max_length):
        flag = "--in-flight" if options.in_flight else "--max-length"
        raise UsageError(f"{flag}: the graph carries no state from pass to pass")
    if states is None:
        return cost
    for flag in options.parallel:
        if flag != "--tensor-parallel":
            raise UsageError(f"{flag}: not known where there are states; see --state none")
    most = int(states.rows.max())
    if options.in_flight is not None and options.in_flight < most:
        raise UsageError(f"--in-flight {options.in_flight}: one pass has {most} sequences")
    return replace(cost, in_flight=options.in_flight, max_length=options.max_length)


def _with_workload(
    options: SplitOptions,
    cost: CostOptions,
    graph: Graph,
    devices: tuple[DeviceClass, ...],
) -> CostOptions:
    """The cost model with the sequences that are planned for, if the graph has phases.

    As many are under way as keep all devices busy, unless options say how many.

    UsageError: a workload without phases, lengths that these do not cover, or an option whose
    costs do not add up over passes.
    """
    if graph.phases is None:
        for name in ("workload", "max_ttft", "max_tpot"):
            if getattr(options, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag}: the graph has no phases; see dnnp-import --phase")
        return cost
    alone = options.objective == "latency"
    names = ("validity", "in_flight", "execution", "invocations", "transfers", "congestion")
    unknown = [str(options.rows[n].flag) for n in names if getattr(options, n) is not None]
    unknown += ["--method"] * (options.methods != ("auto",))
    unknown += ["clusters"] * any(d.cluster_size for d in devices)
    asked = {
        **{f"{name} with --objective latency": alone for name in unknown},
        "--objective gpipe": options.objective == "gpipe",
        f"--comm {options.comm}": options.comm != "sum",
        f"--memory-mode {options.memory_mode}": options.memory_mode == "overflow",
        "--max-replicas": (options.max_replicas or 1) > 1,
        "--allow-replicas": options.allow_replicas,
        **{flag: flag != "--tensor-parallel" for flag in options.parallel},
        "--max-ttft or --max-tpot with --tensor-parallel": bool(options.parallel)
        and (options.max_ttft, options.max_tpot) != (None, None),
    }
    for name, given in asked.items():
        if given:
            raise UsageError(f"{name}: not known where the graph has phases")
    points = graph.phases.points
    workload = sequences_of(_lengths(options, points), points)
    if options.max_length is not None and options.max_length < workload.longest:
        raise UsageError(
            f"--max-length {options.max_length}: the longest sequence has {workload.longest} tokens"
        )
    rows = max(workload.rows, *(p.rows for p in points if p.name == PROMPT), 1)
    fewest = min(rows_of(points))
    if options.in_flight is not None and options.in_flight < fewest:
        raise UsageError(
            f"--in-flight {options.in_flight}: a pass over tokens has {fewest} sequences"
        )
    slots = 1 if alone else max(1, sum(d.count for d in devices))
    held = graph.states is not None
    return replace(
        cost,
        workload=workload,
        in_flight=options.in_flight or (rows * slots if held else None),
        max_length=options.max_length or (workload.longest if held else None),
    )


def _lengths(options: SplitOptions, points: Sequence[Point]) -> list[tuple[int, int]]:
    """Lengths of the sequences that are planned for."""
    from dnnp.formats.inputs.lengths import parse_workload, read_lengths

    given = options.workload
    if given is None:
        return [usual_lengths(points)]
    if not isinstance(given, str | os.PathLike):
        if any(len(row) != 2 or min(row) < 1 for row in given):
            raise UsageError("--workload: give pairs of a prompt's tokens and those that follow")
        return [(int(prompt), int(tokens)) for prompt, tokens in given]
    path = os.fspath(given)
    single = parse_workload(path)
    return [single] if single else read_lengths(options.caller.read_input(path), path)


def devices_of(
    stream: Stream, options: DeviceOptions, rules: tuple[Rule, ...] = ()
) -> tuple[tuple[DeviceClass, ...], tuple[Link, ...]]:
    """Device classes with counts, from the stream, `--devices`, `-k`, `--cpus` and limits; links.

    `rules`: what they pin to single devices tells these from others.

    Raises
    ------
    UsageError
        Neither `-k` nor counted devices, no device at all, a class that is not known or not
        priced, one without the fast memory that is asked for, clusters that lack something, or
        `--link` between devices that are not there.
    FormatError
        A link does not fit the devices.
    """
    records = stream.get("device")
    lines = stream.lines.get("link", [])
    links: list[tuple[Record, int | None]] = [
        (record, lines[i] if lines else None) for i, record in enumerate(stream.get("link"))
    ]
    file = stream.name
    if options.devices is not None:
        file = options.devices
        records, links = _given(stream, options.devices)
    stated = len(links)
    if options.link:
        from dnnp.formats.inputs.devices import link_record

        links = [*links, *((link_record(text), None) for text in options.link)]

    def fault(number: int, field: str, reason: str) -> DnnpError:
        if number >= stated:
            return UsageError(f"--link {options.link[number - stated]}: {reason}")
        return FormatError(reason, file, links[number][1], field)

    devices = _chosen(stream, records, options)
    devices = with_limits(devices, options, rules, linked=bool(links))
    if not links:
        return devices, ()
    from dnnp.formats.inputs.links import expand_links, unnamed_cpus

    given = [record for record, _ in links]
    found = expand_links(given, devices, fault)
    for name in unnamed_cpus(given, devices):
        options.caller.note(
            f"no link names '{name}': each device reaches it over its own bandwidth, as its host"
        )
    return devices, found


def _given(stream: Stream, text: str) -> tuple[list[Record], list[tuple[Record, int | None]]]:
    """Devices and links that `--devices` names: in a file, by name, or as a list of classes."""
    from dnnp.formats.inputs.devices import classes_of, is_list, listed_records, load_cluster

    if is_list(text):
        return listed_records(text, classes_of(stream.get("device"), stream.rows("node"))), []
    records, links = load_cluster(text)
    return [{"count": 1, **record} for record in records], links


def _chosen(
    stream: Stream, records: list[Record], options: DeviceOptions
) -> tuple[DeviceClass, ...]:
    """The device classes of `records`, with what options override; see `devices_of`."""
    priced = device_classes(stream)
    counted = [r for r in records if "count" in r]
    devices = [device_of(r) for r in (counted or records)]
    known = {d.name for d in devices}
    if options.devices is None and not counted:
        devices += [DeviceClass(c, count=0) for c in priced if c not in known]
    accelerators = [d for d in devices if not d.is_cpu]
    cpus = [d for d in devices if d.is_cpu]
    if options.k is not None and len(accelerators) > 1 and counted:
        names = ", ".join(d.name for d in accelerators)
        counts = ",".join(f"{d.name}:1" for d in accelerators[:2])
        how = f"give counts by --devices, such as --devices {counts}"
        raise UsageError(f"-k with several accelerator classes ({names}); {how}")
    if options.k is None and not counted:
        raise UsageError("how many devices? give -k N or --devices FILE")
    if not counted:
        # The class that was priced is the pipeline's device, whatever its file calls it.
        accelerators = [replace(d, kind="accelerator") for d in (accelerators or cpus)[:1]]
    if options.k is not None:
        accelerators = [replace(d, count=options.k) for d in accelerators[:1]]
    if options.cpus is not None:
        cpus = [replace(d, count=options.cpus) for d in _cpu_class(cpus, priced)]
    elif not counted:
        cpus = []
    accelerators = [_clustered(_limited(d, options), options) for d in accelerators if d.count > 0]
    if options.cluster_size is not None and not accelerators:
        raise UsageError("--cluster-size: there are no accelerators to form clusters")
    for cpu in cpus:
        if cpu.count > 0 and cpu.cluster_size:
            reason = "is a CPU and cannot have a cluster_size; only accelerators form clusters"
            raise UsageError(f"class '{cpu.name}' {reason}")
    chosen = tuple(d for d in (*accelerators, *cpus) if d.count > 0)
    if not chosen:
        raise UsageError("k is 0 and there are no CPUs: there is no device to run on")
    for device in chosen:
        if sum(device.name == other.name for other in chosen) > 1:
            reason = "cannot be both accelerator and CPU; price another one, such as"
            raise UsageError(f"class '{device.name}' {reason} {_pricing(['v100', device.name])}")
        if device.name not in priced:
            reason = f"is not priced in the stream (priced: {', '.join(priced)})"
            run = _pricing(d.name for d in chosen)
            raise UsageError(f"class '{device.name}' {reason}; run {run}")
    return chosen


def _limited(device: DeviceClass, options: DeviceOptions) -> DeviceClass:
    """An accelerator class with the memory and bandwidth that options say, or else its record."""
    memory = capacity_of(device, limits_of(options, "memory").get("", device.memory_bytes))
    band = device.bandwidth_bytes_per_s if options.bandwidth is None else float(options.bandwidth)
    return replace(device, memory_bytes=memory, bandwidth_bytes_per_s=band)


def _cpu_class(cpus: list[DeviceClass], priced: list[str]) -> list[DeviceClass]:
    """The class that `--cpus` counts."""
    names = (name for name in ("cpu", "cpu-core") if name in priced)
    if not (found := cpus or [DeviceClass(name, kind="cpu") for name in names]):
        run = _pricing([*priced, "cpu-core"])
        raise UsageError(f"--cpus: the stream prices no CPU class; run {run}")
    return found[:1]


def _pricing(classes: Iterable[str]) -> str:
    """The call that prices classes; one alone would drop what others cost."""
    return " ".join(["dnnp-profile", *(f"--device {name}" for name in classes)])


def _clustered(device: DeviceClass, options: DeviceOptions) -> DeviceClass:
    """An accelerator class with the clusters that the options, or its record, give it."""
    sizes = options.cluster_sizes or [level.size for level in device.levels]
    bandwidths = options.inner_bandwidths
    if not sizes:
        if bandwidths:
            raise UsageError("--inner-bandwidth needs clusters: give --cluster-size too")
        return device
    bandwidths = bandwidths or [level.bandwidth_bytes_per_s for level in device.levels]
    bandwidths = bandwidths or [device.inner_bandwidth_bytes_per_s]
    if math.inf in bandwidths:
        raise UsageError("--cluster-size needs --inner-bandwidth, of the links inside a cluster")
    if len(sizes) != len(bandwidths):
        raise UsageError(
            f"class '{device.name}' has clusters of {counted(len(sizes), 'size')}, and bandwidths "
            f"inside {len(bandwidths)}: give both, --cluster-size and --inner-bandwidth"
        )
    outer = device.bandwidth_bytes_per_s
    if math.isinf(outer):
        raise UsageError("clusters need --bandwidth, of the links between them")
    for inner, beyond in pairwise([*bandwidths, outer]):
        if inner < beyond:
            raise UsageError(
                f"the bandwidth inside a cluster of '{device.name}' ({shown_bytes(inner)}/s) is "
                f"below the one between clusters ({shown_bytes(beyond)}/s)"
            )
    levels = [Level(*level) for level in zip(sizes, bandwidths, strict=True)]
    return replace(
        device,
        cluster_size=levels[0].size,
        inner_bandwidth_bytes_per_s=levels[0].bandwidth_bytes_per_s,
        larger_clusters=tuple(levels[1:]),
    )


def throughput_options(options: SplitOptions, graph: Graph) -> CostOptions:
    """The cost model that the options ask for, where the objective is not latency.

    Raises UsageError: options or methods that only latency has.
    """
    for method in options.methods:
        if method not in SPLITS and options.objective != "latency":
            raise UsageError(f"method {method} is for --objective latency")
    stated = not np.isnan(graph.node_bytes).all()
    summed = stated or bool(graph.backward.any())
    return CostOptions(
        options.comm,
        options.memory_model or ("sum" if summed or options.parallel else "peak"),
        options.memory_mode,
        options.charge_io,
        "sequence" if options.objective == "latency" else options.objective,
        options.max_replicas or 1,
    )


def latency_options(
    options: SplitOptions,
    graph: Graph,
    devices: tuple[DeviceClass, ...],
    links: tuple[Link, ...],
) -> CostOptions:
    """The cost model that the options ask for, where the objective is latency.

    Raises UsageError: options that this objective does not have, or that do not go together.
    """
    cpus = [d.name for d in devices if d.is_cpu]
    # Blocks for the machines of the 2020 paper: accelerators, one class of CPUs, no links.
    as_published = len(cpus) == 1 and len(devices) > 1 and not links
    execution = options.execution or ("blocks" if as_published else "operators")
    blocks, flag = execution == "blocks", "--objective latency"
    refused = {
        f"{flag} streams nothing: no --memory-mode overflow": options.memory_mode == "overflow",
        f"{flag} runs every sample once: no --max-replicas": options.max_replicas not in (None, 1),
        f"{flag}: --execution says what a split may be, not validity": options.validity is not None,
        f"--execution blocks has one pool of CPUs, not {', '.join(cpus)}": blocks and len(cpus) > 1,
        "--congestion is for --execution operators": blocks and options.congestion is not None,
        "--execution blocks moves all through the host: links do not count": blocks and bool(links),
        "--invocations is for --execution blocks": not blocks and options.invocations is not None,
        "--charge-io is for --execution blocks": not blocks and options.charge_io,
        "--charge-io needs --transfers tensor": options.charge_io and options.transfers == "edge",
    }
    for reason in (reason for reason, given in refused.items() if given):
        raise UsageError(reason)
    stated_none = bool(np.isnan(graph.node_bytes).all())
    return CostOptions(
        memory_model=options.memory_model or ("peak" if stated_none else "sum"),
        memory_mode=options.memory_mode,
        charge_io=options.charge_io,
        objective="latency",
        execution=execution,
        invocations=options.invocations or 1,
        transfers=options.transfers or "tensor",
        congestion=options.congestion or "device",
    )
