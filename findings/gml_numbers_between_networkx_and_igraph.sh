#!/usr/bin/env bash
# Libraries: networkx 3.6.1, igraph 1.0.0 (Python 3.11).
# Expected:  GML carries numbers: what networkx writes, networkx reads back equal, and igraph reads.
# Happens:   networkx writes whole numbers from 2**31 on as strings in quotes (GML's integers have 32 bits) and reads strings back: 10 GB
#            is less than 9 GB then, sums raise TypeError. igraph makes strings of the whole column, of small numbers in
#            it too. Floats with a whole mantissa and an exponent, such as 1e-05, are written "1.E-05", at which igraph says
#            that the file has a parse error; 1.5e-05 is fine.
# Matters:   bytes above 2 GB and times of 10 microseconds are what graphs of models hold; the same file works for a small model. Write bytes
#            as floats and times in units that need no exponent.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q networkx==3.6.1 igraph==1.0.0 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import igraph
import networkx


def written(*values):
    graph = networkx.DiGraph()
    for place, value in enumerate(values):
        graph.add_node(f"n{place}", value=value)
    networkx.write_gml(graph, "g.gml")
    return [value for _, value in networkx.read_gml("g.gml").nodes(data="value")]


def by_igraph():
    return igraph.Graph.Read_GML("g.gml").vs["value"]


assert written(10, 2**31 - 1) == [10, 2**31 - 1] and by_igraph() == [10, 2**31 - 1]
read = written(10, 9 * 10**9, 10**10)
assert read == [10, "9000000000", "10000000000"], read
assert max(read[1:]) == "9000000000"
assert by_igraph() == ["10", "9000000000", "10000000000"]
assert written(9e9, 1e10) == [9e9, 1e10] and by_igraph() == [9e9, 1e10]

assert written(1.5e-05, 0.0001) == [1.5e-05, 0.0001] and by_igraph() == [1.5e-05, 0.0001]
for value, text in ((1e-05, "1.E-05"), (2e-06, "2.E-06"), (1e22, "1.E+22")):
    assert written(value) == [value]
    assert f"value {text}\n" in open("g.gml").read()
    try:
        by_igraph()
    except igraph.InternalError as error:
        assert "Parse error" in str(error), error
    else:
        raise AssertionError(f"igraph reads {text}")
print("as stated: 10**10 comes back as", repr(read[2]), "- igraph refuses 1.E-05")
PY
