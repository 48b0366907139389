"""Run the commands in README.md, the tutorial and the cookbook, and put what they print below them.

    python tests/support/documents.py [FILE...]   update these documents

Blocks marked `sh` run, in order, in one empty folder a document. A block marked `text` that follows
one is what it prints, on standard output and error together. `text about` says that numbers in it
differ from machine to machine, so that the test compares the words alone; `text varies` that more
does, so that it compares nothing. What needs another machine, or a program that few have, is marked
`console`, and does not run.

A picture in samples/pictures that a document shows is the file of that name that its scripts leave.

In the place of programs that need a cluster stand those of the folder `stand_ins`.

Measurements tell most on a quiet machine, and with kernels that are compiled already: run it twice
after an installation.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "samples" / "tutorial.md", ROOT / "samples" / "cookbook.md")
STAND_INS = Path(__file__).resolve().parent / "stand_ins"
"""Programs that do on this machine what those of the same name do on a cluster."""

PROGRAMS = Path(sysconfig.get_path("scripts"))
"""The folder where the commands are installed."""

_BLOCK = re.compile(r"^```(sh|text)( about| varies)?\n(.*?)^```$", re.M | re.S)
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")
_PICTURE = re.compile(r"^!\[.*\]\((\S+)\)$", re.M)
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


def words(printed: str) -> list[str]:
    """Lines without their numbers, in any order: several commands of a pipe print at once."""
    return sorted(" ".join(_NUMBER.sub("#", line).split()) for line in printed.splitlines())


def run(script: str, folder: Path, programs: Path, shorter: Mapping[str, str]) -> str:
    """Output of a script, which must succeed. Strings of `shorter` take the place of others."""
    for long, short in shorter.items():
        script = script.replace(long, short)
    # To append: commands of a pipe that write at once must not write over each other.
    with tempfile.TemporaryFile("a+") as printed:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{STAND_INS}:{programs}:{os.environ['PATH']}",
                "LC_ALL": "C.UTF-8",
                "CLONE": str(ROOT),
            },
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            status = process.wait(1800)
        finally:
            with suppress(ProcessLookupError):  # what it has left in the background
                os.killpg(process.pid, signal.SIGKILL)
        printed.seek(0)
        text = printed.read()
    if status != 0:
        raise RuntimeError(f"status {status} from\n{script}\n{text}")
    return text


def free_ports(text: str) -> dict[str, str]:
    """Every address of this machine in a text -> one with a free port."""
    with_ports = {}
    listeners = []
    for port in sorted({*_ADDRESS.findall(text)}):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        with_ports[f"127.0.0.1:{port}"] = f"127.0.0.1:{listener.getsockname()[1]}"
    for listener in listeners:
        listener.close()
    return with_ports


def rendered(
    text: str,
    folder: Path,
    programs: Path,
    *,
    all_blocks: bool,
    shorter: Mapping[str, str] | None = None,
) -> str:
    """`text` with the output below each script.

    Blocks that differ from machine to machine stay, unless `all_blocks` or, in those marked
    `about`, the words are others. The scripts find the commands in the folder `programs`.
    """
    printed = ""
    taken = {**free_ports(text), **(shorter or {})}

    def block(match: re.Match[str]) -> str:
        nonlocal printed
        language, kind, body = match.groups()
        if language == "sh":
            printed = run(body, folder, programs, taken)
            return match.group()
        same = kind == " varies" or (kind == " about" and words(body) == words(printed))
        if same and not all_blocks:
            return match.group()
        return f"```text{kind or ''}\n{printed}```"

    return _BLOCK.sub(block, text)


def pictures(document: Path, text: str) -> list[Path]:
    """Files that the text of a document shows."""
    return [document.parent / name for name in _PICTURE.findall(text)]


def main() -> None:
    """Update the documents, or those that are named."""
    for document in [Path(name) for name in sys.argv[1:]] or DOCUMENTS:
        with tempfile.TemporaryDirectory() as folder:
            text = document.read_text()
            document.write_text(rendered(text, Path(folder), PROGRAMS, all_blocks=True))
            for picture in pictures(document, text):
                picture.parent.mkdir(exist_ok=True)
                shutil.copyfile(Path(folder) / picture.name, picture)


if __name__ == "__main__":
    main()
