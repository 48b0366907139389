"""Compare what plans predict with what runs measure, over many models.

    python tests/tools/truth.py [--modes MODE ...] [--keep DIR] [--until plan] [MODEL ...]
    python tests/tools/truth.py --choices [--keep DIR] [MODEL ...]

The models are the small samples of dnnp.samples and the `*.onnx` of the folder shared/models next
to the checkout, where it is there; of these, those that can be run. Each goes through import,
coarsen, profile, partition for two devices, and then twice through dnnp-run, one thread a stage.
The table has, for each model and mode of pricing,

    predicted   largest load of the plan
    measured    largest load of a run, the mean of both; where one was disturbed more than
                `DISTURBED`, of the other one
    error       predicted / measured - 1
    noise       difference of the largest loads of both runs, over the mean of them
    taken       share of the time that other processes took from the less disturbed run
    pipeline    samples a second; whole: of the model in one session on as many cores; replicas: of
                two replicas

Below it stand the median and the largest of |error|, of all models and of those that are held out
(marked `*`): no fit may see them. `--modes here` prices by rates that this machine measures in 20
seconds, on no model at all. `--modes fitted` prices by a device file that fit_device makes
from measured streams of the models that are not held out. `--modes calibrated` fits factors to the
runs of the models that are not held out, priced as `--base` says, and prices all models with them.

With --choices the plans of the first mode run with `dnnp-run --choose`, and then, as a judge that
had no part in that, with `--compare`: the table says what was chosen, and its rate in the second
run over that of the fastest there, which has a noise as well: it is the median of three rounds.

A folder given by --keep holds the streams; what is there is not made again. So a machine can be
shared: `--until plan` does all that needs no quiet machine but for measuring, and a later call runs
the plans, if need be one model at a time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dnnp.samples.build import CATALOG, write

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
SHARED = ROOT.parent / "shared" / "models"
K = "2"

MODES = ("analytic", "here", "fitted", "measured", "calibrated")

HELD_OUT = ("mobilenet-v2", "gpt", "gnmt8", "resnet50_narrow", "moe")
"""Models that no fit may see, a third of all: two convolution networks, one of them depthwise, a
transformer, a recurrent network and a mixture of experts. Chosen before anything was measured."""

DISTURBED = 0.03
"""Share of the time, taken by other processes, from which on a run counts for less."""

NEAR = 0.95
"""Share of the fastest rate from which on a choice counts as right."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One model, priced in one way; times in seconds, rates in samples a second."""

    model: str
    mode: str
    held_out: bool
    predicted_s: float
    measured_s: float
    error: float
    noise: float
    taken: float
    pipeline_per_s: float
    whole_per_s: float
    replicas_per_s: float


@dataclass(frozen=True)
class Verdict:
    """The choice for one model, and the measurement of it by an independent run."""

    model: str
    chosen: str
    clear: bool
    """True if the choice was said to be clear."""
    rates_per_s: dict[str, float]
    """Mode -> samples a second, in the independent run."""

    @property
    def share(self) -> float:
        """Rate of what was chosen over that of the fastest."""
        return self.rates_per_s[self.chosen] / max(self.rates_per_s.values())


class FailedError(Exception):
    """A command ended with another status than 0."""


