"""Compile kernels before they are needed: ``python -m dnnp.warm``.

Kernels are compiled when they are first needed, and kept in a file each. This makes them all at
once, so that later commands compile nothing: for containers, CI and wheels.
Small problems bring every kernel to be compiled, for each type of argument that it meets.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from dnnp.callbacks import Callbacks
from dnnp.core.kernels.cache import folders, set_name, writable
from dnnp.core.kernels.kernel import compile_always
from dnnp.core.model.errors import DnnpError, InputFileError, UnavailableError
from dnnp.core.model.processes import available_cores, die_with_parent
from dnnp.core.model.search_context import wait_always
from dnnp.core.model.text import counted

if TYPE_CHECKING:
    from dnnp.core.kernels.cache import KernelCache
    from dnnp.graph import Graph


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
    "pairs": (_split(method="slice"), _bound(method="pairs"), _bound(method="cover")),
    "flows": (_split(method="uniform"), _bound(method="same-block")),
    "shape NN": (_schedule(shape="NN", devices=4),),
    "shape X": (_schedule(shape="X", devices=4),),
    "many slices": (_split(method="slice"),),
}
"""Name -> steps; what commands need without options. Those that compile most come first."""

CASES: dict[str, tuple[Step, ...]] = DEFAULTS | {
    "cpu latency": (_latency(execution="blocks", invocations=2, **QUICK), _bound(**SHORT)),
    "copies": (_split(max_replicas=2),),
    "clusters": (_split(method="exact", **CLUSTERS), _split(method="pipedream", **CLUSTERS)),
    "edges": (_latency(execution="operators", transfers="edge", congestion="none", **QUICK),),
    "overflow": (_split(method="heuristic", memory=100.0, memory_mode="overflow", **QUICK),),
    "peak": (_split(method="local-search", validity="free", **PEAK), _split(**PEAK)),
    "wide peak": (_split(k=2, memory_model="peak", method="uniform"),),
    "tight peak": (_split(k=3, memory=400.0, memory_model="peak", method="exact"),),
    "live latency": (_latency(execution="blocks", memory=400.0, memory_model="peak", **QUICK),),
    "convex": (_split(method="ip", validity="convex", **SHORT), _bound(method="same-block")),
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

    Raises DnnpError: whatever the steps raise.
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
    """Callbacks that drop warnings: toy problems deserve some."""

    def warn(self, message: str) -> None:
        """Drop a warning."""


def _graph(words: list[str]) -> Graph | None:
    """The random graph of a case; None: it has none."""
    from dnnp.graph import Graph
    from dnnp.loading import generate

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


PROG = "python -m dnnp.warm"


def caches() -> Iterator[KernelCache]:
    """The caches of all kernels of the package."""
    from dnnp.core.kernels.cache import KernelCache

    path = import_module("dnnp.core").__path__
    for module in pkgutil.walk_packages(path, "dnnp.core."):
        for value in vars(import_module(module.name)).values():
            cache = getattr(getattr(value, "dispatcher", value), "_cache", None)
            if isinstance(cache, KernelCache):
                yield cache


def work(parent: int, names: Sequence[str], quiet: bool) -> None:
    """Do cases whose indices come as bytes on standard input; print what is lacking."""
    die_with_parent()
    if os.getppid() != parent:
        return
    compile_always()
    wait_always()
    said = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # solvers print
    while index := os.read(0, 1):
        name = names[index[0]]
        if not quiet:
            print(f"{PROG}: {index[0] + 1} of {len(names)}: {name}", file=sys.stderr, flush=True)
        os.write(said, do(name).encode() + b"\n")


def do_cases(names: Sequence[str], jobs: int, quiet: bool) -> list[str]:
    """Do cases in so many processes; return what was lacking, which left some of them out.

    Unless `quiet`, each case is named on standard error when it is begun.

    Raises InputFileError: A process ended, or was not started.
    """
    source, sink = os.pipe()  # a free worker reads the next one
    os.write(sink, bytes(range(len(names))))
    os.close(sink)
    script = f"from dnnp.warm import work; work({os.getpid()}, {[*names]!r}, {quiet})"
    command = [sys.executable, "-P", "-c", script]
    workers: list[subprocess.Popen[str]] = []
    failed = "a process that compiled was ended, or none was started: for want of memory?"
    try:
        for _ in range(jobs):  # a Ctrl-C at the terminal is for the parent alone
            workers.append(subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE,
                                            text=True, start_new_session=True))  # fmt: skip
        said = [worker.communicate()[0] for worker in workers]
    except OSError:
        raise InputFileError(failed) from None
    finally:
        os.close(source)
        for worker in workers:
            worker.kill()
    if any(worker.returncode for worker in workers):
        raise InputFileError(failed)
    return sorted({line for text in said for line in text.splitlines() if line})


def _run(args: argparse.Namespace) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise UnavailableError("NUMBA_DISABLE_JIT is set: nothing is compiled")
    folder = writable()
    if folder is None:
        places = " or ".join(map(str, folders()))
        raise InputFileError(f"nothing can be kept in {places}: set NUMBA_CACHE_DIR")
    started, missing = monotonic(), list[str]()
    cases = [*(DEFAULTS if args.defaults else CASES)]
    if args.defaults or not all(cache.is_compiled() for cache in caches()):
        missing = do_cases(cases, args.jobs, args.quiet)
    files = [[*cache.paths()] for cache in caches()]
    if not any(files) or not (args.defaults or all(files)):
        raise InputFileError(f"{folder}: not all kernels could be written")
    if not args.quiet:
        for reason in missing:
            print(f"{PROG}: left out: {reason}", file=sys.stderr)
        sizes = [path.stat().st_size for paths in files for path in paths]
        print(f"{counted(len(sizes), 'kernel')}, {sum(sizes) / 1e6:.0f} MB: {folder / set_name()}")
        print(f"done in {monotonic() - started:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog=PROG, description="Compile all kernels now.")
    parser.add_argument("-j", "--jobs", type=int, metavar="N", default=len(available_cores()),
                        help="processes at a time (default: one a core)")  # fmt: skip
    parser.add_argument(
        "--defaults", action="store_true", help="compile only what commands need without options"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        parser.error("--jobs: must be at least 1")
    trouble, status = "", 0
    try:
        _run(args)
    except DnnpError as error:
        trouble, status = str(error), error.exit_status
    except KeyboardInterrupt:
        trouble, status = "interrupted; what is compiled is kept", 130
    except OSError as error:
        trouble = f"{error.filename or '<stdout>'}: {error.strerror or error}"
        status = InputFileError.exit_status
    if trouble:
        with suppress(OSError):
            print(f"{PROG}: {trouble}", file=sys.stderr)
    return status


if __name__ == "__main__":
    if os.name == "posix":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
