"""Workloads of the 2020 paper on devices in clusters: value, bound for all, bound in the class.

    WORKLOADS=DIR PYTHONPATH=tests python tests/bench/bench_clusters.py

DIR holds the authors' files (a clone of msr-fiddle/dnn-partitioning); six accelerators, SIZE
(2) to a cluster, links inside ten times as fast. ONLY is a word that rows must hold, EFFORT scales
the work. The class: ordered splits that give each cluster one contiguous segment.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import dnnp
from support.bench import cpu_of, table

FOLDER, ONLY = Path(os.environ["WORKLOADS"]), os.environ.get("ONLY", "")
EFFORT, SIZE = os.environ.get("EFFORT", "1"), os.environ.get("SIZE", "2")
FILES = {
    "BERT-3 inference": "op.*bert_l-3_inference",
    "BERT-3 training": "op.*bert_l-3_training",
    "BERT-6 inference": "op.*bert_l-6_inference",
    "ResNet50 (operators) inference": "op.*resnet50_inference",
    "ResNet50 (operators) training": "op.*resnet50_training",
    "GNMT inference": "layer.*gnmt_inference",
    "GNMT training": "layer.*gnmt_training",
    "Inception-v3 training": "layer.*inceptionv3_training",
}
LINKS = ("--bandwidth", "1", "--inner-bandwidth", "10")


def main() -> None:
    """Measure, and print the table."""
    paths = sorted(FOLDER.rglob("*.json"))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        graph, plan = Path(name) / "graph.st", Path(name) / "plan.st"
        for label, pattern in FILES.items():
            found = [path for path in paths if re.search(pattern, str(path), re.IGNORECASE)]
            if not found or ONLY not in label:
                continue
            cpu_of(["import", str(found[0]), "-o", str(graph)])
            words = ["partition", "-k", "6", "--cluster-size", SIZE, *LINKS, "--effort", EFFORT]
            spent = cpu_of([*words, str(graph), "-o", str(plan)])
            cpu_of(["check", str(plan)])
            record = dnnp.load(plan).stream().get("plan")[0]
            value, bound = record["value"], record["bound"]
            among = record.get("contiguous_bound", bound)
            gaps = [f"{100 * (1 - b / value):.2g} %" for b in (bound, among)]
            numbers = [f"{number:.2f}" for number in (value, bound, among)]
            rows.append([label, *numbers[:2], gaps[0], numbers[2], gaps[1], f"{spent:.1f}"])
            print(*rows[-1], sep=" | ", flush=True)
    head = ("workload", "value", "bound for all", "gap", "in the class", "gap", "s")
    print(table(head, rows))


if __name__ == "__main__":
    main()
