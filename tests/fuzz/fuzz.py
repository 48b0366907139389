"""Seeded mutations through every reader, in process.

    python tests/fuzz/fuzz.py --count 100000

The outcome of every case must be success or a one-line error with exit status 3 or 4: no
other exception, no hang. Each case depends on its target, its number and `--seed` only;
`--target T --case I` repeats one.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz.targets import TARGETS, Target

from dnnp.core.model.errors import DnnpError

CASE_LIMIT_S = 10.0
"""Processor time of one case whose kernels are compiled; a busy machine takes no more of it."""
COMPILED_LIMIT_S = 120.0
"""Processor time of one case with the kernels that it compiles."""
HANG_LIMIT_S = 1800.0
"""Time of one case by the clock: what waits for ever takes no processor."""
CASE_LIMIT_BYTES = 2 << 30
"""Address space that may be taken on top of what the process holds at the start."""


class HangError(Exception):
    """One case took longer than its limit."""


@dataclass(frozen=True)
class Failure:
    """A case with a forbidden outcome."""

    target: str
    case: int
    outcome: str
    data: bytes


def input_of(target: Target, case: int, seed: int) -> bytes:
    """The mutated input of one case."""
    random_ = random.Random(f"{seed}/{target.name}/{case}")
    data = random_.choice(target.seeds())
    for _ in range(random_.choice((1, 1, 1, 2))):
        mutation = random_.choice(target.mutations)
        try:
            data = mutation(data, random_)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # an earlier mutation left nothing that this one applies to
    return data


def outcome_of(target: Target, data: bytes, folder: Path) -> tuple[str, str]:
    """(`ok`, `refused` or `FAILURE`, detail) of one input."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.run(data, folder)
    except DnnpError as error:
        text = str(error)
        if error.exit_status not in target.statuses:
            return "FAILURE", f"status {error.exit_status}: {text}"
        if "\n" in text or not text or len(text) > 20_000:
            return "FAILURE", f"not one line: {text[:2000]!r}"
        return "refused", text
    except Exception as error:  # any other exception is what this program looks for
        import traceback

        where = "".join(traceback.format_exception(error)[-4:])
        return "FAILURE", f"{type(error).__name__}: {str(error)[:500]}\n{where}"
    return "ok", ""


@contextmanager
def limited() -> Iterator[None]:
    """Raise HangError in what takes too long."""

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGPROF:
            raise HangError(f"more than {COMPILED_LIMIT_S} s of processor time")
        raise HangError(f"longer than {HANG_LIMIT_S} s")

    numbers = (signal.SIGPROF, signal.SIGALRM)
    before = [signal.signal(number, stop) for number in numbers]
    signal.setitimer(signal.ITIMER_PROF, COMPILED_LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, HANG_LIMIT_S)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def outcome_in_time(target: Target, data: bytes, folder: Path) -> tuple[str, str]:
    """`outcome_of` within the limits; a case that is slow may have compiled kernels: once more."""
    spent = 0.0
    for _ in range(2):
        began = time.process_time()
        with limited():
            outcome = outcome_of(target, data, folder)
        spent = time.process_time() - began
        if outcome[0] == "FAILURE" or spent <= CASE_LIMIT_S:
            return outcome
    return "FAILURE", f"{spent:.1f} s of processor time"


def shares(count: int) -> list[tuple[Target, int]]:
    """Number of cases of each target out of `count`; the rest goes to the first."""
    total = sum(target.share for target in TARGETS)
    counts = [max(1, count * target.share // total) for target in TARGETS]
    counts[0] += max(0, count - sum(counts))
    return list(zip(TARGETS, counts, strict=True))


def run(
    plan: list[tuple[Target, range]], seed: int, folder: Path
) -> tuple[list[Failure], dict[str, Counter[str]]]:
    """Run cases; returns the failures and the outcomes of each target."""

    failures: list[Failure] = []
    counts: dict[str, Counter[str]] = {}
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + CASE_LIMIT_BYTES, hard))
    try:
        for target, cases in plan:
            counts[target.name] = Counter()
            for case in cases:
                data = input_of(target, case, seed)
                kind, detail = outcome_in_time(target, data, folder)
                counts[target.name][kind] += 1
                if kind == "FAILURE":
                    failures.append(Failure(target.name, case, detail, data))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return failures, counts


def main() -> int:
    """Fuzz and print a table; 1 if anything failed."""
    parser = argparse.ArgumentParser(description="seeded mutations through every reader")
    parser.add_argument("--count", type=int, default=5000, help="number of cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=[t.name for t in TARGETS], help="only this reader")
    parser.add_argument("--case", type=int, help="repeat one case of --target and show its input")
    parser.add_argument("--show", type=int, default=20, help="failures to print")
    args = parser.parse_args()
    plan = [(target, range(count)) for target, count in shares(args.count)]
    if args.target:
        (target,) = [t for t in TARGETS if t.name == args.target]
        plan = [(target, range(args.count))]
        if args.case is not None:
            plan = [(target, range(args.case, args.case + 1))]
            print(input_of(target, args.case, args.seed))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        failures, counts = run(plan, args.seed, Path(folder))
    for name, counter in counts.items():
        print(f"{name:16} {dict(sorted(counter.items()))}")
    for failure in failures[: args.show]:
        print(f"\n--target {failure.target} --case {failure.case}: {failure.outcome}")
    print(f"{len(failures)} failures, {time.perf_counter() - started:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
