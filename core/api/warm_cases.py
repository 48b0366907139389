"""Small problems that bring every kernel to be compiled, for each type of argument it meets.

`python -m dnnp.warm_cases PARENT` does the cases that lines of standard input name, and answers
each with a line of JSON: why it could not be done, and whether only something is not installed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from dnnp.callbacks import Caller
from dnnp.core.methods import BOUNDS, LATENCY, LATENCY_BOUNDS, RECIPES, SEARCHES, SPLITS
from dnnp.core.methods.method import Method
from dnnp.core.model.errors import DnnpError, UnavailableError
from dnnp.core.schedule.recipes import SPLIT
from dnnp.core.schedule.shapes import SHAPES
from dnnp.formats.records import FORMAT, VERSION
from dnnp.formats.stream import Record, Stream
from dnnp.graph import Graph
from dnnp.loading import generate

Options = Mapping[str, Any]


class Problem(NamedTuple):
    """A graph and the options of a split."""

    options: Options = MappingProxyType({})
    devices: tuple[Record, ...] = ()
    training: bool = False
    memory: bool = False
    """Nodes state what they hold."""
    drawn: int = 0
    """Instead of all that: nodes of a random graph."""
    shards: bool = False
    """Nodes state what they hold if their forward passes run again."""


class Case(NamedTuple):
    """Some work for one process."""

    table: str
    """Table of the method."""
    method: str
    variant: str
    problem: Problem | None
    """None: there is no graph."""
    steps: tuple[tuple[str, Options], ...]
    """Steps that the graph goes through, each with its options."""

    @property
    def name(self) -> str:
        """Table, method and kind of problem."""
        return f"{self.table} {self.method} {self.variant}".rstrip()


def _class(name: str, count: int, **fields: Any) -> Record:
    kind = "cpu" if name == "cpu" else "accelerator"
    more = {} if kind == "cpu" else {"bandwidth_bytes_per_s": 10.0}
    return {"type": "device", "class": name, "kind": kind, "count": count, **more, **fields}


def _link(one: str, two: str, **fields: Any) -> Record:
    return {"type": "link", "from": one, "to": two, "bandwidth_bytes_per_s": 5.0, **fields}


MIXED = (_class("dev", 2, memory_bytes=900.0), _class("other", 1), _class("cpu", 1))
LINKED = (
    _class("dev", 2, memory_bytes=1e9), _class("other", 1, memory_bytes=1e9),
    _link("dev", "dev"), _link("dev/1", "other/0", latency_s=0.5),
)  # fmt: skip

LINK = {"bandwidth": 6.0}
"""Transfers take about as long as an operator."""

PLAIN = Problem({"k": 3, **LINK})
PAIR = Problem({"k": 2, **LINK})
LINKED_PROBLEM = Problem(devices=LINKED, memory=True)
THROUGHPUT = {
    "plain": PLAIN,
    "classes": Problem(devices=MIXED, memory=True),
    "clusters": Problem({"k": 4, "cluster_size": 2, "inner_bandwidth": 12.0, **LINK}),
    "duplex": Problem({"k": 3, "comm": "duplex", "charge_io": True, **LINK}),
    "overflow": Problem({"k": 2, "memory": 100.0, "memory_mode": "overflow", **LINK}),
    "peak": Problem({"k": 3, "memory": 300.0, "memory_model": "peak", **LINK}),
    "replicas": Problem({"k": 4, "max_replicas": 2, **LINK}),
    "training": Problem({"k": 3, "memory": 700.0, **LINK}, training=True, memory=True),
    "gpipe": Problem({"k": 3, "objective": "gpipe", **LINK}, training=True),
    "training-replicas": Problem({"k": 4, "max_replicas": 2, **LINK}, training=True),
}
"""Kinds of problem for throughput and gpipe."""

EVERYWHERE = ("exact", "heuristic", "slice", "anneal", "local-search", "pipedream")
"""Methods whose kernels differ by kind of problem; the others see the plain one."""

CLUSTERED = ("exact", "pipedream")
"""Methods that know clusters of devices."""

LATENCIES = {
    "blocks": {
        "plain": Problem({"execution": "blocks"}, MIXED, memory=True),
        "invocations": Problem({"execution": "blocks", "invocations": 2}, MIXED),
        "training": Problem({"execution": "blocks"}, MIXED, training=True),
    },
    "operators": {
        "plain": PLAIN,
        "linked": LINKED_PROBLEM,
        "training": Problem({"k": 3, "congestion": "channel", **LINK}, training=True),
        "edges": Problem({"k": 3, "transfers": "edge", "congestion": "none", **LINK}),
    },
}
"""Execution -> kinds of problem for latency."""

QUICK = {"effort": 0.02}
"""Of searches that would go on long after all is compiled."""

SHORT = {"time_limit": 2.0}
"""Of integer programs, likewise."""

STARTS = {"ordered": "uniform", "convex": "ip", "free": "local-search"}
"""Validity -> a method for a plan to prove bounds for."""


def cases() -> dict[str, Case]:
    """Name -> case; those that compile most come first."""
    found = chain(_latency(), _splits(), _schedules(), _bounds(), _others())
    return {case.name: case for case in found}


def _splits() -> Iterator[Case]:
    for method in SPLITS.values():
        for kind in method.kinds:
            for name, problem in THROUGHPUT.items():
                if problem is not PLAIN and method.name not in EVERYWHERE:
                    continue
                if name == "clusters" and method.name not in CLUSTERED:
                    continue
                options = {"method": method.name, "validity": kind, **_ends(method)}
                step = "split", {**options, **problem.options}
                yield Case("split", method.name, f"{kind} {name}", problem, (step,))


def _latency() -> Iterator[Case]:
    for method in LATENCY.values():
        if method.name == "placeto":  # compiles nothing of its own
            continue
        for execution in method.kinds:
            for name, problem in LATENCIES[execution].items():
                options = {"objective": "latency", "method": method.name, "execution": execution}
                step = "split", {**options, **_ends(method), **problem.options}
                yield Case("latency", method.name, f"{execution} {name}", problem, (step,))


def _bounds() -> Iterator[Case]:
    for method in BOUNDS.values():
        for kind in method.kinds:
            problem = {"links": LINKED_PROBLEM, "halves": PAIR}.get(method.name, PLAIN)
            start = {**problem.options, "method": STARTS[kind], "validity": kind}
            if kind == "convex":
                start |= SHORT
            options = {"method": method.name, **_ends(method)}
            yield Case("bound", method.name, kind, problem, (("split", start), ("bound", options)))
    for method in LATENCY_BOUNDS.values():
        for execution in method.kinds:
            problem = LATENCIES[execution]["plain"]
            start = {"objective": "latency", "method": "greedy", **problem.options}
            start["execution"] = execution
            steps = ("split", start), ("bound", {"method": method.name, **SHORT})
            yield Case("latency-bound", method.name, execution, problem, steps)


def _schedules() -> Iterator[Case]:
    for method in SEARCHES.values():
        for shape in SHAPES:
            options = {"shape": shape, "method": method.name, "micro_batches": 4, "devices": 4}
            yield Case("schedule", method.name, shape, None, (("schedule", options),))
    shapes = {"chimera": "X", "dualpipe": "X"}
    shapes |= dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipev"), "VV")
    for method in RECIPES.values():
        shape = shapes.get(method.name, "V")
        options = {"shape": shape, "method": method.name, "micro_batches": 4}
        if method.name in SPLIT:
            options["split_backward"] = 0.5
        if method.name == "inference":
            options["inference"] = True
        yield Case("schedule", method.name, shape, None, (("schedule", options),))


def _others() -> Iterator[Case]:
    pareto = {"shape": "M", "pareto": True, "micro_batches": 4}
    yield Case("schedule", "auto", "pareto", None, (("schedule", pareto),))
    # Too wide for its order of least memory to be proven.
    peak = {"k": 2, "memory_model": "peak", "method": "uniform"}
    yield Case("split", "uniform", "wide", Problem(drawn=200), (("split", peak),))
    yield Case("split", "auto", "linked", LINKED_PROBLEM, (("split", QUICK),))
    # Too large for the program of GETF.
    large = {"objective": "latency", "method": "getf", "k": 12, **QUICK}
    yield Case("latency", "getf", "large", Problem(drawn=7000), (("split", large),))
    for shards in (False, True):
        hybrid = Problem({"k": 3, "memory": 550.0, **LINK}, training=True, shards=shards)
        options = {"data_parallel": 2, "recompute": "auto", **hybrid.options}
        yield Case("split", "hybrid", f"shards {shards}", hybrid, (("split", options),))
    # Its two devices may hold a stage together.
    pair = Problem({"k": 2, "memory": 2000.0, **LINK}, training=True, shards=True)
    options = {"shared_stages": 1, "recompute": "auto", **pair.options}
    yield Case("split", "hybrid", "shared", pair, (("split", options),))
    for transfers in ("blocking", "non-blocking"):
        options = {"shape": "V", "transfers": transfers, "transfer_time": 0.5, "memory": 3.0}
        yield Case("schedule", "auto", transfers, None, (("schedule", options),))
    for name in ("plain", "training", "gpipe", "replicas"):
        problem = THROUGHPUT[name]
        start = "split", {"method": "uniform", **problem.options}
        yield Case("schedule", "auto", f"of {name}", problem, (start, ("schedule", {})))


def _ends(method: Method) -> Options:
    """Options that keep a method from searching on."""
    programs = SHORT if "solver" in method.heeds else {}
    return {**(QUICK if "effort" in method.heeds else {}), **programs}


def run(case: Case) -> None:
    """Do the work of a case.

    Raises
    ------
    DnnpError
        Whatever the steps raise, such as `UnavailableError` where a program is not installed.
    """
    import dnnp

    graph = None if case.problem is None else _graph(case.problem)
    for step, options in case.steps:
        graph = getattr(dnnp, step)(graph, **options, caller=_Quiet())


class _Quiet(Caller):
    """Whom warnings do not interest."""

    def warn(self, message: str) -> None:
        """Toy problems deserve some."""


def _graph(problem: Problem) -> Graph:
    """Layers of two to three branches, with parameters; with their gradients for training."""
    if problem.drawn:
        return generate("erdos-renyi", nodes=problem.drawn, seed=1)
    rng = random.Random(1)
    tensors: list[Record] = []
    nodes: list[Record] = []

    def tensor(kind: str) -> int:
        name, size = f"t{len(tensors)}", rng.randint(5, 20)
        tensors.append(
            {"type": "tensor", "id": len(tensors), "name": name, "kind": kind, "size_bytes": size}
        )
        return len(tensors) - 1

    def node(inputs: list[int], **fields: Any) -> int:
        made = tensor("activation")
        times = {name: rng.randint(5, 20) * (1 + 2 * (name == "cpu")) for name in CLASSES}
        if problem.memory:
            fields["memory_bytes"] = rng.randint(5, 30)
        if problem.shards:
            fields["shards"] = [_shard(times, devices) for devices in (1, 2)]
        v = len(nodes)
        nodes.append(
            {
                "type": "node", "id": v, "name": f"n{v}", "op": "Op", "inputs": sorted({*inputs}),
                "outputs": [made], "time_s": times, **fields,
            }
        )  # fmt: skip
        return made

    ends = [tensor("input")]
    for layer in range(4):
        branches = [node([node([*ends, tensor("parameter")])]) for _ in range(2 + layer % 2)]
        ends = [node(branches)]
    if problem.training:
        _add_gradients(nodes, node)
    header = {
        "type": "header", "format": FORMAT, "version": VERSION, "model": "warm",
        "units": {"time": "s"}, "provenance": [],
    }  # fmt: skip
    if problem.training:
        header["training"] = True
    records: dict[str, list[Record]] = {
        kind: [dict(record) for record in problem.devices if record["type"] == kind]
        for kind in ("device", "link")
    }
    records |= {"tensor": tensors, "node": nodes}
    return Graph(Stream(header=header, records={k: r for k, r in records.items() if r}))


def _shard(whole: Mapping[str, float], devices: int) -> Record:
    """A node on so many devices, which holds less if its forward pass runs again."""
    times = {name: time / devices for name, time in whole.items()}
    again = {name: 1.3 * time for name, time in times.items()}
    costs = {"time_s": times, "memory_bytes": 30.0, "held_bytes": 20.0, "weight_bytes": 5.0}
    recomputed = {"time_s": again, "memory_bytes": 30.0, "held_bytes": 2.0}
    return {"devices": devices, **costs, "recomputed": recomputed}


def _add_gradients(nodes: list[Record], node: Any) -> None:
    """A backward node for each forward node: it reads what that one read, and the gradients."""
    forward = list(nodes)
    gradient: dict[int, int] = {}
    for one in reversed(forward):
        (out,) = one["outputs"]
        readers = [gradient[other["outputs"][0]] for other in forward if out in other["inputs"]]
        one["color"] = one["id"]
        gradient[out] = node([*readers, *one["inputs"]], backward=True, color=one["id"])


CLASSES = ("dev", "other", "cpu")
"""Device classes that the nodes are priced for."""


def main() -> None:
    """Do cases until nobody asks any more."""
    from dnnp.core.kernels.kernel import compile_always
    from dnnp.core.model.deadline import wait_always
    from dnnp.core.model.processes import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        return
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        compile_always()
        wait_always()
        known = cases()
        for name in sys.stdin:
            trouble, missing = "", False
            try:
                run(known[name.strip()])
            except DnnpError as error:
                trouble, missing = str(error), isinstance(error, UnavailableError)
            except ModuleNotFoundError as error:
                trouble, missing = str(error), True
            answers.write(json.dumps([trouble, missing]) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
