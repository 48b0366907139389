"""Generating over plans of small decoders, as tests do it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dnnp import load, profile, split
from dnnp.generating import generate_stream
from dnnp.graph import Graph
from dnnp.options.run import RunOptions
from support.decoder_models import eager_decoder, grouped_decoder, masked_decoder

PHASES = ["prompt:batch=1,seq=4..40", "token:batch=3,past=4..60"]
MAKERS = (eager_decoder, grouped_decoder, masked_decoder)


def planned(path: Path, k: int = 2, **more: Any) -> Graph:
    """A plan of k stages for prompts and tokens."""
    priced = profile(load(path, phase=PHASES))
    return split(priced, k=k, workload=[(8, 12)], in_flight=3 * max(k, 2), **more)


def generated(graph: Graph, tmp_path: Path, **more: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Tokens of each sequence, and the record."""
    file = tmp_path / "tokens.jsonl"
    brief = {} if "prompts" in more else {"samples": 8}
    options = RunOptions(**{"generate": 12, "tokens": str(file), **brief, **more})
    options.check()
    stream = graph.stream()
    generate_stream(stream, options)
    tokens: dict[int, list[int]] = {}
    ended: set[int] = set()
    for row in map(json.loads, file.read_text().splitlines()):
        assert row["sequence"] not in ended
        tokens.setdefault(row["sequence"], []).append(row["token"])
        ended |= {row["sequence"]} if "end" in row else set()
    assert ended == tokens.keys()
    return [tokens[i] for i in sorted(tokens)], stream.get("generation")[0]


def prompts_file(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    """A file with these prompts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
