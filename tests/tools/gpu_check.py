"""Check dnnp on a machine with a GPU, end to end, in nine minutes.

    python tests/tools/gpu_check.py [--provider cuda] [--wheels DIR] [STEP ...]
    python tests/tools/gpu_check.py --site DIR [--out DIR] [--provider cuda] [STEP ...]
    python tests/tools/gpu_check.py --collect DIR [--for 3.12]
    python tests/tools/gpu_check.py --provider cpu

Runs the steps of `tests/tools/gpu_steps.py`, each in a process of its own with a limit of its own;
later ones run though an earlier one failed. What they found goes to
`tests/bench/results/gpu.json`, and where BENCHMARKS.md has the comments `<!-- gpu -->` and
`<!-- /gpu -->`, as a table between them. With the provider `cpu` it is a rehearsal: all steps run
on the CPU, where what is there of GPUs only is left out, and the table is printed alone.

With --wheels an environment is made of the wheels in a folder, with onnxruntime-gpu in place of
onnxruntime; whatever is not there is taken from the interpreter that runs this. CUDA 13 and cuDNN 9
come from wheels, from the packages that PyTorch brings, or from the system. --collect downloads
what such a folder needs besides these two, for Linux on x86-64.

With --site nothing is installed and no environment is made, as on a machine that is lent for some
minutes, without a network: the interpreter that runs this runs the steps, with the unpacked
packages in a folder (onnxruntime-gpu, and what else the interpreter lacks) first on their path.
CUDA's libraries are those beside the PyTorch of that interpreter. All that was found goes to the
folder --out, step by step, with what every step said; the checkout is left alone. A machine that is
gone afterwards can be understood from that folder, or from what is printed.

Ends with 0 if all steps passed, with 1 if some did not, and with 7 where there is no GPU. Needs
nothing but Python's own library.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "build" / "gpu-check"
OUT = HERE / "out"
STEPS = {
    "versions": 30, "models": 60, "fallback": 60, "verify": 100, "workers": 90, "stages": 170,
    "formula": 90, "mixed": 120, "overlap": 40, "links": 40, "memory": 50, "failures": 50,
}  # fmt: skip
"""Step -> seconds that it may take."""
LIMIT_S = 520.0
"""Of all together."""
TAIL = 12
"""Lines of the output of a step that failed."""
NO_GPU = 7


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    step: str
    what: str
    found: str
    ok: bool


def gpus() -> tuple[int, str]:
    """Number of GPUs that the CUDA driver shows; if none, the reason."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        return 0, str(error)
    return (0, f"the driver says {status}") if status else (count.value, "the driver shows none")


def run_step(
    name: str,
    python: Path,
    provider: str,
    limit_s: float,
    env: dict[str, str],
    work: Path = HERE / "work",
    log: Path | None = None,
) -> list[Row]:
    """Run a step; its rows, and one more if it failed. All that it said goes to the file `log`."""
    words = [python, ROOT / "tests/tools/gpu_steps.py", name, provider, work]
    begin = time.monotonic()
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
        failed, status = process.returncode != 0, f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        # With what it started, which would go on and disturb the next step.
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        failed, status = True, f"took longer than {limit_s:.0f} s"
    rows = [
        Row(name, what, found, ok)
        for what, found, ok in (
            json.loads(line[4:]) for line in out.splitlines() if line[:4] == "ROW "
        )
    ]
    spent = time.monotonic() - begin
    failed = failed or not rows
    print(f"{name}: {'FAILED, ' + status if failed else 'done'}, {spent:.1f} s", file=sys.stderr)
    if log is not None:
        log.write_text(f"{out}\n{err}\n{status}, {spent:.1f} s\n")
    if failed or not all(row.ok for row in rows):
        lines = [line for line in (out + err).splitlines() if line[:4] != "ROW "]
        print("\n".join(f"    {line}" for line in lines[-TAIL:]), file=sys.stderr)
    return [*rows, Row(name, "the step", status, False)] if failed else rows


