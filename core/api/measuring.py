"""Price a stream by timing its model on this machine, or by what an earlier timing found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dnnp.core.model.errors import FormatError
from dnnp.core.model.standing import Standing
from dnnp.core.model.text import counted
from dnnp.costs import check_units, write_costs

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from dnnp.caller import Caller
    from dnnp.formats.cost_cache import MeasuredCosts
    from dnnp.formats.devices import DeviceSpec
    from dnnp.formats.stream import Stream


@dataclass(frozen=True)
class Timing:
    """How a model is timed."""

    model: str | None = None
    """Its path, if it is not where the stream says."""
    threads: int = 1
    repeats: int = 10
    warmup: int = 3
    cache: str | None = None
    """Folder of what was measured before; None: the user's."""
    no_cache: bool = False
    provider: str = "cpu"
    """Execution provider of ONNX Runtime."""


def price_measured(stream: Stream, device: DeviceSpec, timing: Timing, caller: Caller) -> None:
    """Price a stream by timing its model, or by what an earlier timing found."""
    check_units(stream)
    from pathlib import Path

    from dnnp.core.runtime.session import require_provider
    from dnnp.formats import cost_cache
    from dnnp.formats.graph import clustering_of, graph_of
    from dnnp.formats.onnx_types import input_shapes
    from dnnp.source import open_source

    require_provider(timing.provider)
    clustering_of(stream, graph_of(stream), priced=False)
    model, path, digest = open_source(caller, stream, timing.model)
    groups = [record["nodes"] for record in stream.get("group")]
    shapes = input_shapes(stream)
    facts = _facts(timing, digest, groups, shapes)
    key = cost_cache.key_of(facts)
    folder = cost_cache.default_folder() if timing.cache is None else Path(timing.cache)
    costs = None
    if not timing.no_cache:
        costs = cost_cache.load(folder, key, len(stream.get("node")), len(groups))
    if costs is not None:
        caller.note(f"costs measured before: {folder / key}.json")
    else:
        _check_nodes(stream, model, str(path))
        costs, disturbed = _time_model(stream, model, path.parent, timing, shapes, caller)
        keep = not (timing.no_cache or disturbed)
        if keep and not cost_cache.store(folder, key, costs, facts):
            caller.detail(f"{folder}: cannot be written; the costs are not kept")
    name = device.name
    node_costs = {name: list(costs.node_s)}
    group_costs, how = None, "measured"
    if groups:
        group_costs = {name: list(costs.group_s or ())}
        if costs.group_s is None:
            time_of = dict(zip((r["id"] for r in stream.get("node")), costs.node_s, strict=True))
            group_costs = {name: [sum(time_of[v] for v in members) for members in groups]}
            how = "summed"
    write_costs(stream, [device], node_costs, group_costs, how, caller)
    caller.note(
        f"{stream.header['model']}: {sum(costs.node_s) * 1e3:.3f} ms in nodes"
        + (f", {sum(costs.group_s) * 1e3:.3f} ms in groups" if costs.group_s else "")
    )


def _facts(
    timing: Timing,
    digest: str,
    groups: list[list[int]],
    shapes: dict[str, list[int]],
) -> dict[str, Any]:
    """Everything that the measured times depend on."""
    from dnnp.core.runtime.session import ort_version
    from dnnp.formats.cost_cache import cpu_model, groups_digest

    return {
        "model": digest,
        "onnxruntime": ort_version(),
        "provider": timing.provider,
        "cpu": cpu_model(),
        "threads": timing.threads,
        "repeats": timing.repeats,
        "warmup": timing.warmup,
        "shapes": shapes,
        "groups": groups_digest(groups),
    }


def _check_nodes(stream: Stream, model: ModelProto, path: str) -> None:
    """Check that the stream's nodes are those of the model."""
    nodes = model.graph.node
    for i, record in enumerate(stream.get("node")):
        v = record["id"]
        if v >= len(nodes) or nodes[v].op_type != record["op"]:
            raise stream.fault_at("node", i, "id", f"{path} has no {record['op']} there")


def _time_model(
    stream: Stream,
    model: ModelProto,
    folder: Path,
    timing: Timing,
    shapes: dict[str, list[int]],
    caller: Caller,
) -> tuple[MeasuredCosts, bool]:
    """Time nodes, and groups as units where the stream has any.

    Returns the costs, and whether other processes disturbed that.
    """
    from dnnp.core.runtime.measure import Measurement, measure_groups, measure_nodes
    from dnnp.core.runtime.session import PROVIDERS, provider_name
    from dnnp.formats.cost_cache import MeasuredCosts
    from dnnp.formats.costs_onnxruntime import where_it_ran
    from dnnp.formats.onnx_types import types_of

    taken: list[float] = []
    ran: list[tuple[dict[str, set[str]], str]] = []
    name = provider_name(timing.provider)

    def saw(events: Sequence[Any]) -> None:
        if name != PROVIDERS["cpu"]:
            ran.append(where_it_ran(events, "profile"))

    how = Measurement(
        timing.threads,
        timing.repeats,
        timing.warmup,
        shapes,
        taken.append,
        timing.provider,
        saw,
    )
    with caller.progress("measuring nodes"):
        by_index = measure_nodes(model, folder, how)
    node_s = tuple(round(by_index[record["id"]], 9) for record in stream.get("node"))
    groups = [record["nodes"] for record in stream.get("group")]
    group_s = None
    if groups:
        try:
            with caller.progress("measuring groups") as bar:

                def tell(done: int) -> None:
                    doing = f"measuring groups, {done} of {len(groups)}"
                    bar.update(Standing(doing, share=done / len(groups)))

                times = measure_groups(model, folder, groups, how, types_of(stream), tell)
            group_s = tuple(round(t, 9) for t in times)
        except FormatError as error:
            caller.note(
                f"groups cost the sum of their nodes, as they cannot be timed: {error.reason}"
            )
    if ran:
        _say_where(ran, name, caller)
    return MeasuredCosts(node_s, group_s), _say_disturbed(taken, caller)


def _say_where(
    profiles: Sequence[tuple[dict[str, set[str]], str]], provider: str, caller: Caller
) -> None:
    """Say which nodes the provider left to others, and what is wrong with the times."""
    ran, _ = profiles[0]
    left = [f"{len(nodes)} by {who}" for who, nodes in sorted(ran.items()) if who != provider]
    if left:
        count = counted(sum(map(len, ran.values())), "node")
        caller.warn(f"of {count} not all were run by {provider}: {', '.join(left)}")
    for caveat in sorted({caveat for _, caveat in profiles if caveat}):
        caller.warn(caveat)


def _say_disturbed(taken: list[float], caller: Caller) -> bool:
    """Whether other processes took enough of the time of a measurement to matter; say so."""
    from dnnp.core.runtime.waits import DISTURBED

    disturbed = [share for share in taken if share > DISTURBED]
    if disturbed:
        caller.warn(
            f"other processes took up to {max(disturbed):.0%} of the processor during "
            f"{len(disturbed)} of {counted(len(taken), 'measurement')}: times may be too long, and "
            "are not kept for later"
        )
    return bool(disturbed)
