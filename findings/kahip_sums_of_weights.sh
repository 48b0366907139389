#!/usr/bin/env bash
# Libraries: kahip 3.25 (KaHIP's own Python package; Python 3.11).
# Expected:  kaffpa takes weights of vertices and edges or refuses them: a weight of 2**31 is a RuntimeError. Weights in another unit are the same
#            problem: equal blocks, and a cut that is as many times larger.
# Happens:   each weight is checked, their sums are not, and these have 32 bits too. 40 operators of 64 to 576 MiB on four devices: in MiB each
#            block has about a quarter; in bytes one gets 97 %, one 3 %, two get nothing, in each of the modes FAST, ECO and STRONG.
#            Weights of edges of 8 to 72 MiB in bytes: the cut that is returned is negative in each mode. Of 128 to 1152 MiB: STRONG says
#            536870912 where its own blocks cut 34896609280. The search takes these numbers as well ("improvement < 0" is
#            printed at times); no error, and the same seed repeats it.
# Matters:   memory and traffic come in bytes, and a model of 2 GB is small: a partition made of them is one device with everything, or a
#            cut that costs less than nothing. Give units in which the sum of all weights (edges twice) is below 2**31, and recompute both.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: kahip==3.25 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import random

import kahip

COUNT, BLOCKS, SLACK, MIB = 40, 4, 0.03, 2**20
draw = random.Random(0)
edges = {(i, (i + 1) % COUNT): 5 for i in range(COUNT - 1)} | {(0, COUNT - 1): 5}
for _ in range(60):
    edges[tuple(sorted(draw.sample(range(COUNT), 2)))] = draw.randint(1, 9)
sizes = [draw.randint(1, 9) for _ in range(COUNT)]


def partition(size=1, traffic=1, mode=kahip.STRONG):
    """The cut that is returned, the cut of the blocks, their shares of all vertices' weight."""
    nearby = [[] for _ in range(COUNT)]
    for (one, other), weight in edges.items():
        nearby[one].append((other, weight * traffic))
        nearby[other].append((one, weight * traffic))
    starts = [sum(map(len, nearby[:i])) for i in range(COUNT + 1)]
    targets, weights = ([pair[part] for row in nearby for pair in row] for part in (0, 1))
    calls = [kahip.kaffpa([s * size for s in sizes], starts, weights, targets, BLOCKS, SLACK, True, 0, mode) for _ in range(2)]
    assert calls[0] == calls[1]
    claimed, blocks = calls[0]
    cut = traffic * sum(weight for (one, other), weight in edges.items() if blocks[one] != blocks[other])
    shares = [sum(s for s, block in zip(sizes, blocks, strict=True) if block == part) / sum(sizes) for part in range(BLOCKS)]
    print(f"{size:>9} {traffic:>9}: cut {claimed} (recomputed {cut}), blocks", *(f"{share:.1%}" for share in shares))
    return claimed, cut, shares


modes = (kahip.FAST, kahip.ECO, kahip.STRONG)
limit = (1 + SLACK) / BLOCKS
for mode in modes:
    for size in (1, 64):
        claimed, cut, shares = partition(size, mode=mode)
        assert claimed == cut and max(shares) <= limit
    claimed, cut, shares = partition(64 * MIB, mode=mode)
    assert claimed == cut and max(shares) > 0.9 and shares.count(0) == 2

for mode in modes:
    claimed, cut, _ = partition(traffic=8, mode=mode)
    assert claimed == cut
    claimed, cut, _ = partition(traffic=8 * MIB, mode=mode)
    assert claimed < 0 < cut and (claimed - cut) % 2**31 == 0
claimed, cut, _ = partition(traffic=128 * MIB)
assert (claimed, cut) == (536870912, 34896609280)
for size, traffic in ((2**31, 1), (1, 2**31)):
    try:
        partition(size, traffic)
    except RuntimeError as error:
        assert "Unable to cast" in str(error), error
    else:
        raise AssertionError((size, traffic))
print("as stated")
PY
