"""Graphs that people write down themselves, for the fuzzer."""

from __future__ import annotations

from typing import Any

NODES = b'''id,name,op,time_s,time_s:cpu,memory_bytes,color,backward
a,first,Conv,1.5,3,10,x,
b,"two, ""2""",Relu,2,,20,x,no
c,,Gemm,0.25,1e-3,,,yes
'''
EDGES = b"""from,to,size_bytes,transfer_s,tensor
a,b,100,0.5,t
a,c,100,0.5,t
b,c,50,,
"""
DOT = rb"""/* as people write it */
strict digraph "a model" {
  rankdir = LR; node [shape=box, op=Conv]
  edge [color="red"; size_bytes=4]
  a [label=<<b>a</b>>, time=1.5, "time:cpu"=2, memory=10] // first
# 1 as preprocessors do
  subgraph cluster_0 { node [op="Re" + "lu"]; b [time=2]; c [time=.5 label="c \"2\""] }
  a:out:s -> { b c } -> d [tensor=x]
  d [time=1e-3]; // last
  a -> d [size_bytes=7, weight=3]
}
"""
GRAPHML = b"""<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
  <key id="d0" for="node" attr.name="time_s" attr.type="double"><default>2</default></key>
  <key id="d1" for="node" attr.name="op" attr.type="string"/>
  <key id="d2" for="edge" attr.name="size_bytes" attr.type="long"/>
  <key id="d3" for="node" yfiles.type="nodegraphics"/>
  <graph id="G" edgedefault="directed">
    <node id="a"><data key="d1">Conv &lt;1&gt;</data>
      <data key="d3"><y:ShapeNode><y:NodeLabel>a</y:NodeLabel></y:ShapeNode></data></node>
    <node id="b"><data key="d0">1.5</data></node>
    <edge id="e" source="a" target="b"><data key="d2">100</data></edge>
  </graph>
</graphml>
"""
GML = b"""Creator "dnnp"  # a comment
graph [
  directed 1
  node [ id 0 label "a" time 1.5 memory_bytes 10 op "Conv" graphics [ x 1.0 fill "#FF" ] ]
  node [ id 1 label "b &amp; c" time 2.0E-05 ]
  node [ id 7 label "d" time 3
  ]
  edge [ source 0 target 1 size_bytes 100 ]
  edge [ source 0 target 7 size_bytes 100 ]
  edge [ source 1 target 7 transfer 0.5 tensor "t" ]
]
"""
STG = b"""          3
          0          0          0
          1         20          1          0
          2          5          1          0
          3          7          2          1          2
          4          0          1          3
# Standard form, with two dummy tasks
"""
STG_COSTS = b"""# with times of transfers
\t3\t2
\t0\t3\t0
\t1\t5\t1
\t\t\t\t0\t2
\t2\t2.5\t2
\t\t\t\t0\t1
\t\t\t\t1\t1e-3
"""
_TASKS = [
    {"name": "split", "id": "split_1", "parents": [], "children": ["work_2"],
     "inputFiles": ["raw"], "outputFiles": ["part"]},
    {"name": "work", "id": "work_2", "parents": ["split_1"], "children": ["join_3"],
     "inputFiles": ["part"], "outputFiles": []},
    {"name": "join", "id": "join_3", "parents": ["work_2"], "children": [],
     "inputFiles": ["part"], "outputFiles": ["sum"]},
]  # fmt: skip
WORKFLOW: dict[str, Any] = {
    "name": "w", "schemaVersion": "1.5", "workflow": {
        "specification": {
            "tasks": _TASKS,
            "files": [{"id": n, "sizeInBytes": 10 + i} for i, n in enumerate(("raw", "part"))],
        },
        "execution": {"tasks": [
            {"id": "split_1", "runtimeInSeconds": 1.5, "command": {"program": "cut"}},
            {"id": "work_2", "runtimeInSeconds": 2, "memoryInBytes": 100},
            {"id": "join_3", "runtimeInSeconds": 0.25, "command": {"program": "cat"}},
        ]},
    },
}  # fmt: skip
"""A workflow in WfFormat 1.5."""
OLD_WORKFLOW: dict[str, Any] = {
    "name": "w", "schemaVersion": "1.3", "workflow": {"tasks": [
        {"name": "split", "id": "ID1", "category": "cut", "parents": [], "runtime": 1.5,
         "memory": 3, "files": [{"name": "raw", "size": 5, "link": "input"},
                                {"name": "part", "size": 7, "link": "output"}]},
        {"name": "join", "id": "ID2", "parents": ["split"], "runtime": 2,
         "files": [{"name": "part", "size": 7, "link": "input"}]},
    ]},
}  # fmt: skip
"""The same kind of thing in WfFormat 1.3."""
INSTANCE: dict[str, Any] = {
    "name": "i",
    "task_graph": {
        "tasks": [{"name": n, "cost": c} for n, c in (("a", 5.0), ("b", 2), ("c", 1.5))],
        "dependencies": [
            {"source": "a", "target": "b", "size": 3.0}, {"source": "a", "target": "c", "size": 1},
        ],
    },
    "network": {"nodes": [{"name": "v", "speed": 1.0}], "edges": []},
}  # fmt: skip
"""An instance of SAGA, as DAGBench keeps them."""
NODE_LINK: dict[str, Any] = {
    "directed": True, "multigraph": True, "graph": {"name": "g"},
    "nodes": [{"Weight": 1.5, "type": "Conv", "id": ["a", 0]}, {"Weight": 2, "id": 7},
              {"Weight": 0.5, "type": "Relu", "id": "c"}],
    "links": [{"Bytes": 8, "source": ["a", 0], "target": 7, "key": 0},
              {"Bytes": 16, "source": 7, "target": "c", "key": 0}],
}  # fmt: skip
"""Output of networkx for a graph with a user's own attributes."""
