"""Run benchmarks and put their tables into BENCHMARKS.md.

    python tests/bench/run.py [NAME ...]

Each `bench_NAME.py` prints Markdown; it replaces what stands between the comments
`<!-- NAME -->` and `<!-- /NAME -->`, and a line about the machine is added. Without names all
benchmarks run; `regress`, which compares with an older version, only where the environment names
that (BASE). A copy of the tables goes to build/bench.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("numpy", "numba", "onnx", "onnxruntime")


def machine() -> str:
    """One line about date, processor and versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.M)
        model = found.group(1) if found else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    day = datetime.date.today().isoformat()
    return f"{day}: {model}, {cores} cores, Python {platform.python_version()}, {packages}."


def replaced(text: str, name: str, table: str) -> str:
    """`text` with a new section NAME, added at the end where there is none."""
    section = f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
    pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.S)
    if pattern.search(text):
        return pattern.sub(lambda _: section, text)
    return f"{text.rstrip()}\n\n## {name.capitalize()}\n\n{section}\n"


def main() -> int:
    """Run and write; 1 if a benchmark failed."""
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(description="Run benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    unasked = [name for name in known if name != "regress" or "BASE" in os.environ]
    names = parser.parse_args().names or unasked
    if not set(names) <= set(known):
        parser.error(f"there is only {', '.join(known)}")
    target, failed = ROOT / "BENCHMARKS.md", False
    tables = []
    for name in names:
        print(f"bench_{name} ...", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, HERE / f"bench_{name}.py"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        )
        print(done.stdout)
        if done.returncode != 0:
            failed = True
            continue
        tables.append(f"{done.stdout.strip()}\n\n{machine()}")
        target.write_text(replaced(target.read_text(), name, tables[-1]))
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "bench.md").write_text("\n\n".join(tables) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
