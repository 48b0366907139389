"""Build a wheel that brings compiled kernels along: `make wheel`.

They are compiled for the baseline processor of this kind of machine (`BASELINES` of
`core/kernels/folders.py`), and serve where Python, numba, llvmlite and numpy are those of this
environment; elsewhere kernels are compiled as ever. The folder `build/kernels` keeps them for the
next time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "kernels"
LINKED = ("cmds", "formats", "man", "samples", "pyproject.toml", "README.md", "LICENSE")
BUILD = (
    "import sys; from setuptools import build_meta;"
    "print(build_meta.build_wheel(sys.argv[1], {'--build-option': sys.argv[2:]}))"
)


def main() -> int:
    """Compile, and build."""
    parser = argparse.ArgumentParser(description="Build a wheel with compiled kernels.")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument(
        "--platform", default=sysconfig.get_platform(), help="of the wheel (default: %(default)s)"
    )
    args = parser.parse_args()
    subprocess.run(
        [sys.executable, "-m", "dnnp.warm", "--baseline", "--clean"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(KEPT)},
        check=True,
    )
    args.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in LINKED:
            (folder / each).symlink_to(ROOT / each)
        unwanted = shutil.ignore_patterns("__pycache__", "kernels.d")
        shutil.copytree(ROOT / "core", folder / "core", ignore=unwanted)
        shutil.copytree(KEPT, folder / "core" / "kernels" / "kernels.d")
        tags = ["--python-tag", f"cp{sys.version_info[0]}{sys.version_info[1]}"]
        tags += ["--plat-name", args.platform.replace("-", "_").replace(".", "_")]
        done = subprocess.run(
            [sys.executable, "-c", BUILD, args.output.resolve(), *tags],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    made = args.output / done.stdout.splitlines()[-1]
    needs = " ".join(f"{name}=={version(name)}" for name in ("numba", "llvmlite", "numpy"))
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB; its kernels serve with {needs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
