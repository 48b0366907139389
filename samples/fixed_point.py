"""Plan, run, learn, and plan again until the plan repeats: `python -m dnnp.samples.fixed_point`.

    dnnp-profile | dnnp-partition | dnnp-run | dnnp-profile --from-run | dnnp-partition ...

Every round prices the model by all runs so far, splits it, and runs the split. The last one is that
whose plan has already run: it is a fixed point if it ran in the round before, else rounds go in a
circle. The result is the stream of the run with the least bottleneck.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import dnnp
from dnnp import Graph
from dnnp.samples.arguments import count, status_of

Split = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Round:
    """One plan that ran."""

    graph: Graph
    split: Split
    """Nodes of each stage, sorted."""
    predicted_s: float
    """Largest load of the plan."""
    measured_s: float
    """Largest load of the run."""

    @property
    def error(self) -> float:
        """Error of the prediction relative to the measurement; below 0: too low."""
        return self.predicted_s / self.measured_s - 1


def fixed_point(
    plan: Callable[[Sequence[Path]], Graph],
    run: Callable[[Graph], Graph],
    folder: Path,
    most: int = 8,
) -> tuple[list[Round], bool]:
    """Plan and run until a plan repeats, or `most` times.

    Parameters
    ----------
    plan
        Makes a plan, by what the runs in some files say.
    run
        Runs it; adds a record of the run.
    folder
        Where streams with runs are written.

    Returns
    -------
    tuple
        The rounds, and whether the last two have the same plan.
    """
    rounds: list[Round] = []
    files: list[Path] = []
    while len(rounds) < most:
        planned = plan(files)
        split = tuple(tuple(sorted(stage.nodes)) for stage in planned.stages)
        ran = run(planned)
        stages = ran.runs[0]["stages"]
        loads = [max(stage[name] for stage in stages) for name in ("predicted_s", "measured_s")]
        seen = [earlier.split for earlier in rounds]
        rounds.append(Round(ran, split, *loads))
        if split in seen:
            return rounds, split == seen[-1]
        files.append(folder / f"{len(rounds)}.dnnp")
        ran.save(files[-1])
    return rounds, False


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the rounds with a model; exit status as of the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.fixed_point",
        description="Plan, run, learn from the runs, and plan again until the plan repeats.",
    )
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    parser.add_argument("-k", type=int, default=2, metavar="N", help="devices (default: 2)")
    parser.add_argument(
        "--mode", choices=("analytic", "measure"), default="analytic", help="what costs start from"
    )
    parser.add_argument(
        "--rounds", type=count, default=8, metavar="N", help="runs at most (default: 8)"
    )
    parser.add_argument("-n", type=int, metavar="N", help="samples of a run (default: a second)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the best run's stream there")
    args = parser.parse_args(arguments)
    return status_of(parser.prog, lambda: _search(args))


def _search(args: argparse.Namespace) -> None:
    """Do the rounds, save the best run, and show all."""
    groups = dnnp.coarsen(dnnp.load(args.model))

    def plan(files: Sequence[Path]) -> Graph:
        runs = [str(path) for path in files]
        return dnnp.split(dnnp.profile(groups, mode=args.mode, from_run=runs), k=args.k)

    def run(planned: Graph) -> Graph:
        return dnnp.run(planned, samples=args.n)

    with tempfile.TemporaryDirectory() as folder:
        rounds, fixed = fixed_point(plan, run, Path(folder), args.rounds)
    best = min(rounds, key=lambda r: r.measured_s)
    if args.output:
        best.graph.save(args.output)
    print("round  predicted   measured   error")
    for number, r in enumerate(rounds, 1):
        mark = "  best" if r is best else ""
        times = f"{_ms(r.predicted_s)} {_ms(r.measured_s)}"
        print(f"{number:>5} {times} {r.error:>+7.1%}{mark}")
    print("the plan repeats" if fixed else "no fixed point")


def _ms(seconds: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(seconds * 1e3))) if seconds > 0 else 0
    return f"{seconds * 1e3:>7.{digits}f} ms"


if __name__ == "__main__":
    sys.exit(main())
