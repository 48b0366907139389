"""The command on models of 20,000 operators and more: time, value, and the bound it proves."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dnnp.formats.stream import read_bytes
from dnnp.samples.build import CATALOG
from support.bench import table
from support.run import executable

NODES = 20_000
COUNTS = (16, 64)
DEVICE = "v100"
LIMIT_S = 10
RATIO = 1.005


def prepared(model: Path, *, coarsen: bool) -> Path:
    """The priced stream of a model, in a file beside it."""
    made = model.with_suffix(".groups" if coarsen else ".operators")
    data = subprocess.run(
        [executable("import"), "-q", model], check=True, capture_output=True
    ).stdout
    if coarsen:
        data = subprocess.run(
            [executable("coarsen"), "-q"], input=data, check=True, capture_output=True
        ).stdout
    subprocess.run(
        [executable("profile"), "-q", "--device", DEVICE, "-o", made], input=data, check=True
    )
    return made


def split(stream: Path, k: int) -> tuple[object, ...]:
    """Units, value, bound, ratio and seconds of one run of the command."""
    start = time.perf_counter()
    run = subprocess.run(
        [executable("partition"), "-q", "-k", str(k), stream], check=True, capture_output=True
    )
    seconds = time.perf_counter() - start
    found = read_bytes(run.stdout, stream.name)
    plan = found.get("plan")[0]
    ratio = plan["value"] / plan["bound"]
    units = len(found.get("group") or found.get("node"))
    missed = "" if ratio <= RATIO else "*"
    return (
        f"{units:,}",
        k,
        f"{plan['value']:.6g}",
        f"{plan['bound']:.6g}",
        f"{ratio:.4f}{missed}",
        plan["status"],
        f"{seconds:.1f}",
    )


def main() -> None:
    """Print the table."""
    names = [name for name, entry in CATALOG.items() if entry.nodes >= NODES]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            subprocess.run(
                [sys.executable, "-m", "dnnp.samples.build", "-o", folder, name],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            for coarsen in (False, True):
                stream = prepared(Path(folder) / f"{name}.onnx", coarsen=coarsen)
                if not rows:
                    split(stream, 2)  # fills numba's cache
                for k in COUNTS:
                    rows.append((name, "groups" if coarsen else "operators", *split(stream, k)))
    print(
        f"`dnnp-partition -k K`, {DEVICE}, analytic costs, warm: wall seconds of the whole command "
        f"(target {LIMIT_S}), value over the bound that the same run proves (target {RATIO}; * "
        "missed).\n"
    )
    print(
        table(
            ("model", "units", "number", "k", "value s", "bound s", "ratio", "status", "seconds"),
            rows,
        )
    )


if __name__ == "__main__":
    main()
