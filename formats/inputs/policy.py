"""Policies: what `dnnp-partition --save-policy` writes and `--policy` reads.

A file is one JSON object: the sizes of the network, how it was trained, and all weights, in the
order of `sizes_of`. dnnp-partition(1) describes it.
"""

from __future__ import annotations

import json

import numpy as np

from dnnp.core.model.search_context import Policy
from dnnp.formats.fields import shown
from dnnp.formats.inputs.checked_json import Fields, headed

FORMAT = "dnnp-policy"
VERSION = 1

METHOD = "placeto"

_PLAIN = ("devices", "hops", "width", "episodes", "graphs", "digest")

MOST_DEVICES, MOST_HOPS, MOST_WIDTH = 1024, 64, 64
"""Limits of a network."""


HIDDEN = 32
"""Width of the hidden layer of the network that chooses a device."""


def sizes_of(devices: int, width: int) -> list[tuple[int, int, int]]:
    """Inputs, hidden and outputs of the twelve networks, in the order of their weights.

    The first; f and g from parents to children, then from children to parents; h' and h of the
    three pools, h' first; the one that chooses. Each has weights, biases, weights, biases.
    """
    both, features = 2 * width, 2 * devices + 4  # as in `Board.states` of `samples/papers/placeto`
    inner = [(width, width, width)] * 4 + [(both, both, both)] * 6
    return [(features, width, width), *inner, (4 * both, HIDDEN, devices)]


def policy_bytes(policy: Policy) -> bytes:
    """The contents of a file; numbers are written so that they come back as they are."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "method": METHOD,
        **{name: getattr(policy, name) for name in _PLAIN},
        "weights": policy.weights.tolist(),
    }
    return (json.dumps(record, separators=(",", ":")) + "\n").encode()


def parse_policy(data: bytes, name: str) -> Policy:
    """Check the contents of a file.

    Raises
    ------
    FormatError
        It is no policy, or was changed; the message names the field.
    """
    fields = headed(data, name, "policy", format=FORMAT, version=VERSION, method=METHOD)
    fields.only("format", "version", "method", *_PLAIN, "weights")
    policy = Policy(
        devices=fields.count("devices", least=1, most=MOST_DEVICES),
        hops=fields.count("hops", least=1, most=MOST_HOPS),
        width=fields.count("width", least=1, most=MOST_WIDTH),
        weights=_weights(fields),
        episodes=fields.count("episodes"),
        graphs=fields.count("graphs"),
    )
    if fields.text("digest") != policy.digest:
        raise fields.fault("digest", "is not that of the sizes and weights: the file was changed")
    sizes = sizes_of(policy.devices, policy.width)
    wanted, found = sum(a * b + b + b * c + c for a, b, c in sizes), len(policy.weights)
    if wanted != found:
        raise fields.fault("weights", f"{found} weights; its sizes ask for {wanted}")
    return policy


def _weights(fields: Fields) -> np.ndarray:
    values = fields.get("weights")
    if not isinstance(values, list) or not values:
        raise fields.fault("weights", "is no list of numbers")
    for i, value in enumerate(values):
        # True is an int to Python, and NaN is no number.
        if type(value) not in (int, float) or not abs(value) <= MOST_WEIGHT:
            raise fields.fault(f"weights[{i}]", f"{shown(value)} is not a number up to 1e6")
    return np.array(values, dtype=np.float64)


MOST_WEIGHT = 1e6
"""Larger ones are no result of training."""
