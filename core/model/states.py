"""State that a model carries from pass to pass: caches, states of convolutions and recurrences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class States:
    """`s` states, each an input and an output of the model; tensors are positions."""

    input: Ints
    """i64[s], the tensor that holds it before a pass."""
    output: Ints
    """i64[s], the tensor that holds it after the pass."""
    rows: Ints
    """i64[s], sequences of one pass."""
    sequence_bytes: Floats
    """f64[s], bytes that each sequence takes whatever its length."""
    token_bytes: Floats
    """f64[s], bytes that each of its tokens takes."""
    tokens: Floats
    """f64[s], tokens of each sequence after the pass, as imported."""
    shared: NDArray[np.bool_]
    """bool[s], one buffer is both input and output."""
    pass_bytes: Floats
    """f64[s], bytes of input and output of the pass as imported, one buffer counted once."""
    in_flight: int | None = None
    """Sequences under way, each with a buffer; None: those of the pass as imported."""
    max_length: int | None = None
    """Tokens that a buffer has room for; None: as imported."""

    def held_bytes(self) -> Floats:
        """Bytes of each state on the device that holds it; f64[s].

        Where input and output are two buffers, a pass has those of its sequences twice.
        """
        if self.in_flight is None and self.max_length is None:
            return self.pass_bytes
        tokens = self.tokens if self.max_length is None else self.max_length
        count = self.rows if self.in_flight is None else self.in_flight
        passing = np.where(self.shared, 0, self.rows)
        return (self.sequence_bytes + self.token_bytes * tokens) * (count + passing)
