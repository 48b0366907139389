"""The next token, from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import VerificationError

MOST_WORDS = 2**31
"""More words than any model has."""


@dataclass(frozen=True)
class Sampling:
    """The way to choose a token."""

    temperature: float = 0.0
    """0: the most likely one, the first of equals."""
    top_k: int = 0
    """Among the so many most likely; 0: all."""
    top_p: float = 1.0
    """Among the fewest whose probability is so large together."""
    seed: int = 0

    def generator(self, sequence: int) -> np.random.Generator:
        """Random numbers of a sequence, the same whatever runs beside it."""
        return np.random.default_rng((self.seed, sequence))

    def choose(self, logits: NDArray[Any], draw: np.random.Generator, where: str) -> int:
        """A token by its logits, f[words].

        VerificationError: a logit is not a number; `where` says of what.
        """
        best = int(logits.argmax())  # the first that is not a number, if there is one
        if logits[best] != logits[best]:
            raise VerificationError(f"{where}: the logits hold NaN")
        if self.temperature == 0:
            return best
        scaled = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scaled, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        weights = np.exp(scaled[order] - scaled[order[0]])
        weights /= weights.sum()
        if self.top_p < 1:
            count = int(np.searchsorted(np.cumsum(weights), self.top_p)) + 1
            order, weights = order[:count], weights[:count] / weights[:count].sum()
        return int(order[np.searchsorted(np.cumsum(weights), draw.random(), side="right")
                         .clip(max=len(order) - 1)])  # fmt: skip
