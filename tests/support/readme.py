"""Run the commands in README.md and put what they print below them.

    python tests/support/readme.py   update README.md

Blocks marked `sh` run, in order, in one empty folder. A block marked `text` that follows one
is what it prints, on standard output and error together. `text varies` says that times or
measurements are in it, so that the test does not compare it.

Measurements tell most on a quiet machine, and with kernels that are compiled already: run it twice
after an installation.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
_BLOCK = re.compile(r"^```(sh|text)( varies)?\n(.*?)^```$", re.M | re.S)


PROGRAMS = Path(sysconfig.get_path("scripts"))
"""Where the commands are installed."""


def run(script: str, folder: Path, programs: Path) -> str:
    """What a script prints; it must succeed."""
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        text=True,
        timeout=1800,
        env={**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"status {done.returncode} from\n{script}\n{done.stdout}")
    return done.stdout


def rendered(text: str, folder: Path, programs: Path, *, all_blocks: bool) -> str:
    """`text` with the output below each script; blocks that vary only with `all_blocks`.

    The scripts find the commands in the folder `programs`.
    """
    printed = ""

    def block(match: re.Match[str]) -> str:
        nonlocal printed
        language, varies, body = match.groups()
        if language == "sh":
            printed = run(body, folder, programs)
            return match.group()
        if varies and not all_blocks:
            return match.group()
        return f"```text{varies or ''}\n{printed}```"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Update README.md."""
    with tempfile.TemporaryDirectory() as folder:
        README.write_text(rendered(README.read_text(), Path(folder), PROGRAMS, all_blocks=True))


if __name__ == "__main__":
    main()