def environment(python: Path, here: Path = HERE, site: Path | None = None) -> dict[str, str]:
    """Variables for the steps: where dnnp is, and the libraries of CUDA.

    With packages unpacked in the folder `site`, they are first on the path, and all that Python and
    the kernels leave behind goes to `here`.
    """
    package = here / "path" / "dnnp"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for part in (
        *(ROOT / name for name in ("cmds", "core", "formats", "samples")),
        *(ROOT / "core/api").glob("[!_]*"),
        ROOT / "core/api/__init__.py",
    ):
        (package / part.name).symlink_to(part)
    said = subprocess.run([python, "-c", FOLDERS], capture_output=True, text=True, check=True)
    folders = dict.fromkeys(map(Path, filter(None, [*said.stdout.splitlines(), *sys.path])))
    found = [path for folder in folders for path in sorted(folder.glob("nvidia/*/lib"))]
    found += sorted(Path("/usr/local").glob("cuda*/lib64"))
    libraries = [str(path) for path in found] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    paths = [package.parent, ROOT / "tests"] if site is None else [site.resolve(), package.parent]
    alone = {"PYTHONPYCACHEPREFIX": str(here / "pycache"), "NUMBA_CACHE_DIR": str(here / "kernels")}
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "XDG_CACHE_HOME": str(here / "cache"),
        **(alone if site is not None else {}),
    }


FOLDERS = """
import site, sys
print(*site.getsitepackages([sys.prefix, sys.base_prefix]), *sys.path, sep="\\n")
"""
"""Prints where an interpreter has packages, and the one that its environment was made from."""

INSTALLED = """
import sys
from importlib.metadata import distributions
print(sys.version, sys.executable, sys.prefix, sys.base_prefix, *sys.path, sep="\\n")
print(*sorted({f"{d.name} {d.version}" for d in distributions()}), sep="\\n")
"""
"""Prints what an interpreter is, and which packages it has."""


def describe(python: Path, env: dict[str, str], out: Path) -> None:
    """Write down what the machine and the interpreter are: one file each."""
    for name, words in {
        "python": [python, "-c", INSTALLED],
        "processor": ["lscpu"],
        "gpu": ["nvidia-smi", "-q"],
        "links": ["nvidia-smi", "topo", "-m"],
    }.items():
        try:
            done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=30)
            text = done.stdout + done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            text = f"{error}\n"
        if name == "python":
            text += "".join(f"{key}={env[key]}\n" for key in ("PYTHONPATH", "LD_LIBRARY_PATH"))
            print(text, file=sys.stderr)
        (out / f"{name}.txt").write_text(text)


def make_venv(wheels: Path) -> Path:
    """An environment with the wheels of a folder; its interpreter."""
    folder = HERE / "venv"
    venv.create(folder, system_site_packages=True, clear=True, with_pip=False)
    python = folder / "bin" / "python"
    files = sorted(wheels.glob("*.whl"))
    if any(file.name.startswith("onnxruntime_gpu-") for file in files):
        files = [file for file in files if not file.name.startswith("onnxruntime-")]
    if not files:
        raise SystemExit(f"{wheels}: no wheels there")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    words = [*pip, "--no-index", "--no-deps", "--no-compile", *map(str, files)]
    if subprocess.run(words).returncode:
        print("pip cannot install the wheels: they are unpacked", file=sys.stderr)
        target = next((folder / "lib").glob("python*/site-packages"))
        for file in files:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(target)
    return python


