"""Phases of a model that generates: passes over prompts and over tokens, and what they weigh.

A phase is priced at one point, or at the two ends of a range of lengths; between them costs are
taken as linear. A workload says how many passes of each point a sequence takes (`passes_of`). A
split costs what its passes cost together, so that times and sizes are added up by these numbers
once, and every method sees an ordinary graph whose unit is a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import UsageError

Floats = NDArray[np.float64]

PROMPT, TOKEN = "prompt", "token"
NAMES = (PROMPT, TOKEN)


class Point(NamedTuple):
    """Passes of one size."""

    name: str
    """One of `NAMES`: what the passes do."""
    rows: int
    """Sequences of a pass."""
    seq: int
    """Tokens of each of them in the pass."""
    past: int
    """Tokens that each has before the pass."""


class Sequences(NamedTuple):
    """A workload: means over sequences, from which the passes of each point follow."""

    prompt: float
    """Tokens of a prompt."""
    tokens: float
    """Tokens that are generated, of which the last pass over the prompt makes the first."""
    longest: int
    """Tokens of the longest sequence, its prompt included."""
    prompt_past: float = 0.0
    """Tokens before a pass over a prompt, which goes in chunks; 0: in one pass."""
    token_past: float = 0.0
    """Tokens before a pass over a token."""
    rows: int = 1
    """Sequences of a pass over tokens, one of the numbers that the phase is priced for."""


@dataclass(frozen=True, eq=False)
class Phases:
    """Costs of `n` nodes and `m` tensors at `p` points."""

    points: tuple[Point, ...]
    times: Mapping[str, Floats]
    """Device class -> f64[p, n]; inf: unsupported."""
    sizes: Floats
    """f64[p, m], bytes that move."""
    pass_s: Floats
    """f64[p], seconds of a pass in each stage besides its nodes; 0: not known."""


def total(passes: Sequence[float], rows: Floats) -> Floats:
    """Sum of the rows by the number of passes; what no pass does costs nothing."""
    done = np.flatnonzero(passes)
    weights = np.array(passes, dtype=np.float64)[done]
    result: Floats = (weights[:, None] * rows[done]).sum(axis=0)
    return result


def sequences_of(lengths: Iterable[tuple[int, int]], points: Sequence[Point]) -> Sequences:
    """The workload of sequences, each a prompt and a number of tokens to generate.

    UsageError: there are none, or one goes beyond the lengths that a phase is priced for.
    """
    prompt, token = ([p for p in points if p.name == name] for name in NAMES)
    rows = list(lengths)
    if not rows:
        raise UsageError("the workload has no sequences")
    chunks = before = later = after = 0.0
    for length, count in rows:
        _check_prompt(length, prompt)
        chunk = prompt[0].seq if _in_chunks(prompt) else length
        chunks += length / chunk
        before += length / chunk * (length - chunk) / 2
        if count > 1:
            _check_tokens(length, count, token)
        later += count - 1
        after += (count - 1) * (length + (count - 2) / 2)
    n = len(rows)
    return Sequences(
        prompt=sum(length for length, _ in rows) / n,
        tokens=sum(count for _, count in rows) / n,
        longest=max(length + count for length, count in rows),
        prompt_past=before / chunks,
        token_past=after / later if later else 0.0,
        rows=rows_of(points)[0],
    )


def rows_of(points: Sequence[Point]) -> list[int]:
    """Numbers of sequences of a pass over tokens that are priced, as given; [1]: none."""
    return list(dict.fromkeys(p.rows for p in points if p.name == TOKEN)) or [1]


def usual_lengths(points: Sequence[Point]) -> tuple[int, int]:
    """Tokens of a prompt, and of what follows, as far as phases are priced for."""
    by_name = {name: [p for p in points if p.name == name] for name in NAMES}
    last = by_name[PROMPT][-1:]
    length = last[0].past + last[0].seq if last else 1
    later = [p.past for p in by_name[TOKEN]]
    return length, max(1, later[-1] - length) if later else 1


def _in_chunks(prompt: Sequence[Point]) -> bool:
    """True if prompts go in chunks of one size, on top of what is there before."""
    return prompt[0].past != prompt[-1].past


def _check_prompt(length: int, prompt: Sequence[Point]) -> None:
    """Refuse a prompt that its phase is not priced for."""
    if not prompt:
        raise UsageError("the graph has no phase 'prompt'; see dnnp-import --phase")
    first, last = prompt[0], prompt[-1]
    least, most = first.seq, last.seq + (last.past if _in_chunks(prompt) else 0)
    if not least <= length <= most:
        raise UsageError(
            f"a prompt of {length} tokens; phase 'prompt' is priced for {least}..{most}"
        )


def _check_tokens(length: int, count: int, token: Sequence[Point]) -> None:
    """Refuse a sequence that the phase of tokens is not priced for."""
    if not token:
        raise UsageError("the graph has no phase 'token'; see dnnp-import --phase")
    least, most = token[0].past, token[-1].past
    if length < least or length + count - 2 > most:
        raise UsageError(
            f"{count} tokens after a prompt of {length} have {length}..{length + count - 2} before "
            f"them; phase 'token' is priced for {least}..{most}"
        )


def passes_of(points: Sequence[Point], workload: Sequences) -> tuple[float, ...]:
    """Passes of each point that a sequence takes, alone or with others in the rows of a pass."""
    found: list[float] = []
    for point in points:
        same = [p for p in points if (p.name, p.rows) == (point.name, point.rows)]
        if point.name == TOKEN and point.rows != workload.rows:
            found.append(0.0)
            continue
        low, high = same[0], same[-1]
        if point.name == TOKEN:
            count, at, ends = workload.tokens - 1, workload.token_past, (low.past, high.past)
        elif _in_chunks(same):
            count, at = workload.prompt / low.seq, workload.prompt_past
            ends = low.past, high.past
        else:
            count, at, ends = 1.0, workload.prompt, (low.seq, high.seq)
        share = (at - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.0
        found.append(count * (share if point is not low else 1 - share))
    return tuple(found)
