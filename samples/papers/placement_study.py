"""What is asked for the tables of the 2020 paper, of which workloads, and how answers are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dnnp.samples.papers.placement_runs import Found, Job, Runs, Workloads, published_order
from dnnp.samples.papers.placement_values import TABLE_1

PRICED = ("--memory-mode", "ignore")
"""Splits that know no memory are priced, not refused."""

OVER, FAR_OVER = "†", "‡"
"""Marks of splits that exceed the memory of a device, and by more than a factor of three."""

MORE = "*"
"""Marks splits on more devices than there are."""

FAR = 3.0


class Method(NamedTuple):
    """A column of table 1."""

    title: str
    field: str
    """The printed value, in `Row`, and in `Gains`."""
    options: tuple[str, ...] = ()
    exact: bool = False
    """Whether the paper's value follows from the workload alone."""


METHODS = (
    Method("DP", "dp", (), True),
    Method("IP", "ip", ("--method", "ip", "--validity", "convex")),
    Method("any split", "free", ("--method", "anneal")),
    Method("DPL", "linearised", ("--method", "slice"), True),
    Method("expert", "expert", PRICED, True),
    Method("local search", "local_search", ("--method", "local-search", *PRICED)),
    Method("PipeDream", "pipedream", ("--method", "pipedream"), True),
    Method("Scotch", "scotch", ("--method", "scotch", *PRICED)),
)


class Study:
    """What is asked for, and what was found."""

    def __init__(self, files: Workloads, runs: Runs, limit: float, program_s: float) -> None:
        self.files, self.runs = files, runs
        self.limit, self.program_s = limit, program_s
        """Seconds for the latency of a workload, and for an integer program."""
        self.only: frozenset[str] = frozenset()

    def named(self, kind: str, names: Sequence[str]) -> dict[str, Path]:
        """The files of some workloads, as far as they are there and asked for."""
        wanted = [name for name in names if not self.only or name in self.only]
        found = {name: self.files.graph(kind, name) for name in wanted}
        return {name: path for name, path in found.items() if path is not None}

    def throughput(self) -> dict[str, dict[str, Found]]:
        """Workload -> title of the method -> answer, for table 1."""
        jobs: dict[tuple[str, str], Job] = {}
        for name, path in self.named("throughput", list(TABLE_1)).items():
            self.runs.stream(path)  # refuses what is no workload
            for method in METHODS:
                options = self.options(method, name, path)
                if options is not None:
                    jobs[name, method.title] = Job(path, options)
        self.runs.all(jobs.values())
        found: dict[str, dict[str, Found]] = {}
        for (name, title), job in jobs.items():
            found.setdefault(name, {})[title] = self.runs.known[job]
        return found

    def options(self, method: Method, workload: str, path: Path) -> tuple[str, ...] | None:
        """Options of dnnp-partition for a method; None: it has no such row."""
        if method.title == "PipeDream" and workload.startswith("op_"):
            return None  # of layers alone: a chain of operators is but a few items
        if method.title == "DPL":
            order = published_order(path, by_color=True)
            sequence = self.runs.write(f"{workload}.json", order)
            return (*method.options, "--sequence", str(sequence))
        if method.title == "IP":
            return (*method.options, "--time-limit", f"{self.program_s:g}")
        if method.title == "expert":
            split = self.files.expert(workload)
            return None if split is None else ("--eval", str(split), *method.options)
        return method.options


def marked(found: Found | None, digits: int = 2) -> str:
    """A value, with its mark."""
    if found is None:
        return "-"
    if found.value is None:
        return found.reason
    mark = "" if found.excess <= 1 + 1e-9 else OVER if found.excess <= FAR else FAR_OVER
    return f"{found.value:.{digits}f}{mark}"


def beside(ours: str, printed: object) -> str:
    """A value of ours, and the printed one."""
    if printed is None or printed == "-":
        return ours
    return f"{ours} ({printed:.2f})" if isinstance(printed, float) else f"{ours} ({printed})"