class Bench:
    """Makes streams in a folder, each once."""

    def __init__(self, folder: Path, base: str, pricing: Sequence[str]) -> None:
        self.folder, self.base, self.pricing = folder, base, list(pricing)

    def command(self, result: Path, name: str, *arguments: str | Path) -> Path:
        """Write the stream that a command makes to a file, unless it is there."""
        if not result.exists():
            words = [sys.executable, SCRIPTS / f"dnnp-{name}", "-q", *arguments, "-o", result]
            done = subprocess.run(words, capture_output=True, timeout=900)
            if done.returncode:
                lines = done.stderr.decode(errors="replace").strip().splitlines()
                raise FailedError(f"dnnp-{name} ends with {done.returncode}: {lines[-1:]}")
        return result

    def file(self, model: Path, what: str) -> Path:
        """The place of a model's stream."""
        return self.folder / f"{name_of(model)}.{what}.dnnp"

    def plan(self, model: Path, mode: str, fitted: Sequence[Path]) -> Path:
        """Import, coarsen, profile and partition; the calibrated mode learns from `fitted`."""
        read = self.command(self.file(model, "imported"), "import", model)
        groups = self.command(self.file(model, "groups"), "coarsen", read)
        base = self.base if mode == "calibrated" else mode
        words = []
        if base == "measured":
            # Not a common cache: the machine may have become faster or slower in between.
            words = ["--mode", "measure", "--cache", str(self.folder / f"cache.{mode}")]
        if mode == "here":
            words = ["--device", "cpu-here", "--cache", str(self.folder / "cache.here")]
        if mode == "fitted":
            words = ["--device", str(self.device(fitted))]
        if mode == "calibrated":
            for other in fitted:
                for run in ("run1", "run2"):
                    words += ["--from-run", str(self.file(other, f"{base}.{run}"))]
        pricing = [*words, *self.pricing]
        priced = self.command(self.file(model, f"{mode}.priced"), "profile", *pricing, groups)
        return self.command(self.file(model, f"{mode}.plan"), "partition", "-k", K, priced)

    def device(self, fitted: Sequence[Path]) -> Path:
        """A device file for this machine, from measured streams of models."""
        path = self.folder / "fitted.json"
        if not path.exists():
            words = [sys.executable, "-m", "dnnp.samples.fit_device", "-q", "-o", str(path)]
            for model in fitted:
                words += ["--stream", str(self.file(model, "measured.priced"))]
            subprocess.run(words, check=True, capture_output=True, timeout=900)
        return path

    def runs(self, model: Path, mode: str, plan: Path) -> list[list[Record]]:
        """Run the plan twice, the second time compared with other ways; the run records."""
        first = self.command(self.file(model, f"{mode}.run1"), "run", plan)
        second = self.command(self.file(model, f"{mode}.run2"), "run", "--compare", plan)
        return [records_of(first, "run"), records_of(second, "run")]

    def choice(self, model: Path, mode: str, plan: Path) -> Verdict:
        """Choose a way to run the plan, and time all of them once more."""
        chosen = self.command(self.file(model, f"{mode}.choose"), "run", "--choose", plan)
        judge = self.command(self.file(model, f"{mode}.judge"), "run", "--compare", plan)
        (choice,) = (r["choice"] for r in records_of(chosen, "run") if "choice" in r)
        rates = {r["mode"]: r["throughput_per_s"] for r in records_of(judge, "run")}
        return Verdict(name_of(model), choice["mode"], choice["clear"], rates)


def records_of(path: Path, kind: str) -> list[Record]:
    """Records of a kind in a stream."""
    records = map(json.loads, path.read_text().splitlines())
    return [record for record in records if record["type"] == kind]


def name_of(model: Path) -> str:
    """Name of a model in the table: its file, without the size that all samples have."""
    return model.stem.removesuffix("-small")


def row_of(model: Path, mode: str, runs: Sequence[Sequence[Record]]) -> Row:
    """One line of the table."""
    pipelines = [run[0] for run in runs]
    loads = [max(stage["measured_s"] for stage in p["stages"]) for p in pipelines]
    taken = [p.get("taken", 0.0) for p in pipelines]
    limit = max(DISTURBED, min(taken))
    measured = statistics.mean(
        load for load, share in zip(loads, taken, strict=True) if share <= limit
    )
    predicted = max(stage["predicted_s"] for stage in pipelines[0]["stages"])
    rates = {record["mode"]: record["throughput_per_s"] for record in runs[-1]}
    return Row(
        name_of(model),
        mode,
        name_of(model) in HELD_OUT,
        predicted,
        measured,
        predicted / measured - 1,
        (max(loads) - min(loads)) / statistics.mean(loads),
        min(taken),
        rates["pipeline"],
        rates["whole"],
        rates["replicas"],
    )


def is_runnable(model: Path) -> bool:
    """True if the model's weights are in its file; those of the giants were never written."""
    import onnx

    proto = onnx.load(model, load_external_data=False)
    return all(
        (model.parent / entry.value).exists()
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    )