def collect(folder: Path, version: str) -> int:
    """Download the wheels that --wheels needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.sub(r"^onnxruntime\b", "onnxruntime-gpu", n) for n in project["dependencies"]]
    tags = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 24, 17)] + ["manylinux2014_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    words = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "-d", str(folder)]
    return subprocess.run([*words, "--python-version", version, *platforms, *names]).returncode


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = ["| step | what | found | |", "|---|---|---|---|"]
    lines += [f"| {r.step} | {r.what} | {r.found} | {'ok' if r.ok else '**no**'} |" for r in rows]
    return "\n".join(lines)


def machine() -> str:
    """One line about date and processor; the first step has the rest."""
    cpuinfo = Path("/proc/cpuinfo")
    found = (
        re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.M) if cpuinfo.exists() else None
    )
    model = found.group(1) if found else platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    day, version = datetime.date.today().isoformat(), platform.python_version()
    return f"{day}: {model}, {cores} cores, Python {version}."


def keep(rows: Sequence[Row], root: Path = ROOT) -> None:
    """Write the results of benchmarks, and the section of BENCHMARKS.md where it has one."""
    sys.path.insert(0, str(ROOT / "tests" / "bench"))
    from run import as_json, has_section, replaced

    day, _, host = machine().partition(": ")
    lines = [[r.step, r.what, r.found, "ok" if r.ok else "no"] for r in rows]
    found = {"about": "`make gpu-check`.", "columns": ["step", "what", "found", ""], "rows": lines}
    result = {"date": day, "machine": host, "tables": [found]}
    (root / "tests" / "bench" / "results" / "gpu.json").write_text(as_json(result))
    target = root / "BENCHMARKS.md"
    if has_section(text := target.read_text(), "gpu"):
        target.write_text(replaced(text, "gpu", f"{table(rows)}\n\n{machine()}"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check dnnp on a machine with a GPU.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="make an environment of these")
    parser.add_argument("--site", type=Path, metavar="DIR", help="packages, as they are unpacked")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for the results of --site")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="download wheels to DIR")
    parser.add_argument(
        "--for", dest="version", default="3.12", metavar="VERSION", help="of Python"
    )
    args = parser.parse_args()
    if not set(args.steps) <= set(STEPS):
        parser.error(f"there is only {', '.join(STEPS)}")
    if args.site and args.wheels:
        parser.error("give --site or --wheels, not both")
    if args.out and not args.site:
        parser.error("--out is for --site")
    if args.site and not args.site.is_dir():
        parser.error(f"{args.site}: no such folder")
    return args


def main() -> int:
    """Run the steps."""
    begin = time.monotonic()
    args = _arguments()
    if args.collect:
        return collect(args.collect, args.version)
    if args.provider == "cuda":
        count, reason = gpus()
        if not count:
            print(f"no GPU: {reason}", file=sys.stderr)
            return NO_GPU
    if args.site:
        with tempfile.TemporaryDirectory("", "gpu-check-", ignore_cleanup_errors=True) as here:
            return check(args, begin, Path(sys.executable), Path(here), args.out or OUT)
    python = make_venv(args.wheels) if args.wheels else Path(sys.executable)
    return check(args, begin, python, HERE)


def check(
    args: argparse.Namespace, begin: float, python: Path, here: Path, out: Path | None = None
) -> int:
    """Run the steps in the folder `here`; what they find goes to `out`, or to the benchmarks."""
    work, end = here / "work", begin + LIMIT_S
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    env, rows = environment(python, here, args.site), list[Row]()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        describe(python, env, out)
    # Without models no other step has anything to do.
    for name in [n for n in STEPS if n in args.steps or not args.steps or n == "models"]:
        limit_s = min(STEPS[name], end - time.monotonic())
        if limit_s <= 1:
            rows.append(Row(name, "the step", "there was no time left", False))
            continue
        log = None if out is None else out / f"{name}.log"
        rows += run_step(name, python, args.provider, limit_s, env, work, log)
        if out is not None:
            # Now, as all may be over in the midst of the next step.
            (out / "table.md").write_text(f"{table(rows)}\n\n{machine()}\n")
    print(f"{table(rows)}\n\n{machine()}")
    if args.provider == "cuda" and out is None:
        keep(rows)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
