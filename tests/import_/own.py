"""Random graphs as people write them, and what a reader must make of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx
from hypothesis import strategies as st

from dnnp.formats.header import new_header
from dnnp.formats.stream import Stream
from dnnp.formats.workloads.drawn import Drawn, drawn_stream


def stream_of(drawn: Drawn) -> Stream:
    """The stream of what a reader found."""
    return drawn_stream(drawn, new_header("csv", drawn.file, "0" * 64, None, "s"))


@dataclass(frozen=True)
class Own:
    """A graph in memory."""

    nodes: list[tuple[str, float, float]]
    """Name, time without a unit, memory."""
    tensors: list[tuple[int, float, list[int]]]
    """Writer, size and readers, in the order of writers."""

    def compare(self, stream: Stream) -> None:
        """All that was written is there, and nothing else."""
        found = stream.get("node")
        assert [n["name"] for n in found] == [name for name, _, _ in self.nodes]
        assert [n["time_s"] for n in found] == [{"accelerator": time} for _, time, _ in self.nodes]
        assert [n["memory_bytes"] for n in found] == [memory for _, _, memory in self.nodes]
        assert [t["size_bytes"] for t in stream.get("tensor")] == [s for _, s, _ in self.tensors]
        writers = {t: i for i, n in enumerate(found) for t in n["outputs"]}
        readers = {
            t: [i for i, n in enumerate(found) if t in n["inputs"]]
            for t in range(len(self.tensors))
        }
        assert [(writers[t], readers[t]) for t in readers] == [
            (writer, reads) for writer, _, reads in self.tensors
        ]
        assert stream.header["units"] == {"time": "unknown"}


def edges_of(own: Own) -> Iterator[tuple[int, int, float, str]]:
    """Tail, head, size and name of a tensor of each edge."""
    for i, (writer, size, readers) in enumerate(own.tensors):
        for reader in readers:
            yield writer, reader, size, f"t{i}"


@st.composite
def own_graphs(draw: st.DrawFn, letters: st.SearchStrategy[str]) -> Own:
    """Graphs of one to six nodes, whose names are of these letters, and their tensors."""
    amounts = st.floats(0, 1e90, allow_subnormal=False) | st.integers(0, 2**53 - 1)
    names = st.text(letters, min_size=1, max_size=6).filter(lambda name: name == name.strip())
    nodes = draw(st.lists(st.tuples(names, amounts, amounts), min_size=1, max_size=6))
    tensors = []
    for writer in range(len(nodes) - 1):
        later = st.integers(writer + 1, len(nodes) - 1)
        for readers in draw(st.lists(st.sets(later, min_size=1), max_size=2)):
            tensors.append((writer, draw(amounts), sorted(readers)))
    return Own(nodes, tensors)


def networkx_of(own: Own) -> networkx.MultiDiGraph:
    """The graph for networkx."""
    graph = networkx.MultiDiGraph()
    for i, (name, time, memory) in enumerate(own.nodes):
        graph.add_node(f"k{i}", name=name, time=time, memory_bytes=memory)
    for tail, head, size, tensor in edges_of(own):
        graph.add_edge(f"k{tail}", f"k{head}", size_bytes=size, tensor=tensor)
    return graph
