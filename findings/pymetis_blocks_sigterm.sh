#!/usr/bin/env bash
# Libraries: pymetis 2025.2.2 (Python 3.11, Linux).
# Expected:  an input that METIS refuses raises an exception, each time, and nothing else of the process changes.
# Happens:   contiguous parts of a graph in two pieces, by k-way: the first call raises RuntimeError, the same call again returns a
#            partition. From the first call on SIGTERM is blocked in the thread, and in each child process made after it
#            (METIS jumps out of its signal section and pymetis does not restore the mask).
# Matters:   a partitioner that falls back to another method after the error can no longer be stopped by `kill` or `timeout`, nor can
#            the workers it starts; a retry hides the error. Run METIS in a process of its own.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q pymetis==2025.2.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import signal
import subprocess
import sys

import pymetis

half = 20
graph = [[j for j in (i - 1, i + 1) if j // half == i // half and j >= 0] for i in range(2 * half)]


def blocked():
    return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])


assert not blocked()
pymetis.part_graph(9, adjacency=graph, recursive=False)
assert not blocked()
try:
    pymetis.part_graph(9, adjacency=graph, recursive=False, options=pymetis.Options(contig=1))
except RuntimeError as error:
    first = error
else:
    raise AssertionError("the first call returned")
assert blocked()
cut, parts = pymetis.part_graph(9, adjacency=graph, recursive=False, options=pymetis.Options(contig=1))
assert len(parts) == 2 * half and blocked()
code = "import signal; print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
assert child.stdout.strip() == "True", child
print("as stated: first", repr(first), "- then a partition; SIGTERM is blocked here and in children")
PY
