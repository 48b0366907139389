"""Take real models from import to a verified run, with the installed commands.

    python tests/tools/models_check.py [--models DIR] [-k N] [MODEL.onnx ...]

The models are the `light_*.onnx` of the onnx package and those of a folder. Each goes through
import, profile and partition, is checked, and runs with --verify. Models whose weights are one
constant run with random ones. A model whose weight files are absent is planned at k = 16 only.
Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.backend.test

from dnnp.formats.onnx_load import load_with_hash
from dnnp.formats.onnx_scope import held_tensors
from dnnp.formats.onnx_weights import external_fields

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
GIANT_K = 16
SAMPLES = 4


@dataclass
class Line:
    """One row of the table."""

    model: str
    k: int
    cells: dict[str, str] = field(default_factory=dict)
    fault: str = ""


class FailedError(Exception):
    """A command ended with another status than 0."""


def command(line: Line, name: str, *arguments: str, data: bytes = b"") -> bytes:
    """Run one command of the pipeline; note its time."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"dnnp-{name}", *arguments],
        input=data,
        capture_output=True,
        cwd=ROOT,
        timeout=900,
    )
    line.cells[name] = f"{time.perf_counter() - started:.1f}"
    messages = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode != 0 or any("Traceback" in m for m in messages):
        last = messages[-1] if messages else "no message"
        raise FailedError(f"dnnp-{name} ends with status {done.returncode}: {last}")
    weak = [m for m in messages if "proves little" in m]
    if weak:
        raise FailedError(weak[0])
    return done.stdout


def is_weightless(model: onnx.ModelProto, path: Path) -> bool:
    """Whether a weight file that the model names is absent."""
    locations = {external_fields(t).get("location", "") for t in held_tensors(model)} - {""}
    return any(not (path.parent / location).exists() for location in locations)


def check_model(path: Path, counts: list[int]) -> list[Line]:
    """One line for each number of devices."""
    model, _ = load_with_hash(path)
    absent = is_weightless(model, path)
    constant = any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    lines = [Line(path.name, k) for k in ([GIANT_K] if absent else counts)]
    priced = b""
    for line in lines:
        try:
            priced = priced or command(line, "profile", data=command(line, "import", str(path)))
            plan = command(line, "partition", "-k", str(line.k), data=priced)
            command(line, "check", "--json", data=plan)
            if absent:
                line.cells["result"] = "planned"
                continue
            weights = ["--random-weights", "1"] if constant else []
            ran = command(
                line, "run", "--verify", "-n", str(SAMPLES), "--warmup", "1", *weights, data=plan
            )
            record = next(r for r in map(json.loads, ran.splitlines()) if r["type"] == "run")
            line.cells["error"] = f"{record['max_rel_error']:.1e}"
            line.cells["result"] = "verified" if record["verified"] is True else "?"
            if record["verified"] is not True:
                line.fault = "the run record does not say that it was verified"
        except (FailedError, subprocess.TimeoutExpired) as error:
            line.fault = str(error)
    return lines


def show(lines: list[Line]) -> None:
    """Print the table, then the faults."""
    columns = ("import", "profile", "partition", "check", "run", "error", "result")
    rows = [("model", "k", *columns)]
    for line in lines:
        cells = {**line.cells, "result": "FAILED"} if line.fault else line.cells
        rows.append((line.model, str(line.k), *(cells.get(c, "") for c in columns)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    for line in lines:
        if line.fault:
            print(f"{line.model}, k = {line.k}: {line.fault}")


def main() -> int:
    """Check all models."""
    parser = argparse.ArgumentParser(description="Take models from import to a verified run.")
    parser.add_argument("files", nargs="*", type=Path, metavar="MODEL", help="only these models")
    parser.add_argument("--models", type=Path, metavar="DIR", help="folder with more models")
    parser.add_argument("-k", type=int, action="append", metavar="N", help="devices (2 and 4)")
    args = parser.parse_args()
    folder = args.models or ROOT.parent / "shared" / "models"
    if args.models and not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    paths = args.files or [*sorted(LIGHT.glob("light_*.onnx")), *sorted(folder.glob("*.onnx"))]
    lines: list[Line] = []
    for path in paths:
        print(f"{path.name} ...", file=sys.stderr, flush=True)
        lines += check_model(path.resolve(), args.k or [2, 4])
    show(lines)
    failed = sum(bool(line.fault) for line in lines)
    print(f"{len(lines) - failed} of {len(lines)} runs passed")
    return 1 if failed or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
