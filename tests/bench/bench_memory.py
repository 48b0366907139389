"""Predicted memory of stages against that of processes that ran them three times.

    python tests/bench/run.py memory
    MODELS="a.onnx b.onnx" python tests/bench/run.py memory

Full sizes of the samples, and further models that MODELS names. Ways: `run`, each stage in a
process of `dnnp-run`, the worst stage; `load`, all stages of an export in a process of
`dnnp.load_stages`. Measured is what is resident beyond an empty session.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import dnnp
from dnnp.core.model.text import shown_bytes
from support.bench import table

SAMPLES = ("bert", "dlrm", "gnmt", "gpt", "inception-v3", "moe", "raft", "resnet50", "two-tower")
LEAST_BYTES = 30e6
LOAD = """
import sys
import dnnp, dnnp.stage_loading, dnnp.formats.export.manifest
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.usage import resident_bytes
from dnnp.core.runtime.model.session import empty_session_bytes
from dnnp.formats.onnx.load_model import load_with_hash
from dnnp.formats.onnx.value_types import known_shapes
from dnnp.formats.stream import read_bytes

shapes = known_shapes(read_bytes(open(sys.argv[2], "rb").read(), sys.argv[2]))
sample = random_inputs(load_with_hash(sys.argv[3], light=True)[0], [0, 0], shapes=shapes)
before = empty_session_bytes()
stages = dnnp.load_stages(sys.argv[1])
for _ in range(3):
    stages.run(sample)
print(resident_bytes() - before)
"""


def loaded(plan: dnnp.Graph, model: Path, folder: Path) -> int:
    """Memory of a process that loads all stages of an export and runs them three times, bytes."""
    dnnp.export(plan, folder / "out", to="stages")
    plan.save(folder / "plan.dnnp")
    words = [sys.executable, "-c", LOAD, folder / "out", folder / "plan.dnnp", model]
    return int(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


def rows_of(model: Path) -> list[tuple[str, int, str, float, float]]:
    """Model, k, way, predicted and measured bytes."""
    rows = []
    priced = dnnp.profile(dnnp.coarsen(dnnp.load(model)))
    for k in (1, 2):
        plan = dnnp.split(priced, k=k, method="uniform")
        ran = dnnp.run(plan, samples=3, warmup=0, workers="process").runs[-1]
        found = [(s["memory_bytes"], s["resident_bytes"]) for s in ran["stages"]]
        large = [pair for pair in found if pair[0] >= LEAST_BYTES]
        if large:
            worst = max(large, key=lambda pair: abs(pair[1] / pair[0] - 1))
            rows.append((model.stem, k, "run", *worst))
        total = sum(stage.memory for stage in plan.stages)
        total += plan.plan.record["devices"][0].get("overhead_bytes", 0.0)
        if total >= LEAST_BYTES:
            with tempfile.TemporaryDirectory() as folder:
                rows.append((model.stem, k, "load", total, loaded(plan, model, Path(folder))))
    return rows


def main() -> None:
    """Measure and print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{name}-full" for name in SAMPLES]
        words = [sys.executable, "-m", "dnnp.samples.build", *names, "-o", folder]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        models = [Path(folder, f"{name}.onnx") for name in names]
        for model in [*models, *map(Path, os.environ.get("MODELS", "").split())]:
            rows += rows_of(model)
    ratios = [measured / predicted for *_, predicted, measured in rows]
    errors = [abs(ratio - 1) for ratio in ratios]
    print(
        f"{len({row[0] for row in rows})} models, {len(rows)} runs: measured over predicted is off "
        f"by {statistics.median(errors):.1%} in the median and {max(errors):.1%} at worst; "
        f"{sum(ratio > 1.1 for ratio in ratios)} are more than 10 % above what was predicted.\n"
    )
    cells = [
        [name, k, way, shown_bytes(predicted), shown_bytes(measured), f"{measured / predicted:.2f}"]
        for name, k, way, predicted, measured in rows
    ]
    print(table(["model", "k", "way", "predicted", "measured", "ratio"], cells))


if __name__ == "__main__":
    main()
