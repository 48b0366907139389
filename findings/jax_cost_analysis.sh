#!/usr/bin/env bash
# Libraries: jax 0.10.2, jaxlib 0.10.2 (Python 3.11, CPU).
# Expected:  cost_analysis() counts what a program does, bodies of loops once: flops that are no less than 0, a complex product as more than a
#            real one, bytes by what is touched. lowered.cost_analysis(), which spares the compilation, gives about the same.
# Happens:   each call of foreign code counts as -1, flops and bytes: three top_k are -3 flops as a whole, a product and a top_k one flop less
#            than the product; a triangular solve is -1. Complex numbers count as real: 2 n**3 for a product. cumsum of n numbers is
#            n * (n - 1) flops lowered and less than 20 n compiled. 8 rows looked up in a table of 10,000 are 2.5 MB compiled (the whole
#            table) if fused, and 4.5 kB lowered; a slice of 8 rows is 4.1 kB in both.
# Matters:   a roofline or a split by these numbers finds embeddings bound by memory, routers free, prefix sums dear. Use them for
#            dense real products and convolutions, count the rest by hand.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scipy==1.17.1 ml_dtypes==0.6.0 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
JAX_PLATFORMS=cpu env/bin/python - <<'PY'
import jax
import jax.numpy as jnp
from jax import lax


def costs(function, *arguments):
    """(flops, bytes) of the lowered program and of the compiled one."""
    lowered = jax.jit(function).lower(*arguments)
    rows = (lowered.cost_analysis(), lowered.compile().cost_analysis())
    return [(int(row.get("flops", 0)), int(row.get("bytes accessed", 0))) for row in rows]


def flops(function, *arguments):
    return [row[0] for row in costs(function, *arguments)]


n = 64
x = jnp.ones((n, n))
product = 2 * n**3
assert flops(lambda a: a @ a, x) == [product, product]
assert flops(lambda a: lax.fori_loop(0, 10, lambda _, b: b @ a, a), x) == [product + 2, product + 2]

three = flops(lambda a: [lax.top_k(a, k) for k in (3, 4, 5)], x)
assert three == [0, -3], three
assert flops(lambda a: lax.top_k(a @ a, 3), x) == [product, product - 1]
assert flops(lambda a: lax.linalg.triangular_solve(a, a, left_side=True), x) == [-1, -1]

z = x.astype(jnp.complex64)
assert flops(lambda a: a @ a, z) == [product, product]
assert flops(lambda a: a * a, z) == flops(lambda a: a * a, x) == [n * n, n * n]

for count in (4096, 65536):
    early, late = flops(jnp.cumsum, jnp.ones(count))
    assert early == count * (count - 1) and count <= late < 20 * count, (early, late)

rows, width = 10_000, 64
table, places = jnp.ones((rows, width)), jnp.arange(8)
lookup = [size for _, size in costs(lambda t, i: t[i], table, places)]
assert lookup[0] < 5000 and lookup[1] > table.nbytes, lookup
cut = [size for _, size in costs(lambda t, i: lax.dynamic_slice(t, (i, 0), (8, width)), table, 3)]
assert max(cut) < 5000, cut
print("as stated: three top_k have", three[1], "flops - bytes of a lookup, lowered and compiled:", lookup)
PY
