"""dnnp-view --as html: one page that needs nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import shutil
import subprocess
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper

import dnnp as api
from dnnp.core.model.errors import UsageError
from dnnp.core.view import page
from dnnp.formats.plan import plan_digest
from dnnp.graph import Graph
from dnnp.samples import build
from support.graphs import random_stream
from support.project import ROOT, pyproject
from support.run import PATIENCE_S
from support.run import dnnp as command
from support.seeds import encode
from support.seeds import planned as planned_records

EVIL = "</script><script>alert(1)</script>\"'<img src=x>\u2028"
VOID = {"meta", "input", "br", "img", "link", "wbr"}


class Reader(HTMLParser):
    """Checks that elements are closed in their order; keeps what they hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.held: dict[str, str] = {}
        self.last = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.last = dict(attrs).get("id") or tag
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.held[self.last] = self.held.get(self.last, "") + data


def unpacked(text: str) -> dict:
    """The data of a page, as its script reads them."""
    return orjson.loads(gzip.decompress(base64.b64decode(text)))


def planned(seed: int = 2, nodes: int = 14, **options: object) -> Graph:
    stream = random_stream(seed, nodes, **options)
    stream.header["model"] = EVIL
    for node in stream.get("node"):
        node["name"] = f"{node['id']} {EVIL}"
    return api.split(Graph(stream), k=3, method="greedy", bandwidth=2, memory=10_000)


def seen(stream: bytes, *options: str | Path) -> str:
    """The page of a stream."""
    done = command("view", "--as", "html", *options, stdin=stream)
    assert done.status == 0, done.err
    assert done.err == ""
    return done.out.decode()


def page_of(records: list[dict]) -> str:
    """The page of a stream that is given as records."""
    return seen(encode(records))


def read(graph: Graph) -> tuple[str, Reader, dict]:
    text = api.view(graph, as_="html").decode()
    reader = Reader(text)
    return text, reader, unpacked(reader.held["data"])


def test_names_do_not_break_out() -> None:
    text, reader, data = read(planned())
    assert reader.count["script"] == 3
    assert "img" not in reader.count
    assert any(name.startswith("0 </script>") for name in data["nodes"]["name"])
    assert "alert(1)</script>" not in text


def test_nothing_comes_from_elsewhere() -> None:
    text, reader, _ = read(planned())
    # Names of kinds of elements look like addresses.
    bare = re.sub(r"http://www\.w3\.org/[\w/]+", "", text)
    assert not re.search(r"https?:|@import|url\(|\bimport\(|XMLHttpRequest|fetch\(", bare)
    assert not [a for a in reader.attributes if a[1] in ("src", "href") or a[1].startswith("on")]
    policy = next(v for t, n, v in reader.attributes if t == "meta" and n == "content")
    assert policy is not None
    scripts = re.findall(r"<script(?: id=\"libs\")?>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; worker-src blob:"
    )


def test_the_data_are_those_of_the_stream() -> None:
    graph = api.schedule(planned(), micro_batches=3)
    _, reader, data = read(graph)
    of = {v: s for s, stage in enumerate(graph.stages) for v in stage.nodes}
    ids, nodes = data["nodes"]["id"], {node["id"]: node for node in graph.nodes}
    assert sorted(ids) == sorted(nodes)
    assert data["units"]["count"] == [1] * len(ids)
    assert data["units"]["stage"] == [of[v] for v in ids]
    assert data["units"]["time"] == data["nodes"]["time"]
    assert data["nodes"]["time"] == [nodes[v]["time_s"]["dev"] for v in ids]
    assert [data["ops"][op] for op in data["nodes"]["op"]] == [nodes[v]["op"] for v in ids]
    assert graph.schedule is not None
    assert data["runs"]["end"] == [b["end_s"] for b in graph.schedule.blocks for _ in b["units"]]
    for field, name in (("inputs", "reads"), ("outputs", "writes")):
        held, tensors = iter(data["nodes"][name]["tensor"]), [t["id"] for t in graph.tensors]
        for v, count in zip(ids, data["nodes"][name]["count"], strict=True):
            assert {tensors[next(held)] for _ in range(count)} == set(nodes[v][field])
    # A node stands after those that it reads from.
    place = {v: i for i, v in enumerate(ids)}
    maker = {t: node["id"] for node in graph.nodes for t in node["outputs"]}
    pairs = [(maker[t], v) for v in ids for t in nodes[v]["inputs"] if t in maker]
    assert len(pairs) > 5
    assert all(place[u] < place[v] for u, v in pairs)
    assert reader.count["canvas"] == 4


