"""Build wheels, with compiled kernels where DNNP_WARM has options of `python -m dnnp.warm`.

Kernels are for this processor, version of Python and of numba. Without them, which is usual, the
wheel is for any machine, and commands compile what they need when they first need it. Where
compiling fails the wheel has no kernels, and is as good.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution


class WithKernels(build_py):
    """Copy the package, and compile its kernels there if DNNP_WARM is set."""

    def run(self) -> None:
        """Build, and say where nothing could be compiled."""
        super().run()
        if self.editable_mode:
            return
        root = Path(self.build_lib).resolve()
        folder = root / "dnnp" / "core" / "kernels" / "kernels.d"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier build
        if "DNNP_WARM" not in os.environ:
            return
        done = subprocess.run(
            [sys.executable, "-m", "dnnp.warm", *os.environ["DNNP_WARM"].split()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
            | {"NUMBA_CACHE_DIR": str(folder)},
            cwd=root,
        )
        if done.returncode:
            print("no kernels are compiled: commands compile them when they need them")


class Compiled(Distribution):
    """A package for one kind of machine and one version of Python, if it holds kernels."""

    def has_ext_modules(self) -> bool:
        """True if machine code is in it."""
        return "DNNP_WARM" in os.environ


if __name__ == "__main__":
    setup(cmdclass={"build_py": WithKernels}, distclass=Compiled)
