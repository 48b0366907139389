"""Compare the search for parallel plans with all plans of small random graphs.

    python tests/tools/agree_hybrid.py --count 1000 --seed 0

All ways to cut a graph of up to five items into stages, all tensor-parallel degrees and replicas of
each, and all choices of what runs its forward pass again; then as many graphs of up to four items,
where some stages may be shared by all devices, with all ways to choose them. The search finds the
best value and proves it, or proves that nothing fits. Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.hybrid import disagreement


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Compare parallel plans with brute force.")
    parser.add_argument("--count", type=int, default=1000, help="graphs (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    args = parser.parse_args()
    wrong = 0
    for shared in (False, True):
        for seed in range(args.seed, args.seed + args.count):
            reason = disagreement(seed, 4 if shared else 5, shared=shared)
            if reason:
                wrong += 1
                print("shared stages" if shared else "stages", reason)
    print(f"{2 * args.count} graphs, {wrong} disagreements")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
