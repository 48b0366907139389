"""Run sharded stages of all sample models, and compare all outputs with the whole model.

    python tests/tools/shards_check.py [-t DEVICES] [-k DEVICES] [MODEL.onnx ...]

Each model, of the small samples where none is named, is planned for `-k` devices with stages that
`-t` of them hold together, all of them: on fewer, nodes are made a hundred times as slow. The plan
is checked, runs with --verify, is checked again, is exported, and the exported models compute what
the whole model computes. Prints, of each model, stages, parts, nodes by how they run, and the
largest error relative to the largest value. Exits with 1 where something fails, or an error is
1e-4 or more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dnnp as api
from dnnp.core.runtime.inputs import random_inputs
from support.run import dnnp

LIMIT = 1e-4
SLOW = 100


def must(name: str, *words: str, stdin: bytes = b"") -> bytes:
    """Output of a command that has to succeed."""
    result = dnnp(name, *words, stdin=stdin)
    if result.status:
        raise RuntimeError(f"dnnp-{name}: {result.err.strip()}")
    return result.out


def slow_on_fewer(stream: bytes, t: int) -> bytes:
    """The stream with nodes that take long on fewer devices."""
    lines = []
    for line in stream.splitlines():
        record = json.loads(line)
        if record["type"] in ("node", "group") and "time_s" in record:
            for one in (record, *record.get("shards", ())):
                if one.get("devices", 1) < t:
                    one["time_s"] = {name: SLOW * s for name, s in one["time_s"].items()}
        lines.append(json.dumps(record))
    return ("\n".join(lines) + "\n").encode()


def records(stream: bytes, kind: str) -> list[dict]:
    """Records of a kind."""
    return [r for r in map(json.loads, stream.splitlines()) if r["type"] == kind]


def exported_error(path: Path, plan: bytes, folder: Path) -> float:
    """Largest error of the exported models, relative to the largest value of an output."""
    must("export", "--to", "stages", "-o", str(folder), stdin=plan)
    stages = api.load_stages(folder)
    whole = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = onnx.load(str(path), load_external_data=False)
    shapes = {r["name"]: r["shape"] for r in records(plan, "tensor") if r["kind"] == "input"}
    sample = dict(random_inputs(model, 7, shapes=shapes))
    got, worst = stages.run(sample), 0.0
    names = [value.name for value in whole.get_outputs()]
    for name, expected in zip(names, whole.run(names, sample), strict=True):
        there, here = np.asarray(expected, dtype=float), np.asarray(got[name], dtype=float)
        most = float(np.abs(there).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(there - here).max(initial=0.0)) / most)
    return worst


def check(path: Path, k: int, t: int, folder: Path) -> str:
    """Plan, run, export; what there is to say."""
    degrees = ("--device", "cpu-core", "--tensor-parallel", str(t))
    priced = must("profile", *degrees, stdin=must("coarsen", stdin=must("import", str(path))))
    words = ("-k", str(k), "--tensor-parallel", str(t), "--reprice")
    plan = must("partition", *words, stdin=slow_on_fewer(priced, t))
    must("check", stdin=plan)
    ran = must("run", "-n", "4", "--verify", "--rtol", str(LIMIT), stdin=plan)
    must("check", stdin=ran)
    run = records(ran, "run")[0]
    error = max(run.get("max_rel_error", 0.0), exported_error(path, plan, folder))
    if not run["verified"] or error >= LIMIT:
        raise RuntimeError(f"largest relative error {error:.2g}")
    widths = [stage.get("shards", 1) for stage in records(plan, "stage")]
    if max(widths) != t:
        raise RuntimeError(f"no stage has {t} shards")
    kinds: Counter[str] = Counter()
    for node in records(plan, "node"):
        layout = next(s for s in node["shards"] if s["devices"] == t)["layout"]
        cut = any(axis >= 0 for axis in (*layout["inputs"], *layout["outputs"]))
        kinds["summed" if layout.get("reduced") else "cut" if cut else "whole"] += 1
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"shards {widths}, {run['k']} parts; nodes {shown}; largest error {error:.2g}"


def main() -> int:
    """Check all; 1 if any fails."""
    parser = argparse.ArgumentParser(description="Run sharded stages of models.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("-k", type=int, default=2)
    parser.add_argument("-t", type=int, default=2)
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        if not args.models:
            build = [sys.executable, "-m", "dnnp.samples.build", "-o", folder]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        for path in args.models or sorted(Path(folder).glob("*.onnx")):
            began = time.monotonic()
            try:
                said = check(path, args.k, args.t, Path(folder, f"out-{path.stem}"))
            except RuntimeError as error:
                said, failed = f"FAILED: {error}", failed + 1
            print(f"{path.stem}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
