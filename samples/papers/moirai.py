"""Tables IV and V and figure 10 of Moirai (Zhang et al. 2023), on the giant samples.

    python -m dnnp.samples.papers.moirai [--full] [--models A,B] [--time-limit S] [PART ...]

Parts: table-4 (operators before and after fusion, by the rules of several backends), table-5
(seconds that a method takes to place) and figure-10 (latency of what it places); all by default.
Models are those of the paper by size and shape, times of operators analytic, and latencies those of
the cost model: nothing runs. The paper's numbers stand beside, in brackets. The row of Moirai is
its integer program (`ip`); `auto` is not in the paper. What was found is kept in a folder, so that
a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from dnnp.samples import build
from dnnp.samples.arguments import seconds, status_of
from dnnp.samples.papers.tables import Table, show


class Printed(NamedTuple):
    """Values of a model in tables IV and V."""

    operators: int
    coarsened: int
    original_s: tuple[float, ...]
    """Placement time by the methods in the order of `METHODS`, on the original graph."""
    coarsened_s: tuple[float, ...]
    """The same on the coarsened one."""


METHODS = {"placeto": "Placeto", "m-sct": "m-SCT", "getf": "GETF", "ip": "Moirai"}
"""Those of the paper."""

OURS = "auto"

PATIENCE = {"m-sct": 5.0, "getf": 5.0}
"""Factor on the limit for a method that is no search: a linear program ends, and
another method takes its place if it does not."""

PAPER = {
    name: Printed(**row)
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_text()).items()
}
"""Tables IV and V, by sample; AlphaFold2 is an Evoformer here."""

MOST_SLOWER = {
    ("moirai-inter", "operators"): (2.98, 1.77, 1.33),
    ("moirai-inter", "groups"): (3.15, 1.9, 1.25),
    ("moirai-intra", "operators"): (4.12, 1.7, 1.35),
    ("moirai-intra", "groups"): (4.28, 1.74, 1.34),
}
"""Largest ratio of the others' latency to that of Moirai (IV.B): figure 10 in words."""

SMALLEST = ("gpt3-330m", "swin-1.8b", "evoformer-87m")
RULES = ("moirai", "ort-cpu", "ort-cuda", "cudnn", "tensorrt")
TESTBEDS = {
    "moirai-inter": ("rtx2080ti", "t4", "p4", "rtx3060ti"),
    "moirai-intra": ("v100", "p100"),
}
PARTS = ("table-4", "table-5", "figure-10")

REFUSED = {4: "no fit", 5: "limit"}
"""Exit statuses of dnnp-partition that are answers."""


class Answer(NamedTuple):
    """Result of a run of a command."""

    status: int
    out: bytes
    err: str
    cpu_s: float = 0.0
    """Seconds of the processor that it took, with its solvers."""


Run = Callable[[Sequence[str], bytes], Answer]
"""Runs a command of dnnp with arguments on a stream."""


class Placed(NamedTuple):
    """Placement of one graph by one method on one testbed."""

    seconds: float
    plan: dict[str, Any] | None
    """The plan's method, value, bound and status; None: there is none."""
    why: str = ""
    """The reason why there is none."""
    cpu_s: float = 0.0
    """Seconds of the processor: what others do on the machine changes these little."""


MISSING = Placed(0.0, None)


class Place(NamedTuple):
    """A cell of table V."""

    model: str
    testbed: str
    of: str
    """`operators` or `groups`."""
    method: str


