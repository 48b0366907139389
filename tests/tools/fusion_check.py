"""Check that splits at the borders of groups lose no fusion of ONNX Runtime.

    python tests/tools/fusion_check.py [-k N ... | --borders] [--rules RULES ...] [MODEL.onnx ...]

Without models: the small samples, and the example models where they are at hand. Each model is
coarsened, priced and split; whole model and stages are optimised at ORT_ENABLE_EXTENDED with
layout passes off, and the operators that run are compared. Differences in operators that only
move data or make constants are listed; others are failures, and end the program with 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dnnp.samples.build import select, write
from support.fusion import heavy, lost_at_borders, shown, stage_operators
from support.run import dnnp

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"


def check(path: Path, rules: str, k: int) -> bool:
    """Check one split and print a line; whether no fusion was lost."""
    options = ("--rules", rules) if rules else ()
    data = dnnp("import", "-q", path).out
    for name, *arguments in (
        ("coarsen", "-q", *options),
        ("profile", "-q"),
        ("partition", "-q", "-k", str(k), "--effort", "0.1"),
    ):
        result = dnnp(name, *arguments, stdin=data)
        if result.status:
            print(f"{path.stem:20} {rules or 'default':8} k={k}  FAILED: {result.err.strip()}")
            return False
        data = result.out
    whole, apart, stages = stage_operators(data)
    lost, more = whole - apart, apart - whole
    good = not heavy(lost) and not heavy(more)
    print(
        f"{path.stem:20} {rules or 'default':8} k={k} {stages} stages  "
        f"{'ok' if good else 'LOST'}  lost: {shown(lost.items())}; more: {shown(more.items())}",
        flush=True,
    )
    return good


def check_borders(path: Path, rules: str) -> bool:
    """Cut behind every group and print a line; whether no cut loses a fusion."""
    data = dnnp("import", "-q", path).out
    result = dnnp("coarsen", "-q", "--rules", rules or "ort-cpu", stdin=data)
    count, lost = lost_at_borders(result.out)
    print(f"{path.stem:20} {rules or 'ort-cpu':8} {count} borders, {len(lost)} lose a fusion")
    for cut, (less, more) in list(lost.items())[:3]:
        print(f"  behind group {cut}: lost: {shown(less.items())}; more: {shown(more.items())}")
    sys.stdout.flush()
    return not lost


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description="Check that lose no fusion.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("-k", nargs="+", type=int, default=[2, 4], metavar="N")
    parser.add_argument("--borders", action="store_true", help="cut behind every group instead")
    parser.add_argument("--rules", nargs="+", default=["ort", ""], metavar="RULES")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = args.models or [write(name, Path(folder)) for name in select((), None)]
        if not args.models and SHARED.is_dir():
            paths += sorted(SHARED.glob("*.onnx"))
        if args.borders:
            good = [check_borders(path, rules) for path in paths for rules in args.rules]
        else:
            good = [check(path, rules, k) for path in paths for rules in args.rules for k in args.k]
    print(f"{sum(good)} of {len(good)} lose no fusion")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
