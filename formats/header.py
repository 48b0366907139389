"""The header of a stream: where its graph comes from, and what has touched it since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `--version` starts with this module
    from dnnp.formats.stream import Record

__version__ = "0.1.0"
"""Version of the package. Asking the installation takes longer than reading most streams."""


def new_header(kind: str, path: str, sha256: str, name: str | None, time: str) -> Record:
    """Header without provenance.

    Parameters
    ----------
    kind, path, sha256
        Format, name (`-` for standard input) and hash of the file.
    name
        Model name; None: the file's name without its ending.
    time
        Unit of time: `s` or `unknown`.
    """
    from pathlib import Path

    model = name if name is not None else "stdin" if path == "-" else Path(path).stem
    return bare_header(model, time, source={"kind": kind, "path": path, "sha256": sha256})


def bare_header(model: str, time: str, **more: Record) -> Record:
    """Header of what comes from no file; `more`: other fields."""
    from dnnp.formats.records import FORMAT, VERSION

    head = {"type": "header", "format": FORMAT, "version": VERSION, "model": model}
    return {**head, **more, "units": {"time": time}, "provenance": []}


def stamped(
    header: Record, tool: str, arguments: Sequence[str], elapsed_s: float | None = None
) -> Record:
    """The header with one more command in its provenance."""
    entry: dict[str, Any] = {
        "tool": tool,
        "version": __version__,
        # Arguments that are not UTF-8 cannot stand in JSON as they are.
        "arguments": [a.encode(errors="backslashreplace").decode() for a in arguments],
    }
    if elapsed_s is not None:
        entry["elapsed_s"] = elapsed_s
    return {**header, "provenance": [*header["provenance"], entry]}
