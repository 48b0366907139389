"""Task graphs of others: STG, WfCommons, DAGBench, GML and node-link JSON."""

from __future__ import annotations

import builtins
import copy
import json
from pathlib import Path
from typing import Any

import networkx
import orjson
import pytest
from fuzz.own_graphs import GML, INSTANCE, NODE_LINK, OLD_WORKFLOW, STG, STG_COSTS, WORKFLOW
from fuzz.targets import PIPER, WORKLOAD

from dnnp import load
from support.run import dnnp


def records(data: bytes, kind: str) -> list[dict[str, Any]]:
    return [r for r in map(orjson.loads, data.splitlines()) if r["type"] == kind]


def edges(data: bytes) -> list[tuple[str, str, str]]:
    """Writer, reader and name of what crosses each edge."""
    nodes = records(data, "node")
    writer = {t: n["name"] for n in nodes for t in n["outputs"]}
    named = {t["id"]: t["name"] for t in records(data, "tensor")}
    return [(writer[t], n["name"], named[t]) for n in nodes for t in n["inputs"]]


def imported(tmp_path: Path, name: str, content: object) -> bytes:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    done = dnnp("import", "-q", path)
    assert done.status == 0, done.err
    assert dnnp("check", stdin=done.out).status == 0
    return done.out


def test_standard_task_graph(tmp_path: Path):
    data = imported(tmp_path, "g.stg", STG)
    assert [(n["name"], n["time_s"]["accelerator"]) for n in records(data, "node")] == [
        ("0", 0), ("1", 20), ("2", 5), ("3", 7), ("4", 0),
    ]  # fmt: skip
    assert [pair[:2] for pair in edges(data)] == [
        ("0", "1"), ("0", "2"), ("1", "3"), ("2", "3"), ("3", "4"),
    ]  # fmt: skip
    assert {t["size_bytes"] for t in records(data, "tensor")} == {0}
    assert records(data, "header")[0]["units"] == {"time": "unknown"}


def test_task_graph_with_times_of_transfers(tmp_path: Path):
    data = imported(tmp_path, "g.stg", STG_COSTS)
    assert {(*ends[:2], t["transfer_s"]) for ends, t in zip(
        sorted(edges(data)), sorted(records(data, "tensor"), key=lambda t: t["name"]), strict=True
    )} == {("0", "1", 2), ("0", "2", 1), ("1", "2", 0.001)}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "g.stg:1: no task graph (STG): its first line has the number of tasks"),
        ("# nothing\n", "g.stg:1: no task graph (STG)"),
        ("1 2 3\n", "g.stg:1: no task graph (STG)"),
        ("x\n", "g.stg:1: field 'tasks': 'x' is not a number of tasks"),
        ("1\n0 1\n", "g.stg:2: expected a task, its time and its number of predecessors"),
        ("1\n0 -1 0\n", "g.stg:2: field 'time': '-1' is not a number from 0"),
        ("1\n0 inf 0\n", "g.stg:2: field 'time': 'inf' is not a number from 0"),
        ("1\n0 1 x\n", "g.stg:2: field 'predecessors': 'x' is not a number of predecessors"),
        ("1\n0 1 999999999\n", "g.stg:2: field 'predecessors': 999999999 do not follow, each on"),
        ("1\n0 1 1234567890123\n", "g.stg:2: field 'predecessors': '1234567890123' is not"),
        ("2\n0 1 0\n1 1 2 0\n", "g.stg:3: field 'predecessors': 2 do not follow"),
        ("2\n0 1 0\n1 1 1\n0 nan\n", "g.stg:4: field 'transfer': 'nan' is not a number"),
        ("2\n0 1 0\n1 1 1\n0 1 1\n", "g.stg:3: field 'predecessors': 1 do not follow, each on"),
        ("2\n0 1 0\n1 1 1 7\n", "g.stg:3: there is no node '7'"),
        ("2\n0 1 0\n0 1 0\n", "g.stg:3: a second node '0'; the first is in line 2"),
        ("2\n0 1 0\n1 1 2 0 0\n", "g.stg:3: a second edge '0' -> '1'"),
        ("2\n0 1 1 1\n1 1 1 0\n", "the graph has a cycle"),
        ("1\n0 1 1 0\n", "g.stg:2: an edge from node '0' to itself"),
        ("9\n0 1 0\n", "field 'tasks': 9 are stated, but 1 follow"),
        ("0\n0 1 0\n1 1 0\n2 1 0\n", "field 'tasks': 0 are stated, but 3 follow"),
    ],
)
def test_stg_refused(tmp_path: Path, text: str, says: str):
    (tmp_path / "g.stg").write_text(text)
    done = dnnp("import", tmp_path / "g.stg")
    assert (done.status, done.err.count("\n")) == (3, 1)
    assert says in done.err


