"""Attributes that graphs call otherwise: --attribute, and `type` as the operator."""

from __future__ import annotations

from pathlib import Path

import networkx
import orjson
import pytest

from dnnp import DnnpWarning, load
from support.run import dnnp

NODES = "Task,Weight,time,type,RAM\na,1.5,9,Conv,10\nb,2,9,Relu,20\nc,0.5,9,Gemm,30\n"
EDGES = "Src,Dst,Bytes\na,b,8\nb,c,16\n"
DOT = """digraph { node [shape=Conv]
  a [Weight=1.5, time=9, RAM=10, label="first"]; b [Weight=2, time=9, RAM=20, shape=Relu]
  c [Weight=.5, time=9, RAM=30, shape=Gemm]
  a -> b [weight=8]; b -> c [weight=16, size=99] }"""
OURS = ("--attribute", "time=Weight,memory=RAM", "--attribute", "size=weight", "--attribute",
        "op=shape")  # fmt: skip


def graph() -> networkx.DiGraph:
    made = networkx.DiGraph()
    for name, weight, op, ram in (("a", 1.5, "Conv", 10), ("b", 2, "Relu", 20),
                                  ("c", 0.5, "Gemm", 30)):  # fmt: skip
        made.add_node(name, Weight=weight, time=9, type=op, RAM=ram)
    made.add_edge("a", "b", Bytes=8)
    made.add_edge("b", "c", Bytes=16)
    return made


def facts(data: bytes) -> tuple[list[object], ...]:
    """Statements of a stream about nodes and tensors."""
    records = [orjson.loads(line) for line in data.splitlines()]
    nodes = [r for r in records if r["type"] == "node"]
    return (
        [n["name"] for n in nodes],
        [n["op"] for n in nodes],
        [n["time_s"]["accelerator"] for n in nodes],
        [n["memory_bytes"] for n in nodes],
        [t["size_bytes"] for t in records if t["type"] == "tensor"],
    )


EXPECTED = (["a", "b", "c"], ["Conv", "Relu", "Gemm"], [1.5, 2, 0.5], [10, 20, 30], [8, 16])


def test_tables(tmp_path: Path):
    (tmp_path / "n.csv").write_text(NODES)
    (tmp_path / "e.csv").write_text(EDGES)
    done = dnnp(
        "import", tmp_path / "n.csv", "--edges", tmp_path / "e.csv",
        "--attribute", "time=Weight,memory=RAM,size=Bytes,name=Task,from=Src,to=Dst",
    )  # fmt: skip
    assert (done.status, done.err) == (0, "")
    assert facts(done.out) == EXPECTED


@pytest.mark.parametrize(
    ("table", "ours", "names"),
    [
        ("Nr,id,Title\n1,9,x\n2,9,y\n", "id=Nr,name=Title", ["x", "y"]),
        ("Nr,Title\n1,x\n2,x\n", "id=Nr,name=Title", ["x", "x"]),
        ("name,Title\n1,x\n2,y\n", "name=title", ["x", "y"]),
        ("name,Title\n1,x\n2,y\n", "op=title", ["1", "2"]),
        ("Src,name,Dst\n1,q,2\n", "from=src,to=DST", ["1", "2"]),
    ],
)
def test_columns_that_say_which_node(tmp_path: Path, table: str, ours: str, names: list[str]):
    (tmp_path / "g.csv").write_text(table)
    done = dnnp("import", tmp_path / "g.csv", "--attribute", ours)
    assert done.status == 0, done.err
    nodes = [r for r in map(orjson.loads, done.out.splitlines()) if r["type"] == "node"]
    assert [n["name"] for n in nodes] == names


def test_dot(tmp_path: Path):
    """Attributes for drawing count if they are named, defaults of nodes too."""
    (tmp_path / "g.dot").write_text(DOT)
    done = dnnp("import", tmp_path / "g.dot", *OURS)
    assert (done.status, done.err) == (0, "")
    assert facts(done.out) == EXPECTED
    named = dnnp("import", "-q", tmp_path / "g.dot", *OURS, "--attribute", "name=label")
    assert facts(named.out)[0] == ["first", "b", "c"]


