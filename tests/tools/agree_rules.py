"""Compare searches that heed rules by name with brute force on random graphs.

    python tests/tools/agree_rules.py --count 1000 --seed 0 [--methods exact,auto,slice,ip]

Every problem has one to three rules, and some have devices with limits of their own. `exact`,
`auto` and `ip` find the optimum that brute force finds among the splits that keep the rules, or
nothing if there is none; no bound is above it; `slice` keeps the rules too; the independent checker
accepts every plan, from the graph without rules. Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support.ruled import compared, ruled_case


def main() -> int:
    """Compare, and say how often what came out; 1 on any disagreement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=7)
    parser.add_argument("--methods", default="exact,auto,slice")
    options = parser.parse_args()
    seen, wrong = Counter[tuple[str, str]](), 0
    for seed in range(options.seed, options.seed + options.count):
        case = ruled_case(seed, options.nodes)
        for method, came, fault in compared(case, options.methods.split(",")):
            seen[method, came] += 1
            if fault:
                wrong += 1
                print(f"seed {seed}, {method}: {fault}; {case.problem.rules}", file=sys.stderr)
    for (method, came), count in sorted(seen.items()):
        print(f"{method:6} {came:10} {count}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
