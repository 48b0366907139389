"""Inject faults into workers at random: threads, processes, and actors where Ray is installed.

    python tests/tools/faults.py --count 200 --seed 1

Each case is a pipeline of stand-ins of which one fails in some way at some moment; see
`tests/support/faults.py`. With retries every output must arrive, in order and once; else one line
must name the stage and the sample. Nothing may hang or be left behind. A case that a seed has
drawn is played again by `--seed SEED --count 1 --workers KIND`.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.faults import HOWS, LIMIT_S, Case, check, drawn

PATIENCE_S = 120.0
"""A case that takes longer hangs."""

SOON_S = 5.0
"""Time of a case besides the limit of a stage."""


@contextmanager
def clusters(kinds: Sequence[str]) -> Iterator[None]:
    """One Ray cluster for all cases that need one."""
    if "ray" not in kinds:
        yield
        return
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def played(case: Case) -> tuple[str, float]:
    """Faults of a case, and the time it took to send the samples."""
    found: list[str] = []
    took: list[float] = []
    thread = threading.Thread(target=lambda: found.append(guarded(case, took)), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return found[0] if found else "hangs", took[-1] - took[0] if took else 0.0


def guarded(case: Case, took: list[float]) -> str:
    """`check`, and what it does not expect."""
    try:
        return check(case, took)
    except BaseException as error:  # a bug of the runner is what is looked for
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Play the cases; 1 if any is wrong."""
    parser = argparse.ArgumentParser(description="Inject faults into workers.")
    parser.add_argument("--count", type=int, default=200, help="cases of all kinds of workers")
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    parser.add_argument("--workers", choices=HOWS, nargs="*", help="kinds (default: all there are)")
    args = parser.parse_args()
    there = [k for k in HOWS if k != "ray" or importlib.util.find_spec("ray") is not None]
    kinds = args.workers or there
    tally: Counter[tuple[str, str]] = Counter()
    wrong, late = 0, 0
    with clusters(kinds):
        for i in range(args.count):
            case = drawn(args.seed + i // len(kinds), kinds[i % len(kinds)])
            fault, took_s = played(case)
            allowed_s = SOON_S + (LIMIT_S[case.workers] if case.how in ("hang", "stop") else 0.0)
            late += took_s > allowed_s
            tally[case.workers, case.how] += 1
            if fault or took_s > allowed_s:
                print(f"{case}: {fault or 'late'} ({took_s:.1f} s)", flush=True)
            wrong += bool(fault)
    for (workers, how), count in sorted(tally.items()):
        print(f"{workers:8} {how:10} {count}")
    print(f"{args.count} faults, {wrong} wrong, {late} took more than {SOON_S:g} s and the limit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