def command(words: Sequence[str], data: bytes) -> Answer:
    """Run a command, without threads of its own: several run at a time."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    spool = tempfile.TemporaryFile
    with spool() as given, spool() as out, spool() as err:
        given.write(data)
        given.seek(0)
        child = subprocess.Popen(words, stdin=given, stdout=out, stderr=err, env=environment)
        # Not the times of all children: several run at a time.
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        used = usage.ru_utime + usage.ru_stime
        return Answer(child.returncode, out.read(), err.read().decode(), used)


class Study:
    """Runs the commands for the tables, and keeps what they say.

    Parameters
    ----------
    run
        Runs a command.
    folder
        Where models, streams and answers are kept.
    limit
        Seconds that one method may take, but for those of `PATIENCE`.
    rules
        Those by which graphs are coarsened before they are placed.
    """

    def __init__(self, run: Run, folder: Path, limit: float, rules: str) -> None:
        self.run, self.folder, self.limit, self.rules = run, folder, limit, rules
        folder.mkdir(parents=True, exist_ok=True)

    def stream(self, name: str, words: Sequence[str], data: bytes = b"") -> bytes:
        """Output of a command, which runs once. SystemExit if it fails."""
        path = self.folder / f"{name}.dnnp"
        if not path.exists():
            done = self.run([*words, "-q"], data)
            if done.status:
                raise SystemExit(f"{' '.join(words)}: {done.err.strip()}")
            new = path.with_suffix(f".{os.getpid()}")
            new.write_bytes(done.out)
            new.replace(path)
        return path.read_bytes()

    def imported(self, model: str) -> bytes:
        """The stream of a sample, whose file is written once."""
        path = self.folder / f"{model}.onnx"
        if not path.exists():
            build.write(model, self.folder, seed=0)
        return self.stream(model, ["dnnp-import", str(path)])

    def groups(self, model: str, rules: str) -> bytes:
        """The stream with groups by the rules of a backend."""
        words = ["dnnp-coarsen", "--rules", rules]
        return self.stream(f"{model}.{rules}", words, self.imported(model))

    def priced(self, place: Place) -> bytes:
        """The stream with times on the devices of a testbed."""
        coarse = place.of == "groups"
        data = self.groups(place.model, self.rules) if coarse else self.imported(place.model)
        devices = [word for name in TESTBEDS[place.testbed] for word in ("--device", name)]
        name = f"{place.model}.{self.rules if coarse else 'operators'}.{place.testbed}"
        return self.stream(name, ["dnnp-profile", *devices], data)

    def placed(self, place: Place) -> Placed:
        """Result of a method within the limit, which runs once."""
        limit = self.limit * PATIENCE.get(place.method, 1.0)
        path = self.folder / f"{self.rules}.{limit:g}" / ".".join((*place, "json"))
        if path.exists():
            return Placed(*json.loads(path.read_text()))
        data = self.priced(place)
        words = ["dnnp-partition", "--objective", "latency", "--execution", "operators"]
        words += ["--devices", place.testbed, "--method", place.method]
        begin = time.perf_counter()
        done = self.run([*words, "--time-limit", f"{limit:g}", "-q"], data)
        took = time.perf_counter() - begin
        if done.status and done.status not in REFUSED:
            raise SystemExit(f"{' '.join(words)} ({place.model}): {done.err.strip()}")
        found = Placed(took, None, REFUSED.get(done.status, ""), done.cpu_s)
        if not done.status:
            found = found._replace(plan=_plan_of(done.out))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found))
        return found

    def all(self, places: Iterable[Place]) -> dict[Place, Placed]:
        """Answers for all places, as many at a time as there are cores."""
        todo = list(places)
        # Streams first: methods share them, and none is to be written twice at a time.
        distinct = {place._replace(method=""): place for place in todo}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for model in dict.fromkeys(place.model for place in todo):
                self.groups(model, self.rules)
            list(pool.map(self.priced, distinct.values()))
            return dict(zip(todo, pool.map(self.placed, todo), strict=True))


def _plan_of(stream: bytes) -> dict[str, Any]:
    """Fields of a plan record for the tables."""
    line = next(x for x in stream.split(b"\n") if x.startswith(b'{"type":"plan"'))
    record = json.loads(line)
    return {key: record[key] for key in ("method", "value", "bound", "status")}


Rows = list[tuple[str, ...]]


def count_of(stream: bytes, record: str) -> int:
    """Records of a type in a stream."""
    return stream.count(f'{{"type":"{record}"'.encode())


def table_4(study: Study, models: Sequence[str]) -> Rows:
    """Operators of the graphs, and groups by the rules of each backend."""
    rows: Rows = [("model", "operators", *RULES, "paper's rules")]
    for model in models:
        paper = PAPER[model]
        nodes = count_of(study.imported(model), "node")
        cells = [f"{nodes} ({paper.operators})"]
        for rules in RULES:
            groups = count_of(study.groups(model, rules), "group")
            cells.append(f"{groups} {100 * (1 - groups / nodes):.0f}%")
        fused = 100 * (1 - paper.coarsened / paper.operators)
        rows.append((model, *cells, f"({paper.coarsened}) {fused:.0f}%"))
    return rows


def shown(place: Place, found: Placed, text: str) -> str:
    """A cell with its marks: `*` for a program that its limit ended, `!` for what ran instead."""
    if found.plan is None:
        return found.why
    if found.plan["method"] != place.method:
        return f"{text}!"
    proven = found.plan["status"] == "optimal"
    return text if place.method != "ip" or proven else f"{text}*"


def table_5(found: dict[Place, Placed], methods: Sequence[str]) -> Rows:
    """Seconds to a placement, of the clock and of the processor."""
    rows: Rows = [("model", "testbed", "of", *methods)]
    for model, testbed, of in _lines(found):
        paper = PAPER[model].original_s if of == "operators" else PAPER[model].coarsened_s
        printed = dict(zip(METHODS, paper, strict=True))
        cells = []
        for method in methods:
            place = Place(model, testbed, of, method)
            beside = f" ({printed[method]:.0f})" if method in printed else ""
            took = f"{found[place].seconds:.1f}/{found[place].cpu_s:.1f}"
            cells.append(shown(place, found[place], took) + beside)
        rows.append((model, testbed, of, *cells))
    return rows


def figure_10(found: dict[Place, Placed], methods: Sequence[str]) -> Rows:
    """Latencies in milliseconds, beside them how many times that of Moirai's program."""
    rows: Rows = [("model", "testbed", "of", *methods, "bound")]
    for line in _lines(found):
        of_line = [Place(*line, method) for method in methods]
        moirai = found[Place(*line, "ip")].plan if "ip" in methods else None
        cells = []
        for place in of_line:
            plan = found[place].plan
            value = 0.0 if plan is None else plan["value"]
            ratio = f" {value / moirai['value']:.2f}x" if moirai and moirai["value"] else ""
            cells.append(shown(place, found[place], f"{1e3 * value:.4g}{ratio}"))
        plans = [found[place].plan for place in of_line]
        bound = max((plan["bound"] for plan in plans if plan), default=0.0)
        rows.append((*line, *cells, f"{1e3 * bound:.4g}"))
    return rows