def test_groups_and_layers_are_told(tmp_path: Path) -> None:
    records = planned_records()
    scopes = ["/net/h.0/attn", "/net/h.0/attn", "/net/h.0/mlp", "/net/h.1/attn", "/net/h.1", ""]
    nodes = [record for record in records if record["type"] == "node"]
    for node, scope in zip(nodes, scopes, strict=True):
        node["scope"] = scope
    data = unpacked(Reader(page_of(records)).held["data"])
    found = [data["paths"][path] for path in data["units"]["path"]]
    assert sum(data["units"]["count"]) == len(nodes)
    assert found[0] == ["net/h.0", "attn"]
    assert ["net/h.0", "mlp"] in found
    assert all(path == [] or path[0].startswith("net/h.") for path in found)


def test_large_graphs_have_tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.core.view.page_data.MOST_NODES", 30)
    text, _, data = read(planned(5, 40))
    assert "nodes" not in data
    assert "the graph is too large for a page: 40 nodes" in text


def test_two_plans_of_one_graph() -> None:
    first = planned()
    second = api.split(first, k=2, method="uniform")
    data = unpacked(Reader(api.view([first, second], as_="html").decode()).held["data"])
    of = {v: s for s, stage in enumerate(second.stages) for v in stage.nodes}
    assert data["other"]["stage"] == [of[v] for v in data["nodes"]["id"]]
    for others in ([first, planned(3)], [first, Graph(random_stream(2, 14))]):
        with pytest.raises(UsageError, match="only if they have plans of the same graph"):
            api.view(others, as_="html")
    with pytest.raises(UsageError, match="one stream, or two"):
        api.view([first, second, first], as_="html")


def test_two_plans_say_what_moved_in_both() -> None:
    first = planned()
    second = api.split(first, k=2, method="uniform")
    text = api.view([first, second], as_="html").decode()
    held = [{v: s for s, one in enumerate(g.stages) for v in one.nodes} for g in (first, second)]
    said = []
    for mine, other in (held, held[::-1]):
        for number in range(max(mine.values()) + 1):
            inside = [v for v in mine if mine[v] == number]
            if count := sum(other[v] != number for v in inside):
                noun = "operator" if len(inside) == 1 else "operators"
                said.append((str(count), str(len(inside)), noun))
    assert len(said) > 3
    words = r'<span class="moved" title=".*?">(\d+) of (\d+) (operators?) moved<'
    assert re.findall(words, text) == said
    bars = re.findall(r'<div class="bar" role.*?</div>', text)
    long = [sum(map(float, re.findall(r"<i style=.width:([\d.]+)%", bar))) for bar in bars]
    loads = [stage.record["load_s"] for graph in (first, second) for stage in graph.stages]
    assert long == pytest.approx([100 * load / max(loads) for load in loads], abs=0.01)
    assert 'class="moved"' not in api.view([first, first], as_="html").decode()
    assert 'class="moved"' not in read(first)[0]


