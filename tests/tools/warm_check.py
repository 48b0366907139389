"""After `make warm`: run the steps on small models, and list every kernel that is compiled.

There should be none. What is listed needs a case in `core/api/warm.py`, or one kind of
array only (`plain` in `core/kernels/kernel.py`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba.core import event

import dnnp
from dnnp.core.kernels.cache import KernelCache
from dnnp.graph import Graph
from dnnp.samples.build import write

MODELS = ("resnet50-small", "bert-small", "gpt-small")
SPLITS: tuple[dict[str, Any], ...] = (
    {"k": 4},
    {"k": 4, "method": "heuristic", "effort": 0.1},
    {"k": 4, "method": "anneal", "effort": 0.1},
    {"k": 4, "max_replicas": 2},
    {"k": 4, "memory": 2e7, "memory_mode": "overflow"},
    {"k": 4, "objective": "latency", "effort": 0.1},
    {"k": 4, "cpus": 1, "objective": "latency", "effort": 0.1},
)
SHAPES: tuple[dict[str, Any], ...] = tuple({"shape": shape} for shape in ("V", "X", "M", "NN", "K"))


class _Compiled(event.Listener):
    """The kernels of ours that are compiled."""

    def __init__(self) -> None:
        self.kernels: list[str] = []

    def on_start(self, event: Any) -> None:
        kernel = event.data["dispatcher"]
        if isinstance(kernel._cache, KernelCache):
            source = kernel.py_func
            self.kernels.append(f"{source.__module__}.{source.__name__}{event.data['args']}")

    def on_end(self, event: Any) -> None:
        pass


def works() -> Iterator[tuple[str, Any]]:
    """Name, and something to do."""
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            path = write(model, Path(folder))
            graph = dnnp.coarsen(dnnp.load(path))
            graph = dnnp.profile(graph, device=("v100", "cpu-core"))
            for options in SPLITS:
                yield f"{model} {options}", lambda g=graph, o=options: _split(g, o)
    for options in SHAPES:
        yield f"{options}", lambda o=options: dnnp.schedule(None, **o)


def _split(graph: Graph, options: dict[str, Any]) -> None:
    graph = dnnp.split(graph, **options)
    if "cpus" not in options:
        dnnp.bound(graph, time_limit=5.0)
    if options.get("method") != "anneal" and "objective" not in options:
        dnnp.schedule(graph, micro_batches=8)


def main() -> int:
    """Run everything; 1 if something was compiled."""
    listener, count = _Compiled(), 0
    event.register("numba:compile", listener)
    for name, work in works():
        work()
        print(f"{name}: {len(listener.kernels)} compiled", flush=True)
        for kernel in listener.kernels:
            print(f"    {kernel}")
        count += len(listener.kernels)
        listener.kernels.clear()
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
