"""Compare searches that heed rules by name with brute force on random graphs.

    python tests/tools/agree_rules.py --count 1000 --seed 0 [--methods exact,auto,slice,ip,anneal]
    python tests/tools/agree_rules.py --validity free --methods auto,anneal
    python tests/tools/agree_rules.py --latency --methods auto,anneal

Every problem has one to three rules, and some have devices with limits of their own. `exact`,
`auto` and `ip` find the optimum that brute force finds among the splits that keep the rules, or
nothing if there is none; no bound is above it; other methods keep the rules too; the independent
checker accepts every plan, from the graph without rules. With --latency, splits into blocks for the
latency of one sample: `auto` finds the optimum. Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.ruled import compared, compared_latency, ruled_case, ruled_latency


def main() -> int:
    """Compare, and say how often what came out; 1 on any disagreement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--methods", default="exact,auto,slice")
    parser.add_argument("--validity", default="ordered")
    parser.add_argument("--latency", action="store_true")
    options = parser.parse_args()
    seen, wrong, methods = Counter[tuple[str, str]](), 0, options.methods.split(",")
    for seed in range(options.seed, options.seed + options.count):
        if options.latency:
            blocks = ruled_latency(seed, min(options.nodes, 6))
            rules, results = blocks.rules, compared_latency(blocks, methods)
        else:
            case = ruled_case(seed, options.nodes)
            rules, results = case.problem.rules, compared(case, methods, options.validity)
        for method, came, fault in results:
            seen[method, came] += 1
            if fault:
                wrong += 1
                print(f"seed {seed}, {method}: {fault}; {rules}", file=sys.stderr)
    for (method, came), count in sorted(seen.items()):
        print(f"{method:9} {came:12} {count}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
