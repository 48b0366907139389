"""Run benchmarks and keep what they measured.

    python tests/bench/run.py [NAME ...]

Each `bench_NAME.py` prints Markdown. Its tables go to `results/NAME.json`, with the date and the
machine, beside what it has written there itself. Where BENCHMARKS.md has the comments
`<!-- NAME -->` and `<!-- /NAME -->`, all of it also takes the place of what stands between them.
Without names all benchmarks run, but `regress` only where the environment names the older version
(BASE). A copy of what they printed goes to build/bench.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
PACKAGES = ("numpy", "numba", "onnx", "onnxruntime")
RULE = re.compile(r"\|[-:| ]+")
"""The line between the heading of a table and its rows."""


def today() -> str:
    """The date in ISO form."""
    return datetime.date.today().isoformat()


def machine() -> str:
    """Processor and versions, in a line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.M)
        model = found.group(1) if found else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{model}, {cores} cores, Python {platform.python_version()}, {packages}"


def has_section(text: str, name: str) -> bool:
    """True if `text` has the comments of the section NAME."""
    return f"<!-- {name} -->\n" in text


def replaced(text: str, name: str, table: str) -> str:
    """`text` with a new section NAME in the place of the old one."""
    section = f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
    pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.S)
    return pattern.sub(lambda _: section, text)


def number(cell: str) -> str | int | float:
    """A cell as a number, if it is nothing else."""
    if not re.fullmatch(r"-?\d+(,\d{3})*(\.\d+)?(e[-+]\d+)?", cell):
        return cell
    plain = cell.replace(",", "")
    return int(plain) if plain.lstrip("-").isdigit() else float(plain)


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def tables_in(text: str) -> list[dict[str, object]]:
    """The tables of a Markdown text: the paragraph before each, its columns and its rows."""
    found, about = [], ""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.splitlines()
        if len(lines) < 2 or not RULE.fullmatch(lines[1]):
            about = " ".join(paragraph.split())
            continue
        rows = [[number(cell) for cell in cells(line)] for line in lines[2:]]
        found.append({"about": about, "columns": cells(lines[0]), "rows": rows})
        about = ""
    return found


def as_json(data: dict[str, object]) -> str:
    """JSON with each row of a table on a line of its own."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    rows = re.compile(r"\[\n *([^][]*?)\n *\]")
    return rows.sub(lambda row: "[" + re.sub(r"\n *", " ", row[1]) + "]", text) + "\n"


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
    printed = []
    for name in names:
        print(f"bench_{name} ...", file=sys.stderr)
        started, path = time.time(), RESULTS / f"{name}.json"
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
        table, date, host = done.stdout.strip(), today(), machine()
        result = {"date": date, "machine": host, "tables": tables_in(table)}
        if path.exists() and path.stat().st_mtime >= started:  # it has written more than its tables
            result.update(json.loads(path.read_text()))
        path.write_text(as_json(result))
        printed.append(f"{table}\n\n{date}: {host}.")
        text = target.read_text()
        if has_section(text, name):
            target.write_text(replaced(text, name, printed[-1]))
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "bench.md").write_text("\n\n".join(printed) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
