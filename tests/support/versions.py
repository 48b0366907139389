"""Two versions of this project, installed apart, for benchmarks that compare them."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.project import ROOT

BUILD = ROOT / "build" / "regress"

ROUNDS = 4
"""Most runs before the timed ones, which end once no more kernels are compiled."""


class Spent(NamedTuple):
    """Exit status, processor time with workers, and peak memory of a command."""

    status: int
    cpu_s: float
    memory_mb: float


class Version:
    """A version, installed below build/regress with caches of its own.

    Parameters
    ----------
    revision
        Of git; None: the working tree as it is.
    """

    def __init__(self, revision: str | None) -> None:
        self.folder = BUILD / (revision or "tree")
        self.site, self.kernels = self.folder / "site", self.folder / "kernels"
        if revision is None or not self.site.is_dir():
            self._install(revision)
        self.env = {
            **os.environ,
            "PYTHONPATH": str(self.site),
            "NUMBA_CACHE_DIR": str(self.kernels),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)

    def _install(self, revision: str | None) -> None:
        source = self.folder / "source"
        for place in (source, self.site):
            shutil.rmtree(place, ignore_errors=True)
        source.mkdir(parents=True)
        packed = self.folder / "source.tar"
        if revision is not None:
            git("archive", "--format", "tar", "-o", str(packed), revision)
        else:
            names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
            kept = "\0".join(n for n in names.decode().split("\0") if (ROOT / n).is_file())
            words = ["tar", "-c", "-f", str(packed), "--null", "-T", "-"]
            subprocess.run(words, cwd=ROOT, input=kept.encode(), check=True)
        subprocess.run(["tar", "-x", "-f", packed], cwd=source, check=True)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        words += [str(self.site), str(source)]
        # Older versions compile kernels into the wheel, which needs none here.
        env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
        subprocess.run(words, check=True, stdout=sys.stderr, env=env)
        # A folder without it would stand behind the package of the environment.
        (self.site / "dnnp" / "__init__.py").touch()

    def run(
        self, words: Sequence[str], folder: Path, stream: Path | None, out: Path, most_s: int = 0
    ) -> Spent:
        """Run a command in a folder, its output in a file, within so many CPU seconds."""
        name, *options = words
        command = [sys.executable, str(self.site / "bin" / f"dnnp-{name}"), *options, "-q"]

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))

        with (
            open(stream or os.devnull, "rb") as read,
            open(out, "wb") as written,
            open(out.with_suffix(".err"), "wb") as said,
        ):
            process = subprocess.Popen(
                command, stdin=read, stdout=written, stderr=said, env=self.env, cwd=folder,
                preexec_fn=limit if most_s else None,
            )  # fmt: skip
            _, ended, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(ended)
        scale = 2**20 if sys.platform == "darwin" else 2**10
        return Spent(process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / scale)

    def warmed(
        self, words: Sequence[str], folder: Path, stream: Path | None, out: Path, most_s: int = 0
    ) -> Spent:
        """Run a command until it compiles nothing any more; its last run."""
        for _ in range(ROUNDS):
            before = self.kept()
            spent = self.run(words, folder, stream, out, most_s)
            if spent.status or self.kept() == before:
                break
        return spent

    def kept(self) -> dict[Path, int]:
        """Kernels, and notes of which to compile next: paths and sizes."""
        return {path: path.stat().st_size for path in self.kernels.rglob("*") if path.is_file()}


def git(*words: str) -> bytes:
    """Output of a git command in the project."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def revision_of(name: str) -> str:
    """The first 12 digits of a commit that git knows by a name."""
    return git("rev-parse", "--short=12", name).decode().strip()