def test_workflow(tmp_path: Path):
    data = imported(tmp_path, "w.json", WORKFLOW)
    assert records(data, "header")[0]["source"]["kind"] == "wfcommons"
    assert records(data, "header")[0]["units"] == {"time": "s"}
    nodes = records(data, "node")
    assert [(n["name"], n["op"], n["time_s"]["accelerator"]) for n in nodes] == [
        ("split", "cut", 1.5), ("work", "", 2), ("join", "cat", 0.25),
    ]  # fmt: skip
    assert [n.get("memory_bytes") for n in nodes] == [None, 100, None]
    assert sorted(edges(data)) == [
        ("split", "join", "part"), ("split", "work", "part"), ("work", "join", "work"),
    ]  # fmt: skip
    assert {t["name"]: t["size_bytes"] for t in records(data, "tensor")} == {"part": 11, "work": 0}


def test_workflow_of_an_older_version(tmp_path: Path):
    """Jobs or tasks with their files, whose parents are named; memory in KB."""
    for kind in ("tasks", "jobs"):
        old = copy.deepcopy(OLD_WORKFLOW)
        old["workflow"][kind] = old["workflow"].pop("tasks")
        data = imported(tmp_path, "w.json", old)
        nodes = records(data, "node")
        assert [(n["name"], n["op"], n.get("memory_bytes")) for n in nodes] == [
            ("split", "cut", 3000), ("join", "", None),
        ]  # fmt: skip
        assert edges(data) == [("split", "join", "part")]
        assert records(data, "tensor")[0]["size_bytes"] == 7
    newer = copy.deepcopy(OLD_WORKFLOW)
    for task in newer["workflow"]["tasks"]:
        task["runtimeInSeconds"] = task.pop("runtime")
        for file in task["files"]:
            file["sizeInBytes"] = file.pop("size")
    assert records(imported(tmp_path, "w.json", newer), "node")[1]["time_s"] == {"accelerator": 2}


def test_instance_of_dagbench(tmp_path: Path):
    data = imported(tmp_path, "i.json", INSTANCE)
    assert records(data, "header")[0]["source"]["kind"] == "dagbench"
    assert [n["time_s"]["accelerator"] for n in records(data, "node")] == [5, 2, 1.5]
    assert sorted(edges(data)) == [("a", "b", "a to b"), ("a", "c", "a to c")]
    assert [t["size_bytes"] for t in records(data, "tensor")] == [3, 1]


def test_node_link(tmp_path: Path):
    new = {k: v for k, v in NODE_LINK.items() if k != "links"} | {"edges": NODE_LINK["links"]}
    for graph in (NODE_LINK, new):
        data = imported(tmp_path, "g.json", graph)
        nodes = records(data, "node")
        assert [(n["name"], n["op"]) for n in nodes] == [
            ("('a', 0)", "Conv"), ("7", ""), ("c", "Relu"),
        ]  # fmt: skip
        assert [pair[:2] for pair in edges(data)] == [("('a', 0)", "7"), ("7", "c")]


