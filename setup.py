"""Build wheels with compiled kernels, which commands would otherwise compile when they are cold.

What the default methods need is compiled for this processor, in under a minute. The environment
variable DNNP_WARM has other options of `python -m dnnp.warm`. Where that fails the wheel has no
kernels, and is as good. pip calls the functions of this module (PEP 517), and setuptools runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta, setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

build_sdist, build_wheel = build_meta.build_sdist, build_meta.build_wheel
build_editable = build_meta.build_editable
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Name what compiling needs: all that the package depends on but ONNX Runtime."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    return [name for name in project["dependencies"] if not name.startswith("onnxruntime")]


class WithKernels(build_py):
    """Copy the package, and compile its kernels there."""

    def run(self) -> None:
        """Build, and say where nothing could be compiled."""
        super().run()
        if self.editable_mode:
            return
        root = Path(self.build_lib).resolve()
        folder = root / "dnnp" / "core" / "kernels" / "kernels.d"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier build
        words = os.environ.get("DNNP_WARM", "--defaults").split()
        done = subprocess.run(
            [sys.executable, "-m", "dnnp.warm", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
            | {"NUMBA_CACHE_DIR": str(folder)},
            cwd=root,
        )
        if done.returncode:
            print("no kernels are compiled: commands compile them when they need them")


class Compiled(Distribution):
    """A package for one kind of machine and one version of Python."""

    def has_ext_modules(self) -> bool:
        """Machine code is in it."""
        return True


if __name__ == "__main__":
    setup(cmdclass={"build_py": WithKernels}, distclass=Compiled)
