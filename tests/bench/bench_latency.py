"""Latency of one sample on the workloads of the 2020 paper (Table 4), if they are at hand.

SECONDS in the environment replaces the limit, WORKLOADS the folder, which may be that of the
authors (`latency-inputs`).
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from dnnp.formats.stream import read_bytes
from support.bench import table
from support.run import executable

SECONDS = os.environ.get("SECONDS", "60")
PUBLISHED = {
    "op_bert_l-3_inference": 408.47,
    "op_bert_l-6_inference": 438.06,
    "op_bert_l-12_inference": 729.56,
    "op_resnet50_inference": 672.06,
    "layer_bert24_inference": 100.22,
    "layer_resnet50_inference": 1191.02,
    "layer_inceptionv3_inference": 1318.08,
    "layer_gnmt_inference": 225.6,
}
"""Latency of the integer program after at most an hour of Gurobi."""
SHARED = Path(__file__).resolve().parents[3] / "shared" / "workloads" / "latency"
WORKLOADS = Path(os.environ.get("WORKLOADS", SHARED))
KINDS = {"LayerGraphs": "layer_", "OperatorGraphs": "op_"}
"""The authors' folders, and what the names of their files begin with here."""
BASELINES = ("greedy", "max-load", "scotch", "single")


def plan_of(data: bytes, method: str) -> dict | None:
    """The plan record of one method; None if it has none."""
    words = [
        executable("partition"),
        "-q",
        "--objective",
        "latency",
        "--method",
        method,
        "--time-limit",
        SECONDS,
    ]
    run = subprocess.run(words, input=data, capture_output=True, check=False)
    return read_bytes(run.stdout).get("plan")[0] if run.returncode == 0 else None


def row(path: Path) -> tuple[object, ...]:
    """One workload: published value, ours, bound, seconds, baselines."""
    imported = subprocess.run(
        [executable("import"), "-q", "--from", "msr-json", path], check=True, capture_output=True
    ).stdout
    start = time.perf_counter()
    plan = plan_of(imported, "auto")
    seconds = time.perf_counter() - start
    if plan is None:
        raise RuntimeError(f"{path}: no plan")
    others = [plan_of(imported, method) for method in BASELINES]
    name = KINDS.get(path.parent.name, "") + path.stem
    return (
        name,
        PUBLISHED.get(name, "-"),
        f"{plan['value']:.3f}",
        f"{plan['bound']:.3f}",
        plan.get("bound_method", ""),
        f"{100 * plan['gap']:.2f} %",
        f"{seconds:.1f}",
        *("-" if p is None else f"{p['value']:.2f}" for p in others),
    )


def main() -> None:
    """Print the table."""
    rows = [row(path) for path in sorted(WORKLOADS.rglob("*.json"))]
    if not rows:
        print("The workloads are not at hand.")
        return
    print(
        f"`dnnp-partition --objective latency --time-limit {SECONDS}`: latency, the bound proven "
        "in the same run and its argument, gap, wall seconds; then the baselines.\n"
    )
    header = ("workload", "2020 paper", "latency", "bound", "by", "gap", "seconds", *BASELINES)
    print(table(header, rows))


if __name__ == "__main__":
    main()
