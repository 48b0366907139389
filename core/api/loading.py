"""Read a graph from a file."""

from __future__ import annotations

import os

from dnnp.formats.files import read_file
from dnnp.formats.stream import read_bytes
from dnnp.graph import Graph
from dnnp.listener import LISTENER, Listener


def load(path: str | os.PathLike[str], *, listener: Listener = LISTENER) -> Graph:
    """Read a stream that a command, or `Graph.save`, has written.

    Raises
    ------
    InputFileError
        The file cannot be read.
    FormatError
        It is malformed.
    """
    name = os.fspath(path)
    stream = read_bytes(read_file(name), name)
    for message in stream.warnings:
        listener.warn(message)
    return Graph(stream)
