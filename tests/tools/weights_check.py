"""Export a model with large external weights to three stages, and check what came out.

    python tests/tools/weights_check.py [--gib 1] [--folder DIR]

Each stage folder is moved to a place of its own and loaded there by plain ONNX Runtime, in a
process of its own; together they compute what the model computes. The weight files add up to the
model's, the parameters that stages share and the padding; the export stays below 400 MB of memory;
onnx.load still takes the model. Needs twice the size on the disk, and as much memory for onnx.load.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.run import dnnp, executable
from support.stage_folders import chain
from support.usage import usage

LIMIT_BYTES = 400_000_000
WIDTH = 4096
LOADER = """
import sys, numpy as np, onnxruntime as ort
ort.set_default_logger_severity(4)
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
feed = session.get_inputs()[0].name
np.save(sys.argv[3], session.run(None, {feed: np.load(sys.argv[2])})[0])
"""


def compute(model: Path, given: Path, result: Path) -> Path:
    """Run a model in a process of its own."""
    subprocess.run([sys.executable, "-c", LOADER, model, given, result], check=True, cwd="/")
    return result


def check(folder: Path, layers: int) -> str:
    """Export and compare; what was measured."""
    source, out = folder / "source", folder / "out"
    source.mkdir()
    model = chain(source, layers, WIDTH)
    imported = dnnp("import", model)
    plan = folder / "plan.dnnp"
    done = dnnp("partition", "-q", "-k", "3", "-o", plan, stdin=imported.out)
    if done.status:
        raise SystemExit(done.err)
    spent = usage([executable("export"), "--to", "stages", "-o", out], plan)
    manifest = json.loads((out / "manifest.json").read_text())
    x = folder / "x.npy"
    np.save(x, np.linspace(-1, 1, WIDTH, dtype=np.float32)[None])
    expected = np.load(compute(model, x, folder / "expected.npy"))
    for stage in manifest["stages"]:
        place = folder / f"device-{stage['id']}"
        (out / stage["file"]).parent.rename(place)
        x = compute(place / "model.onnx", x, folder / f"{stage['id']}.npy")
    np.testing.assert_array_equal(np.load(x), expected)
    subprocess.run(
        [sys.executable, "-c", "import onnx, sys; onnx.load(sys.argv[1])", model], check=True
    )
    own = (source / "w.bin").stat().st_size
    shared = own // layers
    weights = manifest["weights"]
    padding = sum(entry["padding_bytes"] for entry in weights)
    total = sum(entry["size_bytes"] for entry in weights)
    if total != own + shared + padding or len(weights) != 3:
        raise SystemExit(f"{total} bytes, not {own} + {shared} + {padding}")
    if spent.peak_bytes > LIMIT_BYTES:
        raise SystemExit(f"{spent.peak_bytes} bytes of memory, more than {LIMIT_BYTES}")
    return (
        f"{own} bytes of weights to {total} in 3 folders ({shared} shared, {padding} padding), "
        f"{spent.peak_bytes / 1e6:.0f} MB of memory, {spent.seconds:.1f} s"
    )


def main() -> int:
    """Check one size."""
    parser = argparse.ArgumentParser(description="Export a model with large weights, and check.")
    parser.add_argument("--gib", type=float, default=1, help="size of the weights in GiB (1)")
    parser.add_argument("--folder", help="where to work (among the temporary files)")
    args = parser.parse_args()
    layers = max(3, round(args.gib * 2**30 / (4 * WIDTH * WIDTH)))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(check(Path(folder), layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
