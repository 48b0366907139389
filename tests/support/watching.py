"""A command in this process, whose clock and terminal are made up: what its bar shows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

from dnnp.cmds.dnnp import command
from dnnp.cmds.shell.context import CLEAR, Context
from support.run import Result

SHARE = re.compile(r"[^%]* (\d+) %, \d+ ")
NUMBER = re.compile(r"(?P<what>value|period|makespan|length|bound) (?P<number>[-+.\de]+)$")


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


class Hands:
    """A clock that stands still until it is turned."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Clock:
    """Every look at it is so many seconds after the one before."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


class Watched(Context):
    """A command that Ctrl-C reaches when its bar was drawn so many times."""

    drawn, most = 0, 10**9

    def progress(self, doing: str, limit_s: float | None = None):  # type: ignore[no-untyped-def]
        bar = super().progress(doing, limit_s)
        update = bar.update

        def counted(standing) -> None:  # type: ignore[no-untyped-def]
            update(standing)
            self.drawn += 1
            self.interrupted |= self.drawn > self.most

        bar.update = counted  # type: ignore[method-assign]
        return bar


def watched(
    name: str,
    *arguments: str | Path,
    stdin: bytes = b"",
    console: io.StringIO | None = None,
    step_s: float = 1.0,
    most: int = 10**9,
) -> Result:
    """Run `dnnp-NAME`; all that its console was sent is in `err`.

    `step_s`: seconds between two looks at the clock. `most`: updates before Ctrl-C.
    """
    out, err = io.BytesIO(), Terminal() if console is None else console
    words = [str(a) for a in arguments]
    context = Watched(f"dnnp-{name}", words, io.BytesIO(stdin), out, err)
    context.clock, context.most = Clock(step_s), most
    status = command(name).invoke(words, context)
    return Result(status, out.getvalue(), err.getvalue())


def frames(err: str, tool: str) -> list[str]:
    """Texts of a bar, one after the other; without the name of the command."""
    parts = [line.rpartition(CLEAR)[2] for part in err.split(CLEAR) for line in part.splitlines()]
    drawn = [part for part in parts if re.search(r", \d+ (of at most \S+ )?s(, |$)", part)]
    return [part.removeprefix(f"{tool}: ") for part in drawn]


def shares(shown: Iterable[str]) -> list[int]:
    """The percentages in it."""
    found = [SHARE.match(frame) for frame in shown]
    return [int(match[1]) for match in found if match is not None]


def numbers(shown: Iterable[str]) -> dict[str, list[float]]:
    """Meaning of each word, one after the other."""
    found: dict[str, list[float]] = {}
    for frame in shown:
        for part in frame.split(", "):
            match = NUMBER.match(part)
            if match is not None:
                found.setdefault(match["what"], []).append(float(match["number"]))
    return found