@pytest.mark.parametrize("kind", ["graphml", "gml", "json"])
def test_networkx_writes(tmp_path: Path, kind: str):
    path, made = tmp_path / f"g.{kind}", graph()
    if kind == "json":
        path.write_bytes(orjson.dumps(networkx.node_link_data(made, edges="edges")))
    else:
        getattr(networkx, f"write_{kind}")(made, path)
    done = dnnp("import", path, "--attribute", "time=Weight,size=Bytes,memory=RAM")
    assert (done.status, done.err) == (0, "")
    assert facts(done.out) == EXPECTED
    ours = {"time:gpu": "Weight", "time:cpu": "time", "size": "Bytes"}
    with pytest.warns(DnnpWarning, match="RAM"):
        both = load(path, attribute=ours)
    assert [n["time_s"] for n in both.nodes] == [{"gpu": w, "cpu": 9} for w in EXPECTED[2]]
    again = dnnp("import", *both.header["provenance"][0]["arguments"])
    assert again.status == 0
    assert b'"gpu":1.5' in again.out


def test_defaults_of_graphml(tmp_path: Path):
    (tmp_path / "g.graphml").write_text("""<graphml>
      <key id="w" for="node" attr.name="Weight"><default>4</default></key>
      <key id="s" for="node" attr.name="shape"><default>Conv</default></key>
      <graph edgedefault="directed"><node id="a"/><node id="b"><data key="w">1</data></node>
      </graph></graphml>""")
    done = dnnp("import", tmp_path / "g.graphml", "--attribute", "time=Weight,op=shape")
    nodes = [r for r in map(orjson.loads, done.out.splitlines()) if r["type"] == "node"]
    assert [(n["op"], n["time_s"]["accelerator"]) for n in nodes] == [("Conv", 4), ("Conv", 1)]


def test_type_is_the_operator(tmp_path: Path):
    (tmp_path / "g.csv").write_text("name,type,time\na,Conv,1\n")
    done = dnnp("import", tmp_path / "g.csv")
    assert (done.status, done.err) == (0, "")
    assert b'"op":"Conv"' in done.out
    (tmp_path / "g.csv").write_text("name,type,op,time\na,node,Conv,1\n")
    done = dnnp("import", tmp_path / "g.csv")
    assert b'"op":"Conv"' in done.out
    assert "mean nothing here: type" in done.err


@pytest.mark.parametrize(
    ("name", "text", "ours", "status", "says"),
    [
        ("g.dot", DOT, "time=Weigth", 2, "--attribute time=Weigth: no attribute 'Weigth' on any "
         "node; there are: Weight, time, RAM, label"),
        ("g.dot", DOT, "size=Bytes", 2, "no attribute 'Bytes' on any edge; there are: size"),
        ("g.dot", "digraph { a }", "time=x", 2, "no attribute 'x' on any node; there are: none"),
        ("g.dot", DOT, "tiem=Weight", 2, "--attribute tiem: no attribute of dnnp; did you mean "
         "'time'?"),
        ("g.dot", DOT, "from=Weight", 2, "--attribute from: no attribute of dnnp"),
        ("g.dot", DOT, "time", 2, "--attribute time: give NAME=VALUE, once for each NAME"),
        ("g.dot", DOT, "time=a,time=b", 2, "give NAME=VALUE, once for each NAME"),
        ("g.dot", DOT, "time=RAM,memory=", 2, "give NAME=VALUE, once for each NAME"),
        ("g.dot", DOT.replace("1.5", "-1"), "time=Weight", 3,
         "g.dot:2: field 'time': '-1' is not a number from 0 to 1e+100"),
        ("g.dot", DOT.replace("1.5", "nan"), "time=Weight", 3,
         "g.dot:2: field 'time': 'nan' is not a number from 0 to 1e+100"),
        ("g.dot", DOT.replace("Weight=.5,", ""), "time=Weight", 3,
         "g.dot:3: field 'time': node 'c' has no time, but others have one"),
        ("g.csv", NODES, "id=Nr", 3, "names neither a column 'nr', of nodes"),
        ("g.csv", EDGES, "from=source,to=dst", 3, "names neither a column 'name'"),
        ("g.stg", "1\n1 1 0\n", "time=x", 2, "--attribute is for csv, dot, graphml, gml, node-"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, name: str, text: str, ours: str, status: int, says: str):
    (tmp_path / name).write_text(text)
    done = dnnp("import", "-q", tmp_path / name, "--attribute", ours)
    assert (done.status, done.out) == (status, b"")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_many_names_cost_no_more_than_they_take(tmp_path: Path):
    """Every node with an attribute of its own: work grows with the file, not with its square."""
    (tmp_path / "g.dot").write_text(
        "digraph {" + "\n".join(f"n{i} [w=1, x{i}=2]" for i in range(20_000)) + "}"
    )
    done = dnnp("import", "-q", tmp_path / "g.dot", "--attribute", "time=w")
    assert done.status == 0
    assert done.out.count(b'"accelerator":1}') == 20_000
