"""Work of searches, and kernels that they need, counted: no clock, on any machine.

`python tests/split/test_counts.py` prints the table as it is now. What is changed without
changing results, or for better ones, may change counts: then look whether more is worth it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple

import pytest

from dnnp.core.schedule.order_kernel import NODES

EXPECTED: dict[str, dict[str, int]] = {
    "exact plain": {"blocks": 464027, "ideals": 21120, "kernels": 3},
    "exact replicas": {"blocks": 87987, "ideals": 21120, "kernels": 1},
    "exact peak": {"blocks": 1294726, "ideals": 21120, "kernels": 6},
    "exact clusters": {"blocks": 546055, "flows": 48, "ideals": 21120, "kernels": 6},
    "heuristic": {"blocks": 1339, "ideals": 672, "orders": 1620, "pins": 594116, "kernels": 9},
    "anneal": {"blocks": 3052, "flows": 67248, "ideals": 550, "pins": 1391468, "kernels": 0},
    "latency blocks": {"blocks": 580630, "moves": 20, "kernels": 9},
    "latency operators": {"kernels": 6},
    "bound ideal": {"blocks": 921, "ideals": 550, "kernels": 0},
    "bound halves": {"flows": 197, "nodes": 65, "kernels": 1},
    "bound cover": {"steps": 16646, "kernels": 2},
    "schedule NN": {"nodes": 501, "kernels": 9},
    "schedule M": {"nodes": 228, "kernels": 0},
    "schedule X": {"states": 5748024, "kernels": 2},
    "parallel": {"sets": 85012, "kernels": 2},
}
"""Work -> what is counted -> how much of it. Kernels are those that earlier works did not need."""


class Meter(NamedTuple):
    """A function that tells how much is done."""

    name: str
    where: str
    """`module:function` of `dnnp.core`: the name by which Python calls it."""
    done: Callable[[tuple[Any, ...], Any], float]
    """Work of a call, by its arguments and its answer."""
    before: Callable[[tuple[Any, ...], Any], float] = lambda *_: 0
    """Work done before, where the arguments hold a counter."""


METERS = (
    Meter("ideals", "split.ideals.search:make_lattice", lambda _, made: made.size if made else 0),
    Meter("blocks", "split.ideals.search:decide_plain", lambda _, answer: answer[1]),
    Meter("blocks", "split.ideals.search:decide", lambda _, answer: answer[1]),
    Meter("blocks", "split.clusters.segments:probe", lambda _, answer: answer[1]),
    Meter("orders", "split.slicing.decoder:values_of_rows", lambda given, _: len(given[3])),
    Meter("pins", "split.annealing.anneal:sweep", lambda _, visits: visits),
    Meter("moves", "latency.blocks.anneal:anneal_step", lambda given, _: given[4]),
    Meter("moves", "latency.operators.anneal:sweep", *[lambda given, _: given[2].counts[0]] * 2),
    Meter("blocks", "latency.blocks.ideals:sweep", lambda _, answer: answer[1]),
    # Before max_flow, which it calls as a kernel.
    Meter("flows", "bounds.pricing:cheapest", lambda *_: 1),
    Meter("flows", "split.cuts:max_flow", lambda *_: 1),
    Meter("nodes", "split.cuts:Bisection.search", lambda given, _: len(given[0].nodes)),
    Meter("steps", "bounds.pricing:best_sets", lambda _, steps: steps),
    Meter("nodes", "schedule.order_kernel:search", *[lambda given, _: given[2].counts[NODES]] * 2),
    Meter("states", "schedule.optimal:beam", lambda _, found: found.work),
    Meter("states", "schedule.complete:beam", lambda _, found: found.work),
    Meter("sets", "parallel.search:cover", lambda given, _: len(given[0].family.work)),
)


GRAPHS = (("erdos-renyi", 18), ("watts-strogatz", 20))


def works() -> Iterator[tuple[str, Callable[[], object]]]:
    """Name, and something to do; effort is stated, so that it is the same whatever is compiled."""
    import dnnp

    er, ws = (dnnp.generate(f, nodes=n, seed=1) for f, n in GRAPHS)
    three = {"k": 3, "bandwidth": 10.0, "effort": 1.0}
    clusters = {"k": 4, "cluster_size": 2, "inner_bandwidth": 40.0}
    for name, options in {
        "plain": {},
        "replicas": {"max_replicas": 2},
        "peak": {"memory": 400.0, "memory_model": "peak"},
        "clusters": clusters,
    }.items():
        exact = {**three, **options, "method": "exact"}
        yield f"exact {name}", lambda o=exact: dnnp.split(er, **o)
    little = {**three, "effort": 0.02}
    for method in ("heuristic", "anneal"):
        yield method, lambda m=method: dnnp.split(ws, **little, method=m)
    for execution in ("blocks", "operators"):
        late = {**little, "objective": "latency", "execution": execution}
        yield f"latency {execution}", lambda o=late: dnnp.split(ws, **o)
    plan = dnnp.split(ws, k=2, bandwidth=10.0, method="slice")
    for method in ("ideal", "halves", "cover"):
        yield f"bound {method}", lambda m=method: dnnp.bound(plan, method=m)
    for shape, how in (("NN", {}), ("M", {"pareto": True}), ("X", {"method": "optimal"})):
        asked = {"shape": shape, "devices": 4, "micro_batches": 5, "effort": 1.0, **how}
        yield f"schedule {shape}", lambda o=asked: dnnp.schedule(None, **o)
    parallel = {**three, "k": 4, "data_parallel": 2}
    yield "parallel", lambda: dnnp.split(er, **parallel)


def counted() -> Iterator[tuple[str, dict[str, int]]]:
    """Each work, and what it took; for a process of its own."""
    kernel, numbers, lock = import_module("dnnp.core.kernels.kernel"), Counter[str](), Lock()
    needed: set[tuple[Any, ...]] = set()
    plain_call = kernel.Kernel.__call__

    def call(self: Any, *arguments: Any) -> Any:
        from numba._dispatcher import compute_fingerprint

        needed.add((self.py_func, compute_fingerprint(arguments)))
        return plain_call(self, *arguments)

    kernel.Kernel.__call__ = call

    def metered(meter: Meter, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*given: Any, **named: Any) -> Any:
            before = int(meter.before(given, None))
            answer = function(*given, **named)
            with lock:
                numbers[meter.name] += int(meter.done(given, answer) - before)
            return answer

        return measured

    # Kernels call kernels: they must not find a metered one in its place when they are compiled.
    for path in ("bounds.pairs", "bounds.pricing", "bounds.zone_cut"):
        import_module(f"dnnp.core.{path}")
    for meter in METERS:
        path, _, name = meter.where.partition(":")
        holder: Any = import_module(f"dnnp.core.{path}")
        *classes, name = name.split(".")
        for one in classes:
            holder = getattr(holder, one)
        setattr(holder, name, metered(meter, getattr(holder, name)))
    for name, work in works():
        numbers.clear()
        known = len(needed)
        work()
        yield name, {**dict(sorted(numbers.items())), "kernels": len(needed) - known}


def main() -> None:
    """Print the table."""
    for name, found in counted():
        print(f"    {json.dumps(name)}: {json.dumps(found)},", flush=True)


def test_work_is_what_it_was() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads("{" + done.stdout.rstrip().rstrip(",") + "}")
    if found != EXPECTED:
        pytest.fail(
            f"other counts than EXPECTED; if they are meant to be, they are:\n{done.stdout}"
        )


if __name__ == "__main__":
    main()