def with_attributes() -> onnx.ModelProto:
    """A model with an attribute of each kind, and one that tries to break out."""
    words = {"a": 0.1, "b": 3, "c": [1, -2], "d": "two\nlines </script>", "e": [0.5, 2.0]}
    value = helper.make_tensor("v", TensorProto.INT64, [1], [7])
    inner = [helper.make_node("Relu", ["x"], ["q"]), helper.make_node("Neg", ["q"], ["r"])]
    body = helper.make_graph(inner, "body", [], [helper.make_tensor_value_info("r", 1, [4])])
    nodes = [
        helper.make_node("Relu", ["x"], ["p"]),
        helper.make_node("Mine", ["p"], ["u"], domain="mine", **words),
        helper.make_node("ConstantOfShape", ["n"], ["s"], value=value),
        helper.make_node("If", ["yes"], ["t"], then_branch=body, else_branch=body),
        helper.make_node("Mine", ["u", "s", "t"], ["y"], domain="mine", long=[*range(999)]),
    ]
    inputs = [("x", 1, [4]), ("n", TensorProto.INT64, [1]), ("yes", TensorProto.BOOL, [])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info("y", 1, [4])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def attributes_in(data: dict) -> dict[int, list[str]]:
    """Attributes of each node, by id."""
    held = [data["attributes"][at].split("\n") for at in data["nodes"]["attributes"]]
    return dict(zip(data["nodes"]["id"], held, strict=True))


def test_attributes_are_read_from_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(with_attributes(), path)
    stream = command("import", "-q", path).out
    found = attributes_in(unpacked(Reader(seen(stream)).held["data"]))
    long = found.pop(4)
    assert found == {
        0: [""],
        1: ["a = 0.1", "b = 3", "c = [1, -2]", r"d = 'two\nlines </script>'", "e = [0.5, 2]"],
        2: ["value = int64 1"],
        3: ["else_branch = <graph body>", "then_branch = <graph body>"],
    }
    assert [len(text) for text in long] == [90]
    assert long[0].startswith("long = [0, 1, 2")
    # Operators of a branch that is fixed stand in its place.
    stream = command("import", "-q", "--set-input", "yes=true", path).out
    fixed = attributes_in(unpacked(Reader(seen(stream)).held["data"]))
    assert fixed == {**found, 3: [""], 4: [""], 5: long}


def test_attributes_of_samples_are_those_of_their_operators(tmp_path: Path) -> None:
    """Of graphs with constants that are folded, with groups, and for training."""
    compared = 0
    for name, options in (
        ("bert-small", []),
        ("resnet50-small", ["--training"]),
        ("raft-small", []),
    ):
        path = build.write(name, tmp_path)
        graph = Graph.from_bytes(command("import", "-q", *options, path).out)
        found = attributes_in(read(api.coarsen(graph))[2])
        nodes = {node.output[0]: node for node in onnx.load(path).graph.node}
        names = {tensor["id"]: tensor["name"] for tensor in graph.tensors}
        for node in graph.nodes:
            if node.get("backward"):
                assert found[node["id"]] == [""]
                continue
            source = nodes[names[node["outputs"][0]]]
            wanted = {a.name: a for a in source.attribute}
            assert [text.split(" = ")[0] for text in found[node["id"]]] == (list(wanted) or [""])
            for text in filter(None, found[node["id"]]):
                key, value = text.split(" = ")
                if wanted[key].type == onnx.AttributeProto.INT:
                    assert int(value) == wanted[key].i
                elif wanted[key].type == onnx.AttributeProto.INTS:
                    assert orjson.loads(value) == list(wanted[key].ints)
                elif wanted[key].type == onnx.AttributeProto.FLOAT:
                    assert np.float32(value) == np.float32(wanted[key].f)
                compared += 1
    assert compared > 300


def test_attributes_are_missing_where_the_model_is(tmp_path: Path) -> None:
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    model = with_attributes()
    onnx.save(model, path)
    stream = command("import", "-q", path).out
    path.rename(other)
    data = unpacked(Reader(seen(stream)).held["data"])
    assert ("attributes" in data, data["source"]) == (False, "m.onnx")
    held = unpacked(Reader(seen(stream, "--model", other)).held["data"])
    assert held.pop("attributes")[0] == ""
    assert len(held["nodes"].pop("attributes")) == 5
    assert held == data
    model.producer_name = "changed"
    onnx.save(model, path)
    assert unpacked(Reader(seen(stream)).held["data"]) == data
    wrong = command("view", "--as", "html", "--model", path, stdin=stream)
    assert (wrong.status, wrong.out) == (3, b"")
    assert "not the model that was imported" in wrong.err
    gone = command("view", "--as", "html", "--model", tmp_path / "none.onnx", stdin=stream)
    assert (gone.status, gone.out) == (1, b"")
    kept = command("view", "--as", "html", "-o", other, "--model", other, stdin=stream)
    assert kept.status == 2
    assert read(planned())[2]["source"] is False
    assert other.read_bytes() != b""


@pytest.mark.parametrize("what", ["latency", "training", "schedule", "bare"])
def test_whatever_a_stream_holds(what: str) -> None:
    if what == "latency":
        stream = random_stream(3, 10)
        graph = api.split(Graph(stream), k=2, objective="latency", method="heft", bandwidth=2)
    elif what == "training":
        graph = api.schedule(planned(4, 14, training=True), micro_batches=3, method="gpipe")
    elif what == "schedule":
        made = command("schedule", "--shape", "M", "-n", "2", "--method", "gpipe").out
        graph = Graph.from_bytes(made)
    else:
        graph = Graph(random_stream(1, 5))
    text, _, data = read(graph)
    assert ("runs" in data) == (what != "bare")
    assert ("nodes" in data) == (what != "schedule")
    for view, held in (("graph", "nodes"), ("time", "nodes"), ("schedule", "runs")):
        section = re.search(f'<section id="view-{view}"[^>]*>', text)
        assert section is not None
        assert ("data-empty" in section[0]) == (held not in data)
    assert text.count('<div class="') >= 4


def cells(text: str, title: str) -> list[list[str]]:
    """Texts of the table below a heading."""
    table = text.partition(f"<h2>{title}</h2>")[2].partition("</table>")[0]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr>")[1:]]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in rows]


def test_methods_that_were_tried() -> None:
    graph = api.split(Graph(random_stream(5, 14)), k=3, method="slice,uniform", bandwidth=2)
    assert graph.plan is not None
    header, *rows = cells(read(graph)[0], "Methods")
    assert header == ["method", "value (s)", "gap (%)", "validity", "status"]
    assert [row[0] for row in rows] == ["slice", "uniform"]
    assert all(row[3] in ("ordered", "free") for row in rows)


def test_a_plan_that_lacks_memory_says_so() -> None:
    stream = random_stream(2, 14)
    with pytest.warns(match="infeasible"):
        graph = api.split(Graph(stream), k=3, method="greedy", memory=1, memory_mode="ignore")
    assert "infeasible: a device lacks " in read(graph)[0]
    assert "infeasible: a device lacks " in api.view(graph, as_="svg").decode()
    assert "infeasible" not in read(planned())[0]


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_bars_end_within_their_place(comm: str) -> None:
    """The sum of overlapping parts of a load may exceed every load."""
    stream = random_stream(7, 14)
    graph = api.split(Graph(stream), k=3, method="greedy", bandwidth=0.5, comm=comm)
    text, _, _ = read(graph)
    bars = re.findall(r'<div class="bar" role.*?</div>', text)
    long = [sum(map(float, re.findall(r"<i style=.width:([\d.]+)%", bar))) for bar in bars]
    assert max(long) == pytest.approx(100, abs=0.01)
    assert ("are all in its bar" in text) == (comm != "sum")
    assert ("the dashed line is the proven bound" in text) == (comm == "sum")


def test_what_was_measured() -> None:
    """A column beside what was predicted, and a row for each rate of a sweep."""
    records = planned_records()
    (plan,) = (r for r in records if r["type"] == "plan")
    stages = [r for r in records if r["type"] == "stage"]
    run = {
        "type": "run", "mode": "pipeline", "provider": "cpu", "samples": 7, "verified": True,
        "throughput_per_s": 12.5, "digest": plan_digest(plan, stages),
        "choice": {"mode": "pipeline", "ratio": 1.2, "clear": True, "reason": "1.2 times the rate"},
        "stages": [
            {"stage": s["id"], "device": s["device"], "predicted_s": s["load_s"],
             "measured_s": 2 * s["load_s"]}
            for s in stages
        ],
    }  # fmt: skip
    text = page_of([*records, run])
    header, *rows = cells(text, "Stages")
    assert header[-1] == "measured (s)"
    assert [float(row[-1]) for row in rows] == [2 * s["load_s"] for s in stages]
    assert text.count("<b>2 x the load</b>") == len(stages)
    assert "measured 12.5 samples/s" in text
    assert cells(text, "Measured") == [
        ["run", "mode", "provider", "samples", "throughput (1/s)", "verified"],
        ["0", "pipeline", "cpu", "7", "12.5", "yes"],
    ]
    assert "to deploy: pipeline, 1.2 times the rate" in text
    assert cells(page_of(records), "Stages")[0][-1].startswith("capacity (")


def test_what_was_not_verified_comes_first() -> None:
    records = planned_records()
    (plan,) = (r for r in records if r["type"] == "plan")
    stages = [r for r in records if r["type"] == "stage"]
    loads = [s["load_s"] for s in stages]
    slow = loads.index(min(loads))
    assert loads[slow] < max(loads)
    located = {"tensor": "t3", "stage": 1, "operator": "Add", "node": "sum", "layer": "l.1",
               "reason": "stage 1 makes it"}  # fmt: skip
    run = {
        "type": "run", "mode": "pipeline", "provider": "cpu", "samples": 7, "verified": False,
        "max_abs_error": 0.125, "max_rel_error": 0.25, "rtol": 0.0, "atol": 0.0,
        "mismatch": "output 'y' of sample 3: 2 of 4 values differ", "located": located,
        "digest": plan_digest(plan, stages),
        "stages": [
            {"stage": s["id"], "device": s["device"], "predicted_s": s["load_s"],
             "measured_s": 9.0 if i == slow else 1.0}
            for i, s in enumerate(stages)
        ],
    }  # fmt: skip
    text = page_of([*records, run])
    cards = re.findall(r'<div class="(\w+)"><dt>(.*?)</dt><dd>(.*?)</dd><dd>(.*?)</dd>', text)
    said = "output &#x27;y&#x27; of sample 3: 2 of 4 values differ, 0.25 of the largest value"
    assert cards[0] == ("bad", "Outputs", "NOT VERIFIED", f"{said}, rtol 0, atol 0")
    assert len(cards) == 5
    assert cards[2][1] == "Slowest stage"
    assert cards[2][3].endswith(f"; measured stage {slow}, 9 s")
    place = "tensor 't3' of stage 1 is the first to part, made by Add 'sum' in layer l.1"
    where = f"{place}: stage 1 makes it"
    assert where.replace("'", "&#x27;") in text
    plain = " ".join(command("view", stdin=encode([*records, run])).out.decode().split())
    assert "NOT VERIFIED: output 'y' of sample 3: 2 of 4 values differ, 0.25 of the" in plain
    assert where in plain
    del run["mismatch"], run["located"]
    plain = " ".join(command("view", stdin=encode([*records, run])).out.decode().split())
    assert "NOT VERIFIED: largest error 0.125, 0.25 of the largest value, rtol 0" in plain
    run |= {"verified": True, "max_abs_error": 0.0, "max_rel_error": 0.0}
    run["stages"] = [{**s, "measured_s": 2 * s["predicted_s"]} for s in run["stages"]]
    text = page_of([*records, run])
    assert "NOT VERIFIED" not in text
    assert "; measured stage" not in text


def test_same_bytes_again() -> None:
    assert api.view(planned(), as_="html") == api.view(planned(), as_="html")


def test_all_files_of_a_page_are_installed() -> None:
    """With the licences of what is bundled, in the versions that the page is made of."""
    folder = ROOT / "core" / "view"
    patterns = pyproject()["tool"]["setuptools"]["package-data"]["dnnp.core.view"]
    names = [f"web/{name}" for name in (*page.FILES, "LICENSES.txt")]
    for name in names:
        assert (folder / name).is_file()
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    wanted = orjson.loads((folder / "web" / "package.json").read_bytes())["dependencies"]
    licences = (folder / "web" / "LICENSES.txt").read_text()
    assert len(wanted) >= 6
    assert [n for n, version in wanted.items() if f"{n} {version}\n" not in licences] == []


@pytest.mark.skipif(not shutil.which("node"), reason="needs node, to read the script")
def test_the_script_is_one(tmp_path: Path) -> None:
    text, _, _ = read(planned())
    for number, script in enumerate(re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)[1:]):
        path = tmp_path / f"{number}.js"
        path.write_text(script)
        subprocess.run(["node", "--check", str(path)], check=True, timeout=PATIENCE_S)
