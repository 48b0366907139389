"""Placement of the sample giants on Moirai's two testbeds, as in its tables IV and V and Fig. 10.

MODELS, METHODS and SECONDS in the environment replace the models, the methods and the limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dnnp.formats.stream import Stream, read_bytes
from dnnp.samples.build import CATALOG
from support.bench import table
from support.run import executable

SECONDS = float(os.environ.get("SECONDS", "20"))
METHODS = os.environ.get("METHODS", "placeto m-sct getf heft auto").split()
CLUSTERS = {
    "moirai-inter": ("rtx2080ti", "t4", "p4", "rtx3060ti"),
    "moirai-intra": ("v100", "p100"),
}
DEFAULT = "swin-1.8b gpt3-330m gpt3-1.3b evoformer-87m"
GIANTS = [name for name, entry in CATALOG.items() if entry.size == "giant"]


def command(name: str, *arguments: object, data: bytes = b"") -> bytes:
    """Output of one command."""
    words = [executable(name), "-q", *map(str, arguments)]
    return subprocess.run(words, input=data, check=True, capture_output=True).stdout


def imported(name: str, folder: str) -> bytes:
    """The stream of a sample model."""
    subprocess.run(
        [sys.executable, "-m", "dnnp.samples.build", "-o", folder, name],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return command("import", Path(folder) / f"{name}.onnx")


def priced(data: bytes, cluster: str) -> bytes:
    """The stream with analytic times on the devices of a cluster."""
    devices = [word for name in CLUSTERS[cluster] for word in ("--device", name)]
    return command("profile", *devices, data=data)


def groups(data: bytes, *arguments: str) -> int:
    """Number of groups that some way to coarsen gives."""
    return len(read_bytes(command("coarsen", *arguments, data=data)).get("group"))


def placed(data: bytes, cluster: str, method: str) -> tuple[float, Stream] | str:
    """Seconds and plan of one method; or why there is none."""
    start = time.perf_counter()
    words = [
        executable("partition"),
        "--objective",
        "latency",
        "--execution",
        "operators",
        "--devices",
        cluster,
        "--method",
        method,
        "--time-limit",
        str(SECONDS),
    ]
    run = subprocess.run(words, input=data, capture_output=True, check=False)
    seconds = time.perf_counter() - start
    if run.returncode:
        return {4: "no fit", 5: "limit"}.get(run.returncode, f"exit {run.returncode}")
    return seconds, read_bytes(run.stdout)


def main() -> None:
    """Print the tables."""
    chosen = os.environ.get("MODELS", DEFAULT).split()
    sizes, times, latencies = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in GIANTS:
            data = imported(name, folder)
            nodes = len(read_bytes(data).get("node"))
            ways = (("--rules", "moirai"), ("--rules", "ort-cuda"), ())
            sizes.append((name, nodes, *(groups(data, *way) for way in ways)))
            if name not in chosen:
                continue
            coarse = command("coarsen", data=data)
            for cluster in CLUSTERS:
                for what, graph in (("operators", data), ("groups", coarse)):
                    stream = priced(graph, cluster)
                    found = {method: placed(stream, cluster, method) for method in METHODS}
                    place = (name, cluster, what)
                    times.append((*place, *map(_seconds, found.values())))
                    latencies.append((*place, *_latencies(found)))
    print("Nodes before and after coarsening (table IV): by the rules of the paper's table I, by")
    print("those of the CUDA provider, and by the default, which also contracts chains.\n")
    print(table(("model", "nodes", "moirai", "ort-cuda", "default"), sizes))
    print(f"\nSeconds of the whole command (table V), limit {SECONDS:g}:\n")
    print(table(("model", "testbed", "of", *METHODS), times))
    print("\nLatency by the cost model, ms (Fig. 10); beside it how many times that of `auto`.\n")
    print(table(("model", "testbed", "of", *METHODS, "bound"), latencies))


def _seconds(found: tuple[float, Stream] | str) -> str:
    return found if isinstance(found, str) else f"{found[0]:.1f}"


def _latencies(found: dict[str, tuple[float, Stream] | str]) -> list[str]:
    """Latency of each method in ms, relative to the last one, and the last one's bound."""
    plans = {m: f if isinstance(f, str) else f[1].get("plan")[0] for m, f in found.items()}
    last = plans[METHODS[-1]]
    cells = []
    for method in METHODS:
        plan = plans[method]
        if isinstance(plan, str):
            cells.append(plan)
            continue
        ratio = "" if isinstance(last, str) else f" ({plan['value'] / last['value']:.2f})"
        cells.append(f"{1e3 * plan['value']:.4g}{ratio}")
    return [*cells, "-" if isinstance(last, str) else f"{1e3 * last['bound']:.4g}"]


if __name__ == "__main__":
    main()
