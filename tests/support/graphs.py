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
    tensors, nodes = [], []

    def tensor(kind: str, **fields: object) -> int:
        tensors.append(
            {
                "type": "tensor",
                "id": len(tensors),
                "name": f"t{len(tensors)}",
                "kind": kind,
                "size_bytes": rng.randint(0, 20),
                **fields,
            }
        )
        return len(tensors) - 1

    inputs = [tensor("input") for _ in range(rng.randint(1, 2))]
    params = [tensor("parameter") for _ in range(n)] if options.get("params") else []
    made: list[int] = []
    density = rng.choice([0.1, 0.3, 0.6])
    for v in range(n):
        reads = [t for t in made[-8:] if rng.random() < density]
        reads += [t for t in inputs if rng.random() < 0.15] or ([] if reads else inputs[:1])
        reads += rng.sample(params, min(len(params), rng.randint(0, 2)))
        outputs = [tensor("activation") for _ in range(rng.choice([1, 1, 1, 2]))]
        if rng.random() < 0.1:
            tensors[outputs[0]]["output"] = True
        if rng.random() < 0.1:
            tensors[outputs[0]]["transfer_s"] = rng.randint(0, 9)
        made += outputs
        times = {"dev": rng.randint(0, 20)}
        for name in options.get("classes", ()):  # type: ignore[attr-defined]
            if rng.random() < 0.9:
                times[name] = rng.randint(1, 30)
        node = {
            "type": "node",
            "id": v,
            "name": f"n{v}",
            "op": "Op",
            "inputs": sorted(set(reads)),
            "outputs": outputs,
            "time_s": times,
        }
        if options.get("colors") and rng.random() < 0.3:
            node["color"] = rng.randint(0, max(1, n // 3))
        nodes.append(node)
    if options.get("training"):
        _add_backward(extra, tensors, nodes, total - n)
    if options.get("memory"):
        for node in nodes:
            node["memory_bytes"] = extra.choice([0, extra.randint(1, 30), extra.randint(1, 30)])
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
    activations = [t for node in nodes for t in node["outputs"]]
    classes = [dict.fromkeys(node["time_s"]) for node in nodes]
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
        tensors.append(
            {
                "type": "tensor",
                "id": len(tensors),
                "name": f"t{len(tensors)}",
                "kind": "activation",
                "size_bytes": rng.randint(0, 20),
            }
        )
        made.append(len(tensors) - 1)
        if rng.random() < 0.1:
            tensors[-1]["transfer_s"] = rng.randint(0, 9)
        node = {
            "type": "node",
            "id": len(nodes),
            "name": f"b{i}",
            "op": "Op",
            "inputs": sorted(reads),
            "outputs": made[-1:],
            "time_s": {name: rng.randint(0, 30) for name in classes[partner]},
            "backward": True,
        }
        if paired[i]:
            node["color"] = twin.setdefault("color", ahead + i)
        nodes.append(node)


def to_bytes(stream: Stream) -> bytes:
    """The stream as a command would write it."""
    file = BytesIO()
    write(stream, file)
    return file.getvalue()