def most_slower(found: dict[Place, Placed]) -> Rows:
    """The paper's summary of figure 10: the largest ratio to Moirai over all models."""
    rows: Rows = [("testbed", "of", *list(METHODS.values())[:-1])]
    for (testbed, of), paper in MOST_SLOWER.items():
        cells = []
        for method, printed in zip(METHODS, paper, strict=False):
            ratios = [
                plan["value"] / moirai["value"]
                for model in dict.fromkeys(place.model for place in found)
                if (plan := found.get(Place(model, testbed, of, method), MISSING).plan)
                and (moirai := found.get(Place(model, testbed, of, "ip"), MISSING).plan)
            ]
            cells.append(f"{max(ratios):.2f}x ({printed}x)" if ratios else f"- ({printed}x)")
        rows.append((testbed, of, *cells))
    return rows


def _lines(found: dict[Place, Placed]) -> Iterator[tuple[str, str, str]]:
    """Rows of table V and figure 10."""
    yield from dict.fromkeys(tuple(place)[:3] for place in found)  # type: ignore[misc]


def _show(title: str, rows: Rows, name: str, folder: Path | None) -> None:
    show(Table(name, title, rows[0], rows[1:]), folder, "")


def tables(study: Study, options: argparse.Namespace) -> None:
    """Print what is asked for."""
    parts, models = options.parts or PARTS, options.models
    if "table-4" in parts:
        title = "Table IV: operators, and groups by the fusion rules of backends"
        _show(title, table_4(study, models), "table-4", options.csv)
    if not {"table-5", "figure-10"} & set(parts):
        return
    methods = options.methods
    places = itertools.product(models, TESTBEDS, ("operators", "groups"), methods)
    found = study.all(itertools.starmap(Place, places))
    if "table-5" in parts:
        title = f"Table V: seconds to a placement (clock/processor), limit {options.time_limit:g}"
        title += "".join(f", {m} {k:g} times" for m, k in PATIENCE.items() if m in methods)
        _show(title, table_5(found, methods), "table-5", options.csv)
    if "figure-10" in parts:
        title = "Figure 10: latency in ms by the cost model, and how many times Moirai's"
        _show(title, figure_10(found, methods), "figure-10", options.csv)
        title = "The largest of these ratios, over the models above"
        _show(title, most_slower(found), "figure-10-most", options.csv)
    print(
        "(in brackets: printed in the paper, measured on devices) * the integer program was ended"
    )
    print("by the limit: the best placement known by then; ! another method ran in its place")


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of names joined by commas."""
    allowed = list(known)

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                known_names = ", ".join(allowed)
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {known_names}")
        return names

    return parse


def main(run: Run, arguments: Sequence[str]) -> int:
    """Print the tables; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.papers.moirai", description=__doc__
    )
    parser.add_argument("--full", action="store_true", help="all models, 120 seconds a method")
    parser.add_argument("--models", type=_names(PAPER), metavar="A,B")
    methods = [*METHODS, OURS]
    parser.add_argument("--methods", type=_names(methods), metavar="A,B", default=methods)
    parser.add_argument("--rules", choices=RULES, default="ort-cuda", help="of the groups")
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="of one method")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", default=Path("build/moirai"))
    parser.add_argument("--csv", type=Path, metavar="FOLDER")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"'{part}' is not one of {', '.join(PARTS)}")
    options.models = options.models or list(PAPER if options.full else SMALLEST)
    options.time_limit = options.time_limit or (120.0 if options.full else 20.0)

    def work() -> None:
        tables(Study(run, options.keep, options.time_limit, options.rules), options)

    return status_of(parser.prog, work)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(command, sys.argv[1:]))
