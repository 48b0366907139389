"""Price a graph of training: its forward pass by timing the model, gradients by their pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import fsum
from pathlib import Path

from onnx import ModelProto, helper

from dnnp.callbacks import Callbacks, open_source
from dnnp.core.extras.gradients import Forward, Term, gradient_time, loss, pieces, step_times, sums
from dnnp.core.model.errors import UsageError
from dnnp.core.model.search_context import Progress
from dnnp.core.model.text import counted
from dnnp.core.profile.work import work_of
from dnnp.core.runtime.measure_operators import measure_nodes
from dnnp.core.training import is_trainable
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.cost_cache import MeasuredCosts
from dnnp.formats.inputs.devices import DeviceSpec
from dnnp.formats.onnx.value_types import dtype_name
from dnnp.formats.stream import Stream, forward_pass
from dnnp.measuring import checked, measured_costs, measurement, say_disturbed, write_measured
from dnnp.options.graph import ProfileOptions
from dnnp.pricing import analytic_times

_NAMED = 12
"""Operator types that a line lists."""


def price_training(stream: Stream, device: DeviceSpec, options: ProfileOptions) -> None:
    """Price a graph of training by timing its model and what its gradients are made of."""
    options = checked(stream, options)
    write_measured(stream, device, training_costs(stream, device, options), options.caller)


def training_costs(stream: Stream, device: DeviceSpec, options: ProfileOptions) -> MeasuredCosts:
    """Time the nodes and groups of a graph of training.

    The forward pass is timed as the model of which it is. A gradient is made of ordinary operators,
    each timed alone, or else it takes as many times the forward operator as the formulas say. What
    running together saves in the forward pass, by fusion and layout, it saves in the backward
    pass: both are to each other as they are alone, the passes as a whole. Group by group a fused
    kernel that is slow on small tensors would make its gradient slow, which is not fused here.
    """
    nodes, groups = stream.get("node"), stream.get("group")
    late = {record["id"] for record in nodes if record.get("backward")}
    for i, record in enumerate(groups):
        if 0 < len(late.intersection(record["nodes"])) < len(record["nodes"]):
            raise stream.fault_at("group", i, "nodes", "holds nodes of both passes")
    forward = forward_pass(stream)
    forward.records["group"] = [r for r in groups if late.isdisjoint(r["nodes"])]
    caller = options.caller
    model, path, _ = open_source(caller, stream, options.model)
    _check_precision(stream, model)
    costs = measured_costs(forward, options)
    ids = [record["id"] for record in forward.get("node")]
    together = dict(zip(ids, costs.node_s, strict=True))
    alone, gradients, by_formula = _time_gradients(stream, model, str(path.parent), device, options)
    units = [r["nodes"] for r in forward.get("group")] or [[v] for v in ids]
    if costs.group_s is None:
        unit_s = [fsum(together[v] for v in unit) for unit in units]
    else:
        unit_s = list(costs.group_s)
    overall = fsum(unit_s) / max(fsum(alone.values()), 1e-12)
    for v in late:
        together[v] = gradients[v] * overall
    _say(stream, by_formula, together, caller)
    group_s = None
    if costs.group_s is not None:
        known = dict(zip(map(tuple, units), costs.group_s, strict=True))
        group_s = tuple(
            round(known.get(tuple(r["nodes"]), fsum(together[v] for v in r["nodes"])), 9)
            for r in groups
        )
    return MeasuredCosts(
        tuple(round(together[record["id"]], 9) for record in nodes), group_s, how=costs.how
    )


def _check_precision(stream: Stream, model: ModelProto) -> None:
    """Refuse a graph of another precision than its model, which alone can be timed."""
    stated = {r["name"]: r.get("dtype") for r in stream.get("tensor")}
    for tensor in model.graph.initializer:
        has = dtype_name(tensor.data_type)
        if stated.get(tensor.name, has) != has:
            raise UsageError(
                f"the graph computes in {stated[tensor.name]} what the model computes in {has}, "
                "and only the model can be timed: import it without --mixed-precision, or price by "
                "--mode analytic"
            )


def _time_gradients(
    stream: Stream,
    model: ModelProto,
    folder: str,
    device: DeviceSpec,
    options: ProfileOptions,
) -> tuple[dict[int, float], dict[int, float], set[int]]:
    """Seconds of the nodes of the forward pass alone, and of gradients alone, by id.

    The third are gradients that the ratio of formulas times the forward node stands for.
    """
    taken: list[float] = []
    how = measurement(stream, options, taken)
    caller = options.caller
    with caller.progress("measuring nodes"):
        by_index = measure_nodes(model, Path(folder), how)
    alone = {r["id"]: by_index[r["id"]] for r in stream.get("node") if not r.get("backward")}
    terms = _terms(stream, model)
    with caller.progress("measuring gradients") as bar:
        times = step_times(
            [step for each in terms.values() for ways in each for way in ways for step in way],
            how,
            lambda share: bar.update(Progress("measuring gradients", share=share)),
        )
    say_disturbed(taken, caller)
    found = {v: gradient_time(each, times) for v, each in terms.items()}
    formula_s, forward_s = _formula_times(stream, device)
    overall = fsum(alone.values()) / max(forward_s, 1e-12)
    seconds: dict[int, float] = {}
    left: set[int] = set()
    for record in stream.get("node"):
        if not record.get("backward"):
            continue
        v, of = record["id"], record.get("of")
        measured = found.get(v)
        if measured is None:
            left.add(v)
            of_s = formula_s.get(of, 0.0)
            scale = alone[of] / of_s if of in alone and of_s else overall
            measured = formula_s[v] * scale
        seconds[v] = measured
    return alone, seconds, left


def _formula_times(stream: Stream, device: DeviceSpec) -> tuple[dict[int | None, float], float]:
    """Times of every node on a device by formulas, by id; and of the forward pass."""
    graph = graph_of(stream)
    nodes = stream.get("node")
    work = work_of(graph, nodes, stream.get("tensor"))
    times = analytic_times(stream, graph, None, work, device)[0].tolist()
    by_id: dict[int | None, float] = {r["id"]: t for r, t in zip(nodes, times, strict=True)}
    return by_id, fsum(by_id[r["id"]] for r in nodes if not r.get("backward"))


def _terms(stream: Stream, model: ModelProto) -> dict[int, tuple[Term, ...]]:
    """List the pieces of gradients, by id; those that are made of nothing known are left out."""
    tensor = {record["id"]: record for record in stream.get("tensor")}
    shapes = {t: tuple(r["shape"]) for t, r in tensor.items() if "shape" in r}
    node = {record["id"]: record for record in stream.get("node")}
    found: dict[int, tuple[Term, ...]] = {}
    for record in stream.get("node"):
        if not record.get("backward"):
            continue
        of = node.get(record.get("of"))
        reads = of["inputs"] if of else record["inputs"]
        if any(t not in shapes for t in (*reads, *(of["outputs"] if of else ()))):
            continue
        if of is None:
            found[record["id"]] = tuple(term for t in reads for term in loss(shapes[t]))
            continue
        made = {tensor[t]["name"] for t in record["outputs"]}
        proto = model.graph.node[of["id"]]
        forward = Forward(
            of["op"],
            {a.name: helper.get_attribute_value(a) for a in proto.attribute},
            [shapes[t] for t in reads],
            [shapes[t] for t in of["outputs"]],
            [is_trainable(tensor[t]) or f"{tensor[t]['name']}.grad" in made for t in reads],
            [tensor[t]["kind"] in ("parameter", "constant") for t in reads],
        )
        terms = pieces(forward)
        if terms is None:
            continue
        arriving = Counter(tensor[t]["name"] for t in record["inputs"])
        added = [
            term
            for t in of["outputs"]
            for term in sums(shapes[t], arriving[f"{tensor[t]['name']}.grad"])
        ]
        found[record["id"]] = (*terms, *added)
    return found


def _say(stream: Stream, left: set[int], times: Mapping[int, float], caller: Callbacks) -> None:
    """Say how many gradients were measured, and which are `left` to formulas."""
    late = [record for record in stream.get("node") if record.get("backward")]
    total = fsum(times[record["id"]] for record in late)
    caller.note(
        f"backward pass: {len(late) - len(left)} of {counted(len(late), 'node')} by ordinary "
        "operators that compute their gradients"
    )
    if not left:
        return
    by_op = Counter(record["op"] for record in late if record["id"] in left)
    listed = [f"{op} ({count})" for op, count in by_op.most_common(_NAMED)]
    share = fsum(times[v] for v in left) / total if total else 0.0
    caller.warn(
        f"{counted(len(left), 'backward node')}, {share:.1%} of the backward pass, by the ratio of "
        f"formulas to the forward pass: {', '.join(listed)}"
        + (" and more" if len(by_op) > _NAMED else "")
    )
