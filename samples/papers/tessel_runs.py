"""Runs of dnnp-schedule for the tables of `dnnp.samples.papers.tessel`, and what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

REFUSED = (2, 4, 5)
"""Exit statuses: the recipe does not fit the shape, nothing fits into memory, nothing in time."""

NONE = "x"
"""Shown where there is no schedule, or no proven one in time."""

MANY = 96
"""Micro-batches in which a schedule without a repetend has become steady."""

LEAST_S = 1e-3
"""Times are told in milliseconds."""

MOST_IN_REPETEND = 8
"""Micro-batches in a repetend that are tried."""


class Answer(NamedTuple):
    """Result of a run of dnnp-schedule."""

    record: dict[str, Any] | None
    """The schedule; None: there is none."""
    seconds: float
    """Of the search; of the whole command where its messages do not say when that began."""
    blocks: Sequence[dict[str, Any]] = ()
    """Start and end of each block of each micro-batch."""

    @property
    def repetend(self) -> dict[str, Any] | None:
        """The repeated part; None: none, as where the limit ended a search without any."""
        return None if self.record is None else self.record.get("repetend")


Run = Callable[[Sequence[str]], Answer]
"""Runs dnnp-schedule with arguments."""


def schedule(words: Sequence[str]) -> Answer:
    """Run the command; SystemExit if it fails other than by finding nothing."""
    done = subprocess.run(
        ["dnnp-schedule", "-v", "--timings", *words], stdin=subprocess.DEVNULL, capture_output=True
    )
    said = done.stderr.decode()
    if done.returncode in REFUSED:
        return Answer(None, 0.0)
    if done.returncode:
        raise SystemExit(f"dnnp-schedule {' '.join(words)}: {said.strip()}")
    return answer(done.stdout, said)


def answer(stream: bytes, said: str) -> Answer:
    """Read the result from a stream with a schedule and the messages of the command."""
    header, record, *others = (json.loads(line) for line in stream.splitlines())
    blocks = [other for other in others if other["type"] == "block"]
    times = re.findall(r"(?:searching|found the schedule) after ([0-9.]+) s", said)
    if len(times) == 2:
        return Answer(record, float(times[1]) - float(times[0]), blocks)
    return Answer(record, header["provenance"][-1]["elapsed_s"], blocks)


def load(record: dict[str, Any]) -> float:
    """Time that a micro-batch keeps a device busy, mean over the devices that have blocks."""
    busy: dict[int, float] = {}
    for block in record["passes"]:
        for home in block["homes"]:
            for unit in home:
                if not record["units"][unit].get("link"):
                    busy[unit] = busy.get(unit, 0.0) + block["time_s"] / len(block["homes"])
    return sum(busy.values()) / len(busy)


def repeating(found: Answer) -> float | None:
    """Bubble rate of the repetend; None: there is none."""
    repetend = found.repetend
    if found.record is None or repetend is None:
        return None
    return max(1 - load(found.record) * repetend["unroll"] / repetend["period_s"], 0.0)


def steady(few: Answer, many: Answer) -> float | None:
    """Bubble rate of a recipe, from its schedules of two numbers of micro-batches."""
    if few.record is None or many.record is None:
        return None
    more = many.record["micro_batches"] - few.record["micro_batches"]
    period = (many.record["makespan_s"] - few.record["makespan_s"]) / more
    return max(1 - load(many.record) / period, 0.0)


def percent(rate: float | None) -> str:
    """A bubble rate as the paper prints it."""
    return NONE if rate is None else f"{100 * rate:.3g}%"


class Runs:
    """Runs the command, several at a time where nothing is timed."""

    def __init__(
        self, run: Run, devices: int, seconds: float, full: bool = False, folder: Path = Path()
    ) -> None:
        self.run, self.devices, self.seconds, self.full = run, devices, seconds, full
        self.folder = folder
        self.known: dict[tuple[str, ...], Answer] = {}

    def words(self, name: str, method: str, *more: str) -> list[str]:
        """Arguments for a shape and a method."""
        fixed = ["--shape", name, "--devices", str(self.devices), "--method", method]
        return [*fixed, "--time-limit", f"{self.seconds:g}", *more]

    def all(self, jobs: Iterable[Sequence[str]]) -> list[Answer]:
        """Answers in the order of the jobs; none is asked for twice."""
        keys = [tuple(job) for job in jobs]
        new = [key for key in keys if key not in self.known]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.known.update(zip(new, pool.map(self.run, new), strict=True))
        return [self.known[key] for key in keys]

    def repetends(self, name: str, method: str, options: Iterable[Sequence[str]]) -> list[Answer]:
        """Repetends of a shape; warm-up and cool-down of a single micro-batch take no time."""
        return self.all(self.words(name, method, "-n", "1", *more) for more in options)

    def by_count(self, name: str) -> list[Answer]:
        """Tessel's repetends of 1, 2, ... micro-batches."""
        counts = range(1, MOST_IN_REPETEND + 1)
        return self.repetends(name, "tessel", (("--max-micro-batches", str(n)) for n in counts))

    def recipe(self, name: str, method: str) -> float | None:
        """Bubble rate of a method that is no search."""
        counts = (MANY, 2 * MANY)
        few, many = self.all(self.words(name, method, "-n", str(n)) for n in counts)
        return steady(few, many)
