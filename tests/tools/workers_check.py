"""Run every kind of plan with every kind of workers, and compare all outputs.

    python tests/tools/workers_check.py [--workers thread process ray] [MODEL.onnx ...]

Each model, of the small samples where none is named, is planned in five ways: a pipeline, one with
replicas, one over devices that differ, one for the latency of a sample, and a free placement with
a schedule. All run with --verify. Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.run import dnnp

PLANS = {
    "ordered": ("-k", "3"),
    "replicated": ("-k", "3", "--max-replicas", "2"),
    "heterogeneous": ("--devices", "cpu-core:2,cpu-core-avx512:1"),
    "latency": ("-k", "2", "--objective", "latency", "--effort", "0.2"),
    "free": ("-k", "2", "--validity", "free", "--effort", "0.2"),
}
WORKERS = {
    "thread": ("--workers", "thread"),
    "process": ("--workers", "process"),
    "ray": ("--engine", "ray", "--ray-address", "auto"),
}


@contextmanager
def cluster(needed: bool) -> Iterator[None]:
    """Ray, for all runs."""
    if needed:
        import ray

        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    if needed:
        ray.shutdown()


def must(name: str, *words: str, stdin: bytes = b"") -> bytes:
    """Output of a command that has to succeed."""
    result = dnnp(name, "-q", *words, stdin=stdin)
    if result.status:
        raise RuntimeError(f"dnnp-{name}: {result.err.strip()}")
    return result.out


def plans(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and stream of each plan of a model."""
    coarse = must("coarsen", stdin=must("import", str(path)))
    both = ("--device", "cpu-core", "--device", "cpu-core-avx512")
    priced = {True: must("profile", *both, stdin=coarse), False: must("profile", stdin=coarse)}
    for kind, words in PLANS.items():
        plan = must("partition", *words, stdin=priced[kind == "heterogeneous"])
        if kind == "free":
            plan = must("schedule", "-n", "6", "--effort", "0.2", stdin=plan)
        yield kind, plan


def main() -> int:
    """Run all; 1 if any fails."""
    parser = argparse.ArgumentParser(description="Run plans with all kinds of workers.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--workers", nargs="*", choices=WORKERS)
    args = parser.parse_args()
    there = [k for k in WORKERS if k != "ray" or importlib.util.find_spec("ray") is not None]
    kinds, failed, runs = args.workers or there, 0, 0
    with tempfile.TemporaryDirectory() as folder, cluster("ray" in kinds):
        if not args.models:
            build = [sys.executable, "-m", "dnnp.samples.build", "-o", folder]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        for path in args.models or sorted(Path(folder).glob("*.onnx")):
            for kind, plan in plans(path):
                for workers in kinds:
                    began = time.monotonic()
                    samples = () if kind == "free" else ("-n", "8")
                    words = (*WORKERS[workers], "--verify", "--warmup", "1", *samples)
                    result = dnnp("run", "-q", *words, stdin=plan)
                    good = result.status == 0 and result.one("run")["verified"] is True
                    runs, failed = runs + 1, failed + (not good)
                    said = "verified" if good else f"FAILED ({result.status}): {result.err.strip()}"
                    took = f"{time.monotonic() - began:.1f} s"
                    print(f"{path.stem:20} {kind:14} {workers:8} {took:8} {said}", flush=True)
    print(f"{runs - failed} of {runs} runs passed")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
