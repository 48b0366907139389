#!/usr/bin/env bash
# Libraries: networkx 3.6.1, pydot 4.0.1 (Python 3.11).
# Expected:  networkx.nx_pydot.to_pydot either writes a graph of strings so that it is read back as it was, or refuses what DOT cannot say.
#            from_pydot reads the nodes and edges that DOT defines, those in clusters too.
# Happens:   names with a colon, as TensorFlow's "conv:0" and "conv:1", are written without quotes, where DOT reads "node conv, port 0":
#            Graphviz merges both into one node; networkx itself reads five nodes where four were, one of them, "conv", without
#            edges and the listed ones without attributes. A node named "node" or "edge" vanishes. Quotes of one's own
#            around all names help. from_pydot drops what stands in subgraphs: nodes, edges and attributes of a cluster are
#            missing, silently.
# Matters:   exporters write clusters for scopes and stages; load and memory of what is in them are not there after reading, and outputs
#            of one operator are merged or cut off.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q networkx==3.6.1 pydot==4.0.1 pyparsing==3.3.3 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import networkx
import pydot


def again(graph):
    text = networkx.nx_pydot.to_pydot(graph).to_string()
    return text, networkx.DiGraph(networkx.nx_pydot.from_pydot(pydot.graph_from_dot_data(text)[0]))


edges = [("conv:0", "relu"), ("conv:1", "add"), ("relu", "add")]
text, read = again(networkx.DiGraph(edges))
assert "\nconv;\n" in text and "\nconv:0 -> relu;\n" in text, text
assert set(read) == {"conv", "conv:0", "conv:1", "relu", "add"} and not read.degree("conv"), list(read)
quoted = networkx.relabel_nodes(networkx.DiGraph(edges), lambda name: f'"{name}"')
assert set(again(quoted)[1].edges) == set(edges)

isolated = networkx.DiGraph()
isolated.add_nodes_from(["node", "edge", "other"])
assert set(again(isolated)[1]) == {"other"}, again(isolated)

text = """digraph {
  subgraph cluster_stage0 { a [bytes=5]; b [bytes=7]; a -> b }
  b -> c;
}"""
(parsed,) = pydot.graph_from_dot_data(text)
assert [node.get_name() for node in parsed.get_subgraphs()[0].get_nodes()] == ["a", "b"]
read = networkx.nx_pydot.from_pydot(parsed)
assert set(read.nodes) == {"b", "c"} and not read.nodes["b"], dict(read.nodes(data=True))
assert [edge[:2] for edge in read.edges] == [("b", "c")]
print("as stated: colons make", sorted(again(networkx.DiGraph(edges))[1]), "- of a cluster only b is left, without bytes")
PY