def test_what_json_is_told_by_content(tmp_path: Path):
    """The same as with --from, but for the provenance."""
    for kind, document in (
        ("wfcommons", WORKFLOW), ("dagbench", INSTANCE), ("node-link", NODE_LINK),
        ("piper", PIPER), ("msr-json", WORKLOAD),
    ):  # fmt: skip
        told = imported(tmp_path, "any.json", document)
        asked = dnnp("import", "-q", "--from", kind, tmp_path / "any.json").out
        assert records(told, "header")[0]["source"]["kind"] == kind
        assert told.splitlines()[1:] == asked.splitlines()[1:]


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with another value at a path of names and numbers; `None`: without it."""
    copied = copy.deepcopy(document)
    inner: Any = copied
    *steps, last = [int(s) if s.isdigit() else s for s in path.split("/")]
    for step in steps:
        inner = inner[step]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return copied


TASK, FILE = "workflow/specification/tasks", "workflow/specification/files"
RUN = "workflow/execution/tasks"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "JSON of none of the formats that are read: node-link, wfcommons, dagbench, piper"),
        ([], "JSON of none of the formats that are read"),
        (changed(WORKFLOW, "workflow", []), "field 'workflow': [] is not an object"),
        (changed(WORKFLOW, f"{RUN}/0/runtimeInSeconds", -1),
         "field 'workflow.execution.tasks[0].runtimeInSeconds': -1 is not a number from 0"),
        (changed(WORKFLOW, f"{RUN}/0/runtimeInSeconds", float("nan")), "nan is not a number from"),
        (changed(WORKFLOW, f"{RUN}/0/runtimeInSeconds", float("inf")), "inf is not a number from"),
        (changed(WORKFLOW, f"{RUN}/1", None), "node 'work_2' has no time, but others have one"),
        (changed(WORKFLOW, f"{TASK}/1/id", "split_1"), "tasks[1]: a second node 'split_1'"),
        (changed(WORKFLOW, f"{TASK}/1/parents", ["split_2"]), "tasks[1]: there is no node "
         "'split_2'; did you mean 'split_1'?"),
        (changed(WORKFLOW, f"{TASK}/0/parents", ["join_3"]), "the graph has a cycle: "),
        (changed(WORKFLOW, f"{TASK}/0/parents", ["split_1"]), "an edge from node 'split_1' to it"),
        (changed(WORKFLOW, f"{TASK}/0/parents", [1]), "field 'workflow.specification.tasks[0]."
         "parents': [1] is not a list of strings"),
        (changed(WORKFLOW, f"{TASK}/1/outputFiles", ["part"]), "field 'workflow.specification."
         "tasks[1].outputFiles': 'part', which 'split_1' writes, too"),
        (changed(WORKFLOW, f"{FILE}/1/sizeInBytes", "x"), "files[1].sizeInBytes': 'x' is not a n"),
        (changed(OLD_WORKFLOW, "workflow/tasks/0/memory", 1e99), "field 'memory_bytes'"),
        ({"workflow": {"tasks": [{"name": "a", "id": "1"}, {"name": "a", "id": "2"},
                                 {"name": "b", "id": "3", "parents": ["a"]}]}},
         "tasks[2]: there is no node 'a'"),
        (changed(INSTANCE, "task_graph/tasks/0/cost", -1), "i.json: task_graph.tasks[0]: field "
         "'cost': -1 is not a number from 0"),
        (changed(INSTANCE, "task_graph/tasks/1/name", "a"), "tasks[1]: a second node 'a'"),
        (changed(INSTANCE, "task_graph/tasks/1/name", None), "tasks[1].name': is missing"),
        (changed(INSTANCE, "task_graph/dependencies/0/target", "z"), "there is no node 'z'"),
        (changed(NODE_LINK, "directed", False), "field 'directed': is not true, but edges need"),
        (changed(NODE_LINK, "directed", None), "field 'directed': is not true, but edges need"),
        (changed(NODE_LINK, "nodes/0/id", {"a": 1}), "nodes[0].id': {'a': 1} is not a key of a"),
        (changed(NODE_LINK, "nodes/0/id", [[1]]), "nodes[0].id': [[1]] is not a key of a node"),
        (changed(NODE_LINK, "nodes/1/id", "c"), "nodes[2]: a second node 'c'"),
        (changed(NODE_LINK, "links/1/target", ["a", 0]), "the graph has a cycle"),
        (changed(NODE_LINK, "nodes", {}), "field 'nodes': {} is not a list"),
        (changed(NODE_LINK, "nodes", []), "there is no node"),
    ],
)  # fmt: skip
def test_json_refused(tmp_path: Path, document: object, says: str):
    (tmp_path / "i.json").write_text(json.dumps(document))
    done = dnnp("import", "-q", tmp_path / "i.json")
    assert (done.status, done.err.count("\n")) == (3, 1)
    assert says in done.err


def test_deep_json_is_refused(tmp_path: Path):
    for pair in ("[]", '{"a":}'):
        (tmp_path / "d.json").write_text(pair[:-1] * 50_000 + pair[-1] * 50_000)
        done = dnnp("import", tmp_path / "d.json")
        assert (done.status, done.err.count("\n")) == (3, 1)


def test_a_wide_workflow_takes_linear_work(tmp_path: Path):
    """One file that all read, and parents named again: nothing is looked through for each."""
    n = 20_000
    tasks = [{"name": "t0", "id": "t0", "outputFiles": ["f"],
              "children": [f"t{i}" for i in range(1, n)]}]  # fmt: skip
    tasks += [
        {"name": f"t{i}", "id": f"t{i}", "inputFiles": ["f"], "parents": ["t0"]}
        for i in range(1, n)
    ]
    files = [{"id": "f", "sizeInBytes": 3}]
    document = {"workflow": {"specification": {"tasks": tasks, "files": files}}}
    data = imported(tmp_path, "w.json", document)
    assert len(records(data, "node")) == n
    assert [t["size_bytes"] for t in records(data, "tensor")] == [3]


def test_gml(tmp_path: Path):
    data = imported(tmp_path, "g.gml", GML)
    assert [(n["name"], n["op"], n["time_s"]["accelerator"]) for n in records(data, "node")] == [
        ("a", "Conv", 1.5), ("b & c", "", 2e-5), ("d", "", 3),
    ]  # fmt: skip
    assert edges(data) == [("a", "b & c", "a"), ("a", "d", "a"), ("b & c", "d", "t")]


def test_gml_as_igraph_writes_it(tmp_path: Path):
    """Exponents without a point, which networkx cannot read; and names like that stay."""
    text = (
        'Creator "igraph"\nVersion 1\ngraph\n[\n  directed 1\n  node\n  [\n    id 0\n'
        '    name "v 1e-05"\n    time 1e-05\n  ]\n  node\n  [\n    id 1\n    name "w"\n    time 2\n'
        "  ]\n  edge\n  [\n    source 0\n    target 1\n    size 1e+06\n  ]\n]\n"
    )
    data = imported(tmp_path, "g.gml", text.encode())
    assert [(n["name"], n["time_s"]["accelerator"]) for n in records(data, "node")] == [
        ("v 1e-05", 1e-5), ("w", 2),
    ]  # fmt: skip
    assert records(data, "tensor")[0]["size_bytes"] == 1e6


def test_blank_lines_of_gml_cost_no_more_than_they_take(tmp_path: Path):
    """Numbers are looked for within lines; over lines, work would grow with their square."""
    data = imported(tmp_path, "g.gml", GML.replace(b"\n", b"\n" * 100_000, 1))
    assert len(records(data, "node")) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no graph in GML"),
        ("graph [ node [ id 0 ] ]", "an undirected graph; its edges need directions: 'directed 1'"),
        ("graph [ directed 1 ]", "there are no nodes"),
        ("graph [ directed 1 node [ label 1 ] ]", "no graph in GML"),
        ("graph [ directed 1 node [ id 0 time -1 ] ]",
         "g.gml: node 0: field 'time': -1 is not a number from 0"),
        ("graph [ directed 1 node [ id 0 time NAN ] ]", "node 0: field 'time': nan is not a num"),
        ("graph [ directed 1 node [ id 0 time +INF ] ]", "node 0: field 'time': inf is not a num"),
        ("graph [ directed 1 node [ id 0 ] node [ id 0 ] ]", "node id 0 is duplicated"),
        ("graph [ directed 1 node [ id 0 ] edge [ source 0 target 9 ] ]", "undefined target 9"),
        ("graph [ directed 1 node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] "
         "edge [ source 1 target 0 ] ]", "the graph has a cycle"),
        ("graph [ x [" * 60 + "]]" * 60, "no graph in GML that can be read: more than 100 lists"),
        ("graph [ directed 1 node [ id " + "9" * 5000 + " ] ]", "no graph in GML"),
    ],
)  # fmt: skip
def test_gml_refused(tmp_path: Path, text: str, says: str):
    (tmp_path / "g.gml").write_text(text)
    done = dnnp("import", "-q", tmp_path / "g.gml")
    assert (done.status, done.err.count("\n")) == (3, 1)
    assert says in done.err


def test_gml_without_networkx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Status 7, with what to install."""
    (tmp_path / "g.gml").write_bytes(GML)
    whole = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "networkx":
            raise ImportError(name)
        return whole(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    done = dnnp("import", tmp_path / "g.gml")
    assert (done.status, done.err) == (
        7, "dnnp-import: GML needs networkx: pip install 'dnnp[graphs]'\n"
    )  # fmt: skip


def test_a_split_of_each(tmp_path: Path):
    """Every graph that is read can be split."""
    for name, content in (
        ("g.stg", STG_COSTS), ("w.json", WORKFLOW), ("i.json", INSTANCE), ("g.gml", GML),
    ):  # fmt: skip
        data = imported(tmp_path, name, content)
        plan = dnnp("partition", "-q", "-k", "2", stdin=data)
        assert plan.status == 0, plan.err
        assert dnnp("check", stdin=plan.out).status == 0


def test_a_graph_of_networkx_and_its_json_are_one(tmp_path: Path):
    graph = networkx.MultiDiGraph(name="g")
    graph.add_node("a", time=1, op="x")
    graph.add_node("b", time=2)
    graph.add_edge("a", "b", size=4, tensor="t")
    graph.add_edge("a", "b", size=5, tensor="u")
    path = tmp_path / "g.json"
    path.write_bytes(orjson.dumps(networkx.node_link_data(graph, edges="links")))
    ours, theirs = load(path), load(graph)
    assert [n["time_s"] for n in ours.nodes] == [n["time_s"] for n in theirs.nodes]
    assert [(t["name"], t["size_bytes"]) for t in ours.tensors] == [("t", 4), ("u", 5)]
