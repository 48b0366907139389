"""Small problems for the baselines, workloads of the 2020 paper, and plans the checker accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import Block, CostOptions, Plan
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.plan import device_of
from dnnp.formats.stream import Stream
from dnnp.formats.workloads.msr import read_workload
from dnnp.formats.workloads.synthetic import synthetic_stream
from support.graphs import header, node, random_stream, tensor

UNBOUNDED = float("inf")
SUM = CostOptions(memory_model="sum")


def priced(problem: SplitProblem, blocks: list[Block], method: str = "baseline") -> Plan:
    """The plan of some blocks, after the independent checker has agreed."""
    plan = make_plan(problem, blocks, method=method, digest="0" * 64)
    assert check_plan(problem.graph, problem.units, plan).violations == ()
    return plan


def workload(folder: Path, name: str) -> SplitProblem:
    """A workload of the 2020 paper, with its devices and cost model."""
    path = folder / "throughput" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"needs {path.name}")
    stream = read_workload(path.read_bytes(), str(path))
    graph = graph_of(stream)
    devices = tuple(device_of(record) for record in stream.get("device"))
    return SplitProblem(graph, units_of(stream, graph), devices, CostOptions(memory_model="sum"))


def chain(*times: float, transfer: float = 1.0, **fields: object) -> Graph:
    """A path of nodes for classes `dev` and, ten times slower, `cpu`."""
    tensors = [tensor(i, "activation", 1, transfer_s=transfer) for i in range(len(times))]
    nodes = [
        node(i, "Op", [i - 1] if i else [], [i], time_s={"dev": t, "cpu": 10 * t}, **fields)
        for i, t in enumerate(times)
    ]
    return graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


def fan(*, layers: int, k: int) -> SplitProblem:
    """Layers of two nodes in a row, four beside each other, and one that joins them.

    The two take 2 each, the first of a fork 1, each of the four 2, the join 1; all tensors cost 1.
    """
    tail, head, cost = [], [], []
    for _ in range(layers):
        first = len(cost)
        cost += [2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0]
        if first:
            tail, head = [*tail, first - 1], [*head, first]
        for u, v in (
            (0, 1),
            (1, 2),
            *((2, v) for v in range(3, 7)),
            *((u, 7) for u in range(3, 7)),
        ):
            tail, head = [*tail, first + u], [*head, first + v]
        tail, head = [*tail, first + 7, first + 8], [*head, first + 8, first + 9]
    made = synthetic_stream(
        "fan", np.array(tail), np.array(head), np.ones(len(cost)), np.array(cost)
    )
    graph = graph_of(made)
    device = DeviceClass("unit", count=k, bandwidth_bytes_per_s=1.0)
    return SplitProblem(graph, singletons(graph), (device,), SUM)


def problem_of(graph: Graph, *devices: DeviceClass, **options: object) -> SplitProblem:
    """A problem without groups."""
    return SplitProblem(graph, singletons(graph), devices, CostOptions(**options))  # type: ignore[arg-type]


def objective(problem: SplitProblem, blocks: list[Block]) -> float:
    """Value of a split; inf if it is infeasible."""
    try:
        return problem.value(blocks)
    except InfeasibleError:
        return UNBOUNDED


DEGENERATE = {
    "one node": problem_of(chain(3.0), DeviceClass("dev", count=4)),
    "more devices than nodes": problem_of(chain(3.0, 1.0), DeviceClass("dev", count=9)),
    "zero costs": problem_of(chain(0.0, 0.0, 0.0, transfer=0.0), DeviceClass("dev", count=2)),
    "only CPUs": problem_of(chain(1.0, 2.0, 3.0), DeviceClass("cpu", "cpu", 2)),
    "tiny numbers": problem_of(chain(1e-12, 2e-12, 1e-12), DeviceClass("dev", count=2)),
    "huge numbers": problem_of(chain(1e12, 2e12, 1e12, transfer=1e12), DeviceClass("dev", count=2)),
    "one colour": problem_of(chain(1.0, 2.0, 3.0, color=7), DeviceClass("dev", count=3)),
    "isolated": problem_of(graph_of(random_stream(3, 6, params=True)), DeviceClass("dev", count=3)),
}
