"""Small problems that bring every kernel to be compiled, for each type of argument it meets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dnnp.callbacks import Callbacks
from dnnp.core.model.errors import UnavailableError
from dnnp.graph import Graph
from dnnp.loading import generate

Step = tuple[str, Mapping[str, Any]]
"""A function of the package, and its options."""

NODES = {"many": 7000, "wide": 200}
"""Of random graphs that are too large for the program of GETF and make far lines, and too wide for
their order of least memory to be proven; others have `FEW`."""

FEW = 14


def _split(**options: Any) -> Step:
    """A split where transfers take about as long as a node."""
    return "split", {"k": 3, "bandwidth": 6.0, **options}


def _latency(**options: Any) -> Step:
    return _split(objective="latency", **options)


def _bound(**options: Any) -> Step:
    return "bound", options


def _schedule(**options: Any) -> Step:
    return "schedule", {"micro_batches": 4, **options}


QUICK, SHORT = {"effort": 0.02}, {"time_limit": 2.0}
"""Options of searches, and of integer programs, that would go on when all is compiled."""

CLUSTERS = {"k": 4, "cluster_size": 2, "inner_bandwidth": 12.0}
PEAK = {"memory": 1000.0, "memory_model": "peak"}
HYBRID = {"data_parallel": 2, "recompute": "auto"}

DEFAULTS: dict[str, tuple[Step, ...]] = {
    "split": (_split(method="heuristic", **QUICK), _schedule()),
    "search": (_split(method="exact"), _bound(**SHORT)),
    "plain latency": (_latency(execution="operators", **QUICK), _bound(**SHORT)),
    "cpu latency": (_latency(execution="blocks", invocations=2, **QUICK), _bound(**SHORT)),
    "shape NN": (_schedule(shape="NN", devices=4),),
    "shape X": (_schedule(shape="X", devices=4),),
    "copies": (_split(max_replicas=2),),
    "many slices": (_split(method="slice"),),
}
"""Name -> steps; what methods need that nobody names. Those that compile most come first."""

CASES: dict[str, tuple[Step, ...]] = DEFAULTS | {
    "clusters": (_split(method="exact", **CLUSTERS), _split(method="pipedream", **CLUSTERS)),
    "edges": (_latency(execution="operators", transfers="edge", congestion="none", **QUICK),),
    "overflow": (_split(method="heuristic", memory=100.0, memory_mode="overflow", **QUICK),),
    "peak": (_split(method="local-search", validity="free", **PEAK), _split(**PEAK)),
    "wide peak": (_split(k=2, memory_model="peak", method="uniform"),),
    "tight peak": (_split(k=3, memory=400.0, memory_model="peak", method="exact"),),
    "live latency": (_latency(execution="blocks", memory=400.0, memory_model="peak", **QUICK),),
    "convex": (_split(method="ip", validity="convex", **SHORT), _bound(method="same-block")),
    "pairs": (_split(method="slice"), _bound(method="pairs"), _bound(method="cover")),
    "flows": (_split(method="uniform"), _bound(method="same-block")),
    "cpu": (_split(method="anneal", k=2, cpus=1, **QUICK),),
    "weights": (_split(method="mla-weighted"),),
    "shards training": (_split(k=2, memory=250.0, **HYBRID),),
    "shards shared training": (_split(k=2, memory=2000.0, shared_stages=1, **HYBRID),),
    "shape VV": (_schedule(shape="VV", method="zb-v", split_backward=0.5),),
    "shape V": (_schedule(shape="V", method="tessel", devices=4),),
    "many": (_latency(method="getf", k=12, **QUICK),),
}
"""All of them. Words in names say what graph it is."""


def do(name: str) -> str:
    """Do a case; return what is not installed that it needs, or nothing.

    Raises
    ------
    DnnpError
        Whatever the steps raise.
    """
    import dnnp

    graph: Any = _graph(name.split())
    try:
        for step, options in CASES[name]:
            graph = getattr(dnnp, step)(graph, **options, caller=_Quiet())
    except (UnavailableError, ModuleNotFoundError) as error:
        return str(error)
    return ""


class _Quiet(Callbacks):
    """Whom warnings do not interest."""

    def warn(self, message: str) -> None:
        """Toy problems deserve some."""


def _graph(words: list[str]) -> Graph | None:
    """The random graph of a case; None: it has none."""
    if "shape" in words:
        return None
    graph = generate("erdos-renyi", nodes=NODES.get(words[0], FEW), seed=1)
    lines = [*map(json.loads, graph.to_bytes().splitlines())]
    nodes = [line for line in lines if line["type"] == "node"]
    if "cpu" in words:
        lines.insert(2, {"type": "device", "class": "cpu", "kind": "cpu"})
        for node in nodes:
            node["time_s"] = {"unit": node["time_s"]["unit"], "cpu": 3 * node["time_s"]["unit"]}
    if "training" in words:
        lines[0]["training"] = True
        for node in nodes[FEW // 2 :]:
            node |= {"backward": True, "color": FEW - 1 - node["id"]}
    if "shards" in words:
        for node in nodes:
            node["shards"] = [_shard(node["time_s"], devices) for devices in (1, 2)]
    return Graph.from_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def _shard(whole: Mapping[str, float], devices: int) -> dict[str, Any]:
    """A node on so many devices, which holds less if its forward pass runs again."""
    times = {name: time / devices for name, time in whole.items()}
    again = {name: 1.3 * time for name, time in times.items()}
    costs = {"time_s": times, "memory_bytes": 30.0, "held_bytes": 20.0, "weight_bytes": 5.0}
    recomputed = {"time_s": again, "memory_bytes": 30.0, "held_bytes": 2.0}
    return {"devices": devices, **costs, "recomputed": recomputed}
