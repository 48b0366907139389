"""ONNX models whose nodes several devices run together, by rules that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx

from dnnp.core.extras.shards import layout_record, operators_of
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions, Plan, Stage
from dnnp.core.tensor_parallel.rules import Operator, Rule, rules
from dnnp.deployment.parts import Runnable
from dnnp.deployment.shards import runnable_shards
from dnnp.formats.graph import graph_of
from dnnp.formats.onnx.import_model import import_onnx
from dnnp.formats.onnx.stages import StageModel, split_model
from dnnp.formats.onnx.value_types import types_of
from dnnp.formats.stream import Stream
from support.split_models import Feeds, feeds_of, run_split, run_whole

Choice = Callable[[int, Operator, tuple[Rule, ...]], Rule]
"""Of a node by its position the rule among those that there are."""


class Quiet:
    """A caller that keeps all messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, message: str) -> None:
        """Keep a message."""
        self.said.append(message)


def imported(model: onnx.ModelProto, folder: Path, dims: dict[str, int] | None = None) -> Stream:
    """The stream of a model that is written to a file."""
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    return import_onnx(str(path), dims)


def laid_out(stream: Stream, t: int, choice: Choice) -> list[Rule]:
    """Give every node a time, and the layout of a rule on `t` devices; the rules."""
    graph = graph_of(stream)
    taken = []
    for v, (record, seen) in enumerate(
        zip(stream.get("node"), operators_of(stream, graph), strict=True)
    ):
        rule = choice(v, seen, rules(seen, t))
        layout = layout_record(rule)
        record["time_s"] = {"acc": 1.0}
        record["shards"] = [{"devices": t, "time_s": {"acc": 1.0}, "layout": layout}]
        taken.append(rule)
    return taken


def plan_of_stages(stages: Sequence[Sequence[int]], degrees: Sequence[int], replicas: int = 1):
    """A plan with such stages, one behind the other."""
    made, first = [], 0
    for nodes, t in zip(stages, degrees, strict=True):
        times = (1.0, 0.0, 1.0, 0.0, 0.0, 0.0)
        stage = Stage(f"acc/{first}", "acc", tuple(nodes), *times, replicas=replicas, shards=t)
        made.append(stage)
        first += t * replicas
    devices = (DeviceClass("acc", count=first, bandwidth_bytes_per_s=1.0),)
    options = CostOptions(memory_model="sum")
    return Plan(tuple(made), first, "test", "ordered", 1.0, 0.0, "feasible", options, devices, "")


def cut(stream: Stream, model: onnx.ModelProto, plan: Plan) -> tuple[Runnable, list[str]]:
    """The model, cut by the layouts of a stream; and what was warned of."""
    caller = Quiet()
    return runnable_shards(caller, stream, graph_of(stream), plan, model), caller.said


def split(stream: Stream, found: Runnable) -> list[StageModel]:
    """The models of its parts."""
    assert found.made is not None
    types = {**types_of(stream), **found.made.types}
    return split_model(found.made.model, [part.nodes for part in found.parts], types)


def check_all(
    model: onnx.ModelProto, folder: Path, t: int, feeds: Feeds | None = None, rtol: float = 1e-5
) -> tuple[int, list[str]]:
    """Run a model by each rule of each of its nodes; how many those are, and what was warned of."""
    stream = imported(model, folder)
    feeds = feeds_of(model) if feeds is None else feeds
    whole = run_whole(model, feeds)
    order = [record["id"] for record in stream.get("node")]
    plan = plan_of_stages([order], [t])
    count, warned = 0, []
    tried: set[tuple[int, Rule]] = set()
    while True:
        picked = None

        def choice(v, seen, offered):
            nonlocal picked
            for rule in offered[1:]:
                if picked is None and (v, rule) not in tried:
                    picked = v, rule
                    return rule
            return offered[0]

        laid_out(stream, t, choice)
        if picked is None:
            return count, warned
        tried.add(picked)
        count += 1
        found, said = cut(stream, model, plan)
        warned += said
        same(run_whole(found.made.model, feeds), whole, rtol)
        same(run_split(split(stream, found), found.made.model, feeds, optimized=True), whole, rtol)


def same(got: dict, expected: dict, rtol: float = 1e-5) -> None:
    """Outputs are equal."""
    assert got.keys() == expected.keys()
    for name, there in expected.items():
        for a, b in zip(as_list(got[name]), as_list(there), strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=0.1 * rtol)


def as_list(value) -> list:
    """The tensors of a sequence, or the one."""
    return value if isinstance(value, list) else [value]
