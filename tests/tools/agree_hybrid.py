"""Compare the search for parallel plans with all plans of small random graphs.

    python tests/tools/agree_hybrid.py --count 1000 --seed 0

Problems: all ways to cut a graph of up to five items into stages, all tensor-parallel degrees and
replicas of each, and all choices of what runs its forward pass again; then as many graphs of up to
four items, where some stages may be shared by all devices, with all ways to choose them.

Graphs: the same of up to four nodes, with colours, groups, clusters, bytes held, parameters, a
backward pass in either direction, all ways to combine loads and to synchronise weights, where
whatever the checker has nothing against is a plan, at the checker's price; and it accepts the plan
that is found.

Graphs with one to three rules by name, which the plans keep that count; a message that devices
cannot have the numbers of pins is counted, and no disagreement.

The search finds the best value and proves it, or proves that nothing fits. Prints what became of
the plans; exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.hybrid import disagreement
from support.hybrid_plans import plan_disagreement
from support.ruled_plans import ruled_disagreement


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Compare parallel plans with brute force.")
    parser.add_argument("--count", type=int, default=1000, help="graphs (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    args = parser.parse_args()
    wrong, counts = 0, Counter[str]()
    for shared in (False, True):
        for seed in range(args.seed, args.seed + args.count):
            kind = "shared stages" if shared else "stages"
            status, reason = plan_disagreement(seed, shared=shared)
            counts[f"{kind}: {status}"] += 1
            status, broken = ruled_disagreement(seed, shared=shared)
            counts[f"{kind}, rules: {status}"] += 1
            for why in (disagreement(seed, 4 if shared else 5, shared=shared), reason, broken):
                if why:
                    wrong += 1
                    print(kind, why, flush=True)
    for name, count in sorted(counts.items()):
        print(f"{name:28} {count}")
    print(f"{6 * args.count} graphs, {wrong} disagreements")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
