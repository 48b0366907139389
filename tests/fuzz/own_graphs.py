"""Graphs that people write down themselves, for the fuzzer."""

from __future__ import annotations

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
