"""Run sharded stages of all sample models, and compare all outputs with the whole model.

    python tests/tools/shards_check.py [-t DEVICES] [-k DEVICES] [--random N] [MODEL.onnx ...]

Each model, of the small samples where none is named, is planned for `-k` devices with stages that
`-t` of them hold together, all of them: on fewer, nodes are made a hundred times as slow. The plan
is checked, runs with --verify, is checked again, is exported, and the exported models compute what
the whole model computes. Prints, of each model, stages, parts, nodes by how they run, and the
largest error relative to the largest value. With `--random` so many layouts of each model follow
that take any rule for any node, on 2 to 4 devices, in three stages. Exits with 1 where something
fails, or an error is 1e-4 or more.
"""

from __future__ import annotations

import argparse
import json
import random
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
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.formats.onnx.import_model import import_onnx
from support.run import must, records_of
from support.sharded import cut, laid_out, plan_of_stages, split
from support.split_models import run_split, run_whole

LIMIT = 1e-4
SLOW = 100


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


def largest(expected: dict, got: dict) -> float:
    """Largest error, relative to the largest value of an output."""
    worst = 0.0
    for name, value in expected.items():
        there, here = np.asarray(value, dtype=float), np.asarray(got[name], dtype=float)
        most = float(np.abs(there).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(there - here).max(initial=0.0)) / most)
    return worst


def random_error(path: Path, seed: int) -> float:
    """The same of a model that is cut by any rules, in one piece and in parts."""
    rng = random.Random(seed)
    model, stream = onnx.load(str(path)), import_onnx(str(path))
    shapes = {r["name"]: r["shape"] for r in stream.get("tensor") if r["kind"] == "input"}
    feeds = dict(random_inputs(model, seed, shapes=shapes))
    t, often = rng.choice([2, 3, 4]), rng.choice([0.3, 0.7, 0.95])
    laid_out(
        stream,
        t,
        lambda v, seen, ways: rng.choice(ways[1:] or ways) if rng.random() < often else ways[0],
    )
    order = [record["id"] for record in stream.get("node")]
    a, b = sorted(rng.sample(range(1, len(order)), 2))
    degrees = [t, *rng.choices([1, t], k=2)]
    plan = plan_of_stages([order[:a], order[a:b], order[b:]], degrees)
    found, _ = cut(stream, model, plan)
    whole, made = run_whole(model, feeds), found.made.model
    ways = run_whole(made, feeds), run_split(split(stream, found), made, feeds)
    return max(largest(whole, got) for got in ways)


def exported_error(path: Path, plan: bytes, folder: Path) -> float:
    """Largest error of the exported models, relative to the largest value of an output."""
    must("export", "--to", "stages", "-o", str(folder), stdin=plan)
    stages = api.load_stages(folder)
    whole = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = onnx.load(str(path), load_external_data=False)
    shapes = {r["name"]: r["shape"] for r in records_of(plan, "tensor") if r["kind"] == "input"}
    sample = dict(random_inputs(model, 7, shapes=shapes))
    names = [value.name for value in whole.get_outputs()]
    expected = dict(zip(names, whole.run(names, sample), strict=True))
    return largest(expected, stages.run(sample))


def check(path: Path, k: int, t: int, folder: Path) -> str:
    """Plan, run, export; what there is to say."""
    degrees = ("--device", "cpu-core", "--tensor-parallel", str(t))
    priced = must("profile", *degrees, stdin=must("coarsen", stdin=must("import", str(path))))
    words = ("-k", str(k), "--tensor-parallel", str(t), "--reprice")
    plan = must("partition", *words, stdin=slow_on_fewer(priced, t))
    must("check", stdin=plan)
    ran = must("run", "-n", "4", "--verify", "--rtol", str(LIMIT), stdin=plan)
    must("check", stdin=ran)
    run = records_of(ran, "run")[0]
    error = max(run.get("max_rel_error", 0.0), exported_error(path, plan, folder))
    if not run["verified"] or error >= LIMIT:
        raise RuntimeError(f"largest relative error {error:.2g}")
    widths = [stage.get("shards", 1) for stage in records_of(plan, "stage")]
    if max(widths) != t:
        raise RuntimeError(f"no stage has {t} shards")
    kinds: Counter[str] = Counter()
    for node in records_of(plan, "node"):
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
    parser.add_argument("--random", type=int, default=0, metavar="N")
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
                errors = [random_error(path, seed) for seed in range(args.random)]
                if max(errors, default=0.0) >= LIMIT:
                    seed = int(np.argmax(errors))
                    raise RuntimeError(f"random layout {seed}: error {errors[seed]:.2g}")
                if errors:
                    said += f"; of {len(errors)} random layouts {max(errors):.2g}"
            except RuntimeError as error:
                said, failed = f"FAILED: {error}", failed + 1
            print(f"{path.stem}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