def models_of(wanted: Sequence[str], folder: Path) -> list[Path]:
    """The models at hand; samples are written to the folder.

    Raises
    ------
    FailedError
        There is no model of a name.
    """
    samples = [name for name, entry in CATALOG.items() if entry.size == "small"]
    files = sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else []
    paths = {name_of(folder / f"{name}.onnx"): folder / f"{name}.onnx" for name in samples}
    paths |= {name_of(path): path for path in files}
    paths |= {name_of(Path(x)): Path(x).resolve() for x in wanted if x.endswith(".onnx")}
    chosen = []
    for name in [name_of(Path(x)) for x in wanted] or paths:
        if name not in paths:
            raise FailedError(f"no model {name}; there are {', '.join(paths)}")
        path = paths[name]
        if not path.exists():
            write(path.stem, folder)
        if is_runnable(path):
            chosen.append(path)
    return chosen


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The table as Markdown, and what it amounts to."""
    numbers = ("predicted ms", "measured ms", "error", "noise", "taken")
    yield " | ".join(("| model", "mode", *numbers, "pipeline/s", "whole/s", "replicas/s |"))
    yield "|---|---" + 8 * "|---:" + "|"
    for r in rows:
        cells = [f"{r.model}{' *' * r.held_out}", r.mode]
        cells += [f"{x * 1e3:.3f}" for x in (r.predicted_s, r.measured_s)]
        cells += [f"{r.error:+.1%}", f"{r.noise:.1%}", f"{r.taken:.1%}"]
        cells += [f"{x:.1f}" for x in (r.pipeline_per_s, r.whole_per_s, r.replicas_per_s)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| mode | models | median of \\|error\\| | worst | median noise | worst noise |"
    yield "|---|---|---:|---:|---:|---:|"
    for mode in MODES:
        for which in ("all", "held out *"):
            chosen = [r for r in rows if r.mode == mode and (which == "all" or r.held_out)]
            if chosen:
                errors, noise = [abs(r.error) for r in chosen], [r.noise for r in chosen]
                yield (
                    f"| {mode} | {which} ({len(chosen)}) | {statistics.median(errors):.1%} "
                    f"| {max(errors):.1%} | {statistics.median(noise):.1%} | {max(noise):.1%} |"
                )


def choices_table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The choice for each model, as Markdown, and the share of right ones."""
    yield "| model | chosen | clear | pipeline/s | whole/s | replicas/s | of the fastest |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for v in verdicts:
        rates = [f"{v.rates_per_s[mode]:.1f}" for mode in ("pipeline", "whole", "replicas")]
        cells = [v.model, v.chosen, "yes" if v.clear else "no", *rates, f"{v.share:.1%}"]
        yield f"| {' | '.join(cells)} |"
    near = sum(v.share >= NEAR for v in verdicts)
    yield f"\nThe fastest or within {1 - NEAR:.0%} of it: {near} of {len(verdicts)}."


def parsed() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description="Compare predictions with runs.")
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names of models, or ONNX files (default: all)"
    )
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["analytic", "measured"], help="ways to price"
    )
    parser.add_argument(
        "--base",
        choices=("analytic", "measured"),
        default="measured",
        help="what calibrated costs start from",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--held-out", action="store_true", help="only models that are held out")
    which.add_argument("--fitted", action="store_true", help="only models that are not")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of streams to reuse")
    parser.add_argument(
        "--pricing", default="", metavar="WORDS", help="more options of dnnp-profile"
    )
    parser.add_argument(
        "--until", choices=("plan", "run"), default="run", help="plan: run nothing, say nothing"
    )
    parser.add_argument(
        "--choices", action="store_true", help="judge dnnp-run --choose, not predictions"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    return parser.parse_args()


def work(args: argparse.Namespace, folder: Path) -> tuple[list[Any], list[str]]:
    """Make the rows, or with --choices the verdicts; also the faults."""
    bench = Bench(folder, args.base, shlex.split(args.pricing))
    samples = folder / "models"
    models = models_of(args.models, samples)
    if args.held_out or args.fitted:
        models = [m for m in models if (name_of(m) in HELD_OUT) == args.held_out]
    fitted: list[Path] = []
    rows, faults = [], []
    if {"calibrated", "fitted"} & {*args.modes}:
        fitted = [m for m in models_of([], samples) if name_of(m) not in HELD_OUT]
        for model in fitted:
            if "fitted" in args.modes:
                bench.plan(model, "measured", ())
            if "calibrated" in args.modes:
                bench.runs(model, args.base, bench.plan(model, args.base, ()))
    for mode in args.modes[:1] if args.choices else args.modes:
        for model in models:
            print(f"{name_of(model)}, {mode} ...", file=sys.stderr, flush=True)
            try:
                plan = bench.plan(model, mode, fitted)
                if args.choices:
                    rows.append(bench.choice(model, mode, plan))
                elif args.until == "run":
                    rows.append(row_of(model, mode, bench.runs(model, mode, plan)))
            except (FailedError, subprocess.TimeoutExpired) as error:
                faults.append(f"{name_of(model)}, {mode}: {error}")
    return rows, faults


def main() -> int:
    """Print the table; 1 if a command failed."""
    args = parsed()
    try:
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            rows, faults = work(args, args.keep.resolve())
        else:
            with tempfile.TemporaryDirectory() as scratch:
                rows, faults = work(args, Path(scratch))
    except FailedError as error:
        print(f"truth.py: {error}", file=sys.stderr)
        return 1
    if args.until == "run":
        print(*(choices_table if args.choices else table)(rows), sep="\n")
    for fault in faults:
        print(fault, file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
