#!/usr/bin/env bash
# Libraries: kaminpar 3.7.3 (KaMinPar's own Python package), numpy 2.4.6 (Python 3.11, one thread).
# Expected:  compute_partition(graph, limits): limits of the weight of each block; the same numbers give the same partition in any type of
#            number, and limits that nothing can keep are an error.
# Happens:   integers are weights, Python floats and numpy float64 are *factors of the whole weight*, and numpy float32 is a weight cut to a whole
#            number, as it is no Python float. Four limits [600, 600, 600, 300] of a graph that weighs 2034: integers and float32 keep them; the
#            same as float64 is 600 times the whole, so that most blocks stay empty. Factors [0.3, 0.3, 0.3, 0.2]: as a list they are kept; as a
#            float32 array they are limits of 0, and all nodes come into one block. [1, 1, 1, 1] and [1.0, 1.0, 1.0, 1.0]: four even blocks,
#            and one block. Limits that sum to less than the weight are passed over. No case is an error or a warning.
# Matters:   limits computed with numpy (memory of devices over a scale, most often float64) balance nothing, without a word. Name the argument
#            (max_block_weights=, max_block_weight_factors=), which refuses or takes the type as meant, and add the blocks up again.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: kaminpar==3.7.3 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import kaminpar
import numpy as np

draw = np.random.default_rng(0)
NODES = 200
edges = {(i, (i + 1) % NODES): int(draw.integers(1, 9)) for i in range(NODES)}
for _ in range(300):
    a, b = sorted(int(v) for v in draw.choice(NODES, 2, replace=False))
    if (b - a) % NODES not in (1, NODES - 1):
        edges[a, b] = 1
weights = [int(w) for w in draw.integers(1, 20, NODES)]
near = [[] for _ in range(NODES)]
for (a, b), cost in edges.items():
    near[a].append((b, cost))
    near[b].append((a, cost))
with open("graph.metis", "w") as file:
    file.write(f"{NODES} {len(edges)} 11\n")
    for weight, ends in zip(weights, near):
        file.write(" ".join(map(str, [weight, *(x for end, cost in ends for x in (end + 1, cost))])) + "\n")
graph = kaminpar.load_graph("graph.metis", kaminpar.GraphFileFormat.METIS)
whole = sum(weights)
print("weight of all nodes", whole)


def blocks(*limits, **named):
    kaminpar.reseed(0)
    part = kaminpar.KaMinPar(1, kaminpar.default_context()).compute_partition(graph, *limits, **named)
    found = np.bincount(part, weights=weights, minlength=4).astype(int)
    print(*limits or named.items(), "->", found, "cut", kaminpar.edge_cut(graph, part))
    return found


LIMITS, FACTORS = [600, 600, 600, 300], [0.3, 0.3, 0.3, 0.2]
kept = np.array(LIMITS)
assert (blocks(LIMITS) <= kept).all()
assert (blocks(np.array(LIMITS, np.float32)) <= kept).all()
for wide in (np.array(LIMITS, np.float64), [float(x) for x in LIMITS]):
    assert (blocks(wide) == 0).sum() >= 2
    assert blocks(wide).max() > 2 * kept.max()

assert (blocks(FACTORS) <= np.array(FACTORS) * whole * 1.01).all()
assert blocks(np.array(FACTORS, np.float32)).max() == whole
assert (blocks(max_block_weight_factors=np.array(FACTORS, np.float32)) <= np.array(FACTORS) * whole * 1.01).all()

assert blocks([1, 1, 1, 1]).max() < whole * 0.3
assert blocks([1.0, 1.0, 1.0, 1.0]).max() == whole
assert blocks([300, 300, 300, 300]).min() > 300
try:
    blocks(max_block_weights=[float(x) for x in LIMITS])
except TypeError:
    print("max_block_weights= refuses floats")
else:
    raise AssertionError("floats were taken as weights")
print("as stated")
PY
