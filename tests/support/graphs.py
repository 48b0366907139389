"""Random streams for tests: small DAGs with tensors as hyperedges."""

from __future__ import annotations

import random
from io import BytesIO

from dnnp.formats.stream import Stream, write


def header(**fields: object) -> dict:
    """A minimal header."""
    return {
        "type": "header",
        "format": "dnnp",
        "version": 1,
        "model": "test",
        "units": {"time": "s"},
        "provenance": [],
        **fields,
    }


def tensor(i: int, kind: str, size: float, **fields: object) -> dict:
    """A tensor record."""
    return {"type": "tensor", "id": i, "name": f"t{i}", "kind": kind, "size_bytes": size, **fields}


def node(i: int, op: str, inputs: list[int], outputs: list[int], **fields: object) -> dict:
    """A node record, without prices."""
    return {
        "type": "node",
        "id": i,
        "name": f"n{i}",
        "op": op,
        "inputs": inputs,
        "outputs": outputs,
        **fields,
    }


def chain(*times: float, sizes: tuple[int, ...] = (), **extra: object) -> Stream:
    """A chain of nodes; node i makes a tensor of sizes[i] bytes (1 if not given)."""
    tensors = [
        tensor(i, "activation", sizes[i] if i < len(sizes) else 1) for i in range(len(times))
    ]
    nodes = [
        node(i, "Op", [i - 1] if i else [], [i], time_s={"dev": t}, **extra)
        for i, t in enumerate(times)
    ]
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def random_stream(seed: int, n: int, **options: object) -> Stream:
    """A random DAG of `n` nodes, priced for class `dev`.

    Options: `params` (bool) adds parameters, some shared; `colors` (bool); `classes` names
    further device classes, some nodes unsupported on them; `training` (bool) makes some of the
    `n` nodes a backward pass; `memory` (bool) states the memory of every node.
    """
    rng = random.Random(seed)
    extra = random.Random(f"{seed} {sorted(options)}")
    total = n
    if options.get("training"):
        n -= extra.randint(n // 3, n // 2)
    tensors: list[dict] = []
    nodes = []

    def drawn(kind: str) -> int:
        tensors.append(tensor(len(tensors), kind, rng.randint(0, 20)))
        return len(tensors) - 1

    inputs = [drawn("input") for _ in range(rng.randint(1, 2))]
    params = [drawn("parameter") for _ in range(n)] if options.get("params") else []
    made: list[int] = []
    density = rng.choice([0.1, 0.3, 0.6])
    for v in range(n):
        reads = [t for t in made[-8:] if rng.random() < density]
        reads += [t for t in inputs if rng.random() < 0.15] or ([] if reads else inputs[:1])
        reads += rng.sample(params, min(len(params), rng.randint(0, 2)))
        outputs = [drawn("activation") for _ in range(rng.choice([1, 1, 1, 2]))]
        if rng.random() < 0.1:
            tensors[outputs[0]]["output"] = True
        if rng.random() < 0.1:
            tensors[outputs[0]]["transfer_s"] = rng.randint(0, 9)
        made += outputs
        times = {"dev": rng.randint(0, 20)}
        for name in options.get("classes", ()):  # type: ignore[attr-defined]
            if rng.random() < 0.9:
                times[name] = rng.randint(1, 30)
        nodes.append(node(v, "Op", sorted(set(reads)), outputs, time_s=times))
        if options.get("colors") and rng.random() < 0.3:
            nodes[-1]["color"] = rng.randint(0, max(1, n // 3))
    if options.get("training"):
        _add_backward(extra, tensors, nodes, total - n)
    if options.get("memory"):
        for record in nodes:
            record["memory_bytes"] = extra.choice([0, extra.randint(1, 30), extra.randint(1, 30)])
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def _add_backward(rng: random.Random, tensors: list[dict], nodes: list[dict], count: int) -> None:
    """Add `count` backward nodes to a forward graph.

    Most share the colour of a forward node, at most one each; the others are orphans. Of the
    edges between their partners most come again, mirrored (or, in one graph of four, as they
    are); there are a few others, and they read what their partners read or wrote.
    """
    ahead = len(nodes)
    along = rng.random() < 0.25
    partners = sorted(rng.sample(range(ahead), min(ahead, count)), reverse=not along)
    partners += [rng.randrange(ahead) for _ in range(count - len(partners))]
    paired = [i < ahead and rng.random() < 0.8 for i in range(count)]
    density = rng.choice([0.1, 0.3, 0.5])
    shared = rng.choice([0.2, 0.7])
    activations = [t for record in nodes for t in record["outputs"]]
    classes = [dict.fromkeys(record["time_s"]) for record in nodes]
    made: list[int] = []
    for i, partner in enumerate(partners):
        twin = nodes[partner]
        reads = {t for t in made if rng.random() < density}
        for j in range(i):
            other = nodes[partners[j]]
            first, second = (other, twin) if along else (twin, other)
            if set(first["outputs"]) & set(second["inputs"]) and rng.random() < 0.8:
                reads.add(made[j])
        reads |= {t for t in twin["inputs"] + twin["outputs"] if rng.random() < shared}
        reads |= {t for t in activations if rng.random() < 0.05}
        tensors.append(tensor(len(tensors), "activation", rng.randint(0, 20)))
        made.append(len(tensors) - 1)
        if rng.random() < 0.1:
            tensors[-1]["transfer_s"] = rng.randint(0, 9)
        times = {name: rng.randint(0, 30) for name in classes[partner]}
        fields = {"name": f"b{i}", "time_s": times, "backward": True}
        nodes.append(node(len(nodes), "Op", sorted(reads), made[-1:], **fields))
        if paired[i]:
            nodes[-1]["color"] = twin.setdefault("color", ahead + i)


def to_bytes(stream: Stream) -> bytes:
    """The stream as a command would write it."""
    file = BytesIO()
    write(stream, file)
    return file.getvalue()
