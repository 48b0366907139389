"""The option `eval`: a split that was made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dnnp.callbacks import Callbacks, run_of
from dnnp.core.check.load import PlanCase
from dnnp.core.check.placing import check_rules
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass, offered
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.graph import Floats, Graph, Ints, distinct, row_of
from dnnp.core.model.plan import Block, CostOptions, Plan
from dnnp.core.model.text import counted, shown_time
from dnnp.formats.workloads.msr import SplitPart, read_split
from dnnp.options.split import SplitOptions
from dnnp.placing import SINGLE

if TYPE_CHECKING:
    from dnnp.core.cost.latency import LatencyProblem, Split


def given_plan(data: bytes, name: str, problem: SplitProblem, options: SplitOptions) -> Plan:
    """The plan of a split for the objective that is asked for; `name` is for messages.

    Raises
    ------
    FormatError, UsageError
        As in `blocks_of`; it has more replicas than are allowed.
    InfeasibleError
        It does not fit the devices.
    """
    price = _for_latency if problem.options.objective == "latency" else _for_throughput
    blocks = on_single_devices(problem, blocks_of(data, name, problem, options.caller))
    plan = price(problem, blocks, options)
    for violation in check_rules(PlanCase.of(problem.graph, problem.units, plan)):
        raise InfeasibleError(f"infeasible: the split {violation.message}")
    return plan


def _for_throughput(problem: SplitProblem, blocks: list[Block], options: SplitOptions) -> Plan:
    """The plan of a split for the objectives throughput and gpipe."""
    from dnnp.core.bounds.simple import simple_bound

    _refuse_cut_states(problem, blocks)
    caller = options.caller
    cost = _with_replicas(problem.options, blocks, options.max_replicas)
    problem = problem.with_options(cost)
    caller.release()
    if cost.memory_model == "peak":
        from dnnp.core.model.search_context import run_with_fallback
        from dnnp.core.split.peak import with_least_peak

        run, split = run_of(caller), blocks
        blocks = run_with_fallback(
            lambda: with_least_peak(problem.graph, split, keep=True, run=run),
            run.stop,
            lambda: split,
        )
    return make_plan(
        problem,
        blocks,
        method="given",
        bound=simple_bound(problem.searched),
        interrupted=caller.interrupted,
    )


def _refuse_cut_states(problem: SplitProblem, blocks: Sequence[Block]) -> None:
    """Raise a FormatError if what uses a state is in several blocks."""
    graph, states = problem.graph, problem.graph.states
    if states is None:
        return
    owner = row_of([block.nodes for block in blocks], graph.n)
    for before, after in zip(states.input.tolist(), states.output.tolist(), strict=True):
        users = [*graph.readers(before), *graph.readers(after), graph.producer[after]]
        parts = distinct(owner[np.array(users, dtype=np.int64)])
        if len(parts) > 1:
            name = graph.tensor_names[before]
            raise FormatError(f"--eval: the state '{name}' is used in {len(parts)} stages")


def _for_latency(problem: SplitProblem, blocks: list[Block], options: SplitOptions) -> Plan:
    """The plan of a split for the objective latency."""
    from dnnp.core.cost.latency_plan import make_latency_plan
    from dnnp.core.latency.auto import quick, simple_bound

    caller = options.caller
    caller.release()
    latency, split = _latency_split(problem, blocks, options.invocations)
    bound, argument = simple_bound(latency, run=quick(run_of(caller)))
    options_used = replace(problem.options, invocations=latency.options.invocations)
    return make_latency_plan(
        problem.with_options(options_used),
        latency,
        split,
        method="given",
        bound=bound,
        bound_method=argument,
        interrupted=caller.interrupted,
    )


def _latency_split(
    problem: SplitProblem, blocks: Sequence[Block], invocations: int | None
) -> tuple[LatencyProblem, Split]:
    """A split of one sample, invoked as often as its parts need unless that is given.

    InfeasibleError: it does not fit the devices; the message has the latency that it would have.
    """
    from dnnp.core.cost.latency import Invocations, latency_problem
    from dnnp.core.latency.homes import homes_of_blocks, split_of_homes

    latency = latency_problem(problem.searched)
    home = homes_of_blocks(latency, problem.units.label, blocks)
    split = split_of_homes(latency, home)
    try:
        if not isinstance(split, Invocations):
            latency.value(split)
            return latency, split
        late = [bool(latency.tasks.backward[split.block == b][0]) for b in range(len(split.device))]
        often = max(np.unique(split.device * 2 + late, return_counts=True)[1].tolist(), default=1)
        if invocations is None:
            cost = replace(latency.options, invocations=often)
            latency = replace(latency, options=cost)
        latency.value(split)
    except InfeasibleError as error:
        value = shown_time(latency.time(split), problem.graph.in_seconds)
        raise InfeasibleError(f"{error}; without this limit its latency is {value}") from None
    return latency, split


def blocks_of(data: bytes, name: str, problem: SplitProblem, caller: Callbacks) -> list[Block]:
    """Read a split; the nodes of each part run in the graph's order.

    One of the forward pass alone is carried over to training: each backward node follows its
    colour, which the caller is told.

    Raises
    ------
    FormatError
        The file is malformed, does not fit the graph, or gives one device to two parts.
    UsageError
        It uses a device that is not offered.
    """
    graph = problem.graph
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    parts = read_split(data, name)
    home = np.full(graph.n, -1, dtype=np.int64)
    for number, part in enumerate(parts):
        unknown = next((i for i in part.nodes if i not in position), None)
        if unknown is not None:
            raise FormatError(f"the split does not fit the graph: there is no node {unknown}", name)
        home[[position[i] for i in part.nodes]] = number
    left = home < 0
    if (left & graph.backward).any() and not (left & ~graph.backward).any():
        _follow(graph, home, name)
        caller.note(f"{int(left.sum())} backward nodes follow the forward nodes of their colours")
    blocks: list[Block] = []
    for number, part in enumerate(parts):
        nodes = np.flatnonzero(home == number)
        device, place = _device_of(part, problem.devices, name)
        blocks.append(Block(nodes[np.argsort(graph.rank[nodes])], device, part.replicas, place))
    _check_numbers(blocks, name)
    return blocks


def _follow(graph: Graph, home: Ints, name: str) -> None:
    """Send each backward node that a split leaves out where its colour is (2020 paper, section 6).

    `home`: i64[n], part of each node; -1 where the split leaves it out, and then filled in.

    FormatError: a node has no colour, or its colour is in no part, or in two.
    """
    parts: dict[int, set[int]] = {}
    for color, part in zip(graph.color.tolist(), home.tolist(), strict=True):
        if part >= 0:
            parts.setdefault(color, set()).add(part)
    for v in np.flatnonzero(home < 0).tolist():
        color = int(graph.color[v])
        found = parts.get(color, set()) if color >= 0 else set()
        if len(found) != 1:
            where = "nodes in two parts" if found else "no node in it"
            which = f"its colour {color} has {where}" if color >= 0 else "it has no colour"
            raise FormatError(
                f"the split leaves out backward node {graph.node_ids[v]}, and {which}", name
            )
        home[v] = min(found)


def _with_replicas(
    options: CostOptions, blocks: Sequence[Block], stated: int | None
) -> CostOptions:
    """Options that allow the replicas of a split, if they are within the number stated.

    UsageError: a part has more replicas.
    """
    most = max((b.replicas for b in blocks), default=1)
    if stated is not None and most > stated:
        raise UsageError(f"the split runs a stage on {most} devices, above --max-replicas {stated}")
    return replace(options, max_replicas=max(most, options.max_replicas))


def _device_of(
    part: SplitPart, devices: tuple[DeviceClass, ...], name: str
) -> tuple[DeviceClass, int]:
    """The class that a part names, or the first of its kind; and the number there, or -1.

    A class that limits of single devices divide comes without members, under its own name.
    """
    wanted = part.device_class
    if not wanted or (wanted == "cpu" and not any(wanted in (d.name, d.of) for d in devices)):
        same = [d.of or d.name for d in devices if d.kind == part.kind]
        if not same:
            raise UsageError(
                f"{name}: the split uses a device of kind {part.kind}; none is offered"
            )
        wanted = same[0]
    for device in devices:
        if (single := f"{wanted}/{part.number}") in device.members:
            return device, device.number_of(single)
        if wanted in (device.name, device.of) and not (device.members and part.number >= 0):
            undivided = replace(device, name=wanted, members=())
            return (undivided if device.members else device), part.number
    known = ", ".join(d.name for d in devices)
    what = f"a device of class '{part.device_class}'; offered are: {known}"
    raise UsageError(f"{name}: the split uses {what}")


def on_single_devices(problem: SplitProblem, blocks: list[Block]) -> list[Block]:
    """Move blocks of divided classes to single devices that fit, where the largest load is least.

    UsageError: one has replicas; InfeasibleError: they fit in no way.
    """
    free = [i for i, b in enumerate(blocks) if b.device not in problem.devices]
    if any(blocks[i].replicas > 1 for i in free):
        raise UsageError(f"{SINGLE} cannot be told from others with replicas")
    taken = {(b.device.name, b.number) for b in blocks}
    seats = [(d, n) for d in problem.devices for n in range(d.count) if (d.name, n) not in taken]
    seats.sort(key=lambda seat: int(seat[0].device_name(seat[1]).rpartition("/")[2]))
    loads = np.full((len(free), len(seats)), np.inf)
    for row, i in zip(loads, free, strict=True):
        same = [d for d in problem.devices if blocks[i].device.name in (d.name, d.of)]
        each = {d: _load_on(problem, blocks[i].nodes, d) for d in same}
        row[:] = [each.get(d, np.inf) for d, _ in seats]
    chosen, blocks = least_bottleneck(loads), blocks.copy()
    if len(chosen) < len(free):
        pins = "".join(f", {rule.words}" for rule in problem.rules if rule.device)
        what = f"{counted(len(blocks), 'stage')} fit {offered(problem.devices)}{pins}"
        raise InfeasibleError(f"infeasible: in no way do the split's {what}")
    for i, seat in zip(free, chosen, strict=True):
        blocks[i] = blocks[i]._replace(device=seats[seat][0], number=seats[seat][1])
    return blocks


def _load_on(problem: SplitProblem, nodes: Ints, device: DeviceClass) -> float:
    """Load of a stage on a device of a class; inf: it does not run or fit there."""
    cost = stage_load(problem.graph, problem.units, nodes, device, problem.options)
    limited = problem.options.memory_mode == "hard" and not device.is_cpu
    return np.inf if limited and cost.memory_bytes > device.memory_bytes * ROOM else cost.load_s


def least_bottleneck(loads: Floats) -> list[int]:
    """A column for each row with the least largest load, inf: never; empty: there is none."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = np.indices(loads.shape)
    for limit in np.unique(loads[np.isfinite(loads)]).tolist():
        moves = np.where(loads <= limit, np.abs(rows - columns), loads.size * sum(loads.shape))
        at, found = linear_sum_assignment(moves)
        if len(at) == len(loads) and (loads[at, found] <= limit).all():
            return list(found.tolist())
    return []


def _check_numbers(blocks: Sequence[Block], name: str) -> None:
    """Refuse numbers that some parts of a class have and others lack, or that overlap."""
    for device in dict.fromkeys(b.device for b in blocks):
        mine = sorted((b for b in blocks if b.device == device), key=lambda b: b.number)
        if mine[-1].number < 0:
            continue
        if mine[0].number < 0:
            raise FormatError(
                f"some parts on '{device.name}' have a device number, others not", name
            )
        for one, other in pairwise(mine):
            if one.number + one.replicas > other.number:
                raise FormatError(f"two parts are on {device.name}/{other.number}", name)
