"""End commands by signals at random moments, and look at what is left.

    python tests/tools/signals.py --count 100

Each command is started over and over in a folder of its own and sent one signal. Then there must
be no process of it, no file that it had not finished, no traceback, and no hang; and at the end it
must work again in the same place. What Python itself prints when Ctrl-C comes before it has got to
the command is not counted.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.onnx_models import models

from support.run import dnnp, executable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
PATIENCE_S = 300.0
"""Most that a command may take to end after a signal, and its children to follow."""
MARK = "DNNP_SIGNALS_MARK"
"""Variable of the environment by which processes are found again."""

COMMANDS = {
    "import": ("import", "--shapes", "run", "model.onnx", "-o", "out"),
    "profile": ("profile", "--mode", "measure", "--no-cache", "--repeats", "300", "coarse.dnnp",
                "-o", "out"),
    "coarsen": ("coarsen", "model.dnnp", "-o", "out"),
    "partition": ("partition", "-k", "3", "--method", "ip", "--time-limit", "2", "random.dnnp",
                  "-o", "out"),
    "bound": ("bound", "--time-limit", "2", "randomplan.dnnp", "-o", "out"),
    "schedule": ("schedule", "-n", "8", "plan.dnnp", "-o", "out"),
    "export": ("export", "plan.dnnp", "--to", "stages", "-o", "stages"),
    "run": ("run", "-n", "3000", "--verify", "plan.dnnp", "-o", "out"),
    "check": ("check", "plan.dnnp"),
}  # fmt: skip
OUTPUTS = {"out", "stages"}


@dataclass(frozen=True)
class Ending:
    """The end of a command that was sent a signal."""

    status: int | None
    """None: it did not end."""
    err: str
    processes: int
    """Processes of it that lived on."""
    leftovers: tuple[str, ...]
    """Files that it had not finished."""

    @property
    def early(self) -> bool:
        """True if Ctrl-C came while the interpreter started, before any module of a command: it is
        Python that prints then, and chooses the status."""
        ours = re.findall(r'File ".*/(?:cmds|core|formats)/(?!__init__\.py)', self.err)
        return self.err.endswith("KeyboardInterrupt\n") and not ours

    def faults(self, number: int) -> Iterator[str]:
        """Faults of it."""
        allowed = {0, 130, -number} if number == signal.SIGINT else {0, -number}
        if self.status is None:
            yield "does not end"
        elif self.status not in allowed and not self.early:
            yield f"status {self.status}"
        if ("Traceback" in self.err or "Fatal Python error" in self.err) and not self.early:
            yield "traceback"
        if self.processes:
            yield "child"
        if self.leftovers:
            yield "file"


def prepare(folder: Path) -> None:
    """Write the inputs of all commands."""

    def make(target: str, name: str, *arguments: str) -> None:
        done = dnnp(name, "-q", *arguments, "-o", folder / target)
        if done.status:
            raise SystemExit(done.err)

    (folder / "tmp").mkdir()
    (folder / "model.onnx").write_bytes(models()["branch"].SerializeToString())
    make("model.dnnp", "import", str(folder / "model.onnx"))
    make("coarse.dnnp", "coarsen", str(folder / "model.dnnp"))
    make("plan.dnnp", "partition", "-k", "2", str(folder / "model.dnnp"))
    make("random.dnnp", "import", "--synthetic", "--nodes", "40")
    make("randomplan.dnnp", "partition", "-k", "3", str(folder / "random.dnnp"))


def start(folder: Path, mark: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own."""
    name, *arguments = command
    with open(folder / "err", "wb") as err:
        return subprocess.Popen(
            [sys.executable, executable(name), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder / "tmp"), MARK: mark},
        )


def strike(
    folder: Path, command: Sequence[str], number: int, after: float, known: frozenset[str]
) -> Ending:
    """Start a command, send it a signal after some seconds, and look at what is left."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    process = start(folder, mark, command)
    time.sleep(after)
    process.send_signal(number)
    status: int | None
    try:
        status = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        status = None
    deadline = time.monotonic() + (PATIENCE_S if status is not None else 0.0)
    left = marked(mark)
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = marked(mark)
    for child in left:
        os.kill(child, signal.SIGKILL)
    process.wait()
    err = (folder / "err").read_text(errors="replace")
    found = tuple(sorted(files(folder) - known, reverse=True))
    for name in found:
        path = folder / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    return Ending(status, err, len(left), found)


def marked(mark: str) -> list[int]:
    """Processes that have a mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has gone, or is not ours
                continue
    return found


def files(folder: Path) -> set[str]:
    """Everything in a folder, what commands have finished left out; inner things first."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {p for p in paths if p.split("/")[0] not in OUTPUTS or "/.dnnp-" in p} - {"err"}


def try_command(
    folder: Path,
    name: str,
    count: int,
    numbers: Sequence[int],
    rng: random.Random,
    within: float = math.inf,
) -> Counter[str]:
    """Strike one command `count` times by each signal; what went wrong, and how often."""
    command = COMMANDS[name]
    began = time.monotonic()
    if start(folder, "", command).wait() != 0:
        raise SystemExit((folder / "err").read_text())
    length = time.monotonic() - began
    known = frozenset(files(folder))
    wrong: Counter[str] = Counter()
    for number in numbers:
        for _ in range(count):
            ending = strike(folder, command, number, rng.uniform(0.0, min(length, within)), known)
            for fault in ending.faults(number):
                wrong[f"{signal.Signals(number).name}: {fault}"] += 1
                print(f"{name} {signal.Signals(number).name}: {fault} {ending}", file=sys.stderr)
    if start(folder, "", command).wait() != 0:
        wrong["does not work again"] += 1
    return wrong


def main() -> int:
    """Try the commands; 1 if anything was left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10, help="signals of each kind a command")
    parser.add_argument(
        "--within",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="send signals at most so long after the start (default: as long as the command takes)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--signals",
        nargs="+",
        type=lambda name: signal.Signals[f"SIG{name}"],
        default=SIGNALS,
        metavar="NAME",
        help="INT, TERM, HUP, KILL (default: all)",
    )
    parser.add_argument("--commands", nargs="+", choices=tuple(COMMANDS), default=list(COMMANDS))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        for name in args.commands:
            wrong = try_command(folder, name, args.count, args.signals, rng, args.within)
            total += wrong
            sent = args.count * len(args.signals)
            print(f"{name}: {sent} signals, {dict(wrong) or 'nothing left'}", flush=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
