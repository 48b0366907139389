"""What the networks computed, step by step of an episode, kept so that it can be derived.

A step changes what is said of two groups. All else follows along the edges, a hop further in each
round of message passing, so that only those rows are computed again; what an episode costs is
the number of rows. Each row has a place: a group before the message passing (`base`), in a
round of one direction (`low`), or after it (`top`). A tape knows the last row of each place, and
which one was there before, so that an episode can be taken back row by row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.baselines.placeto.groups import Groups
from dnnp.core.baselines.placeto.layers import HIDDEN, features_of
from dnnp.core.cost.kernel import callee
from dnnp.core.model.graph import Floats, Ints

ROWS = 20_000
"""Rows of messages between two derivations; what fits a cache."""


class Log(NamedTuple):
    """Rows of one kind."""

    row: Ints
    """i64[places], the last row of each."""
    place: Ints
    """i64[rows]."""
    before: Ints
    """i64[rows], the row that was the last one of its place before."""
    used: Ints
    """i64[1], rows so far."""


class Tape(NamedTuple):
    """Rows of `w` numbers; `by_` are derivatives of what is learned, by the same."""

    base: Log
    low: Log
    top: Log
    said: Floats
    """f64[., F], features."""
    said_hidden: Floats
    begin: Floats
    by_begin: Floats
    """f64[., w], what all messages of a group start from."""
    x: Floats
    by_x: Floats
    """f64[., w] like all that follow; a group in a round."""
    sent_hidden: Floats
    sent: Floats
    by_sent: Floats
    """f(x), what its neighbours get in the next round."""
    got: Floats
    taken_hidden: Floats
    taken: Floats
    """The sum of what it got, and g of it."""
    by_got: Floats
    by_taken: Floats
    """f64[1, w], scratch."""
    both: Floats
    by_both: Floats
    """f64[., 2 w], x of the last round of both directions."""
    inside_hidden: Floats
    inside: Floats
    by_inside: Floats
    """f64[3 ., 2 w], what it adds to each of the three pools."""
    seen: Ints
    touched: Ints
    """i64[q], scratch: groups whose rows are new."""
    mark: Ints
    """i64[2, q], scratch: the last time that a group came up, in one direction or in any."""
    stamp: Ints
    """i64[1], times so far."""
    pool: Floats
    by_pool: Floats
    outside_hidden: Floats
    outside: Floats
    by_outside: Floats
    """f64[3, 2 w], of the group that is placed now."""
    joined: Floats
    by_joined: Floats
    """f64[1, 8 w]."""
    choose_hidden: Floats
    logits: Floats
    by_logits: Floats
    chance: Floats
    """f64[1, HIDDEN], then f64[1, D]: of each device, to be chosen."""
    nothing: Floats
    """f64[1, .], scratch, as wide as anything is."""


def tape_of(groups: Groups, hops: int, width: int, *, kept: bool) -> Tape:
    """An empty tape, with a row for each place; and many more, if they are `kept`."""
    q, devices = groups.able.shape
    low = 2 * (hops + 1) * q
    more = max(ROWS, 2 * low) if kept else 0
    top = q + more // (hops + 1)
    both = 2 * width
    wide = max(features_of(devices), HIDDEN, 4 * both)

    def log(places: int, rows: int) -> Log:
        return Log(
            np.arange(places), np.arange(rows), np.full(rows, -1), np.array([places], np.int64)
        )

    def rows(*names: str, count: int, numbers: int) -> dict[str, Floats]:
        return {name: np.zeros((count, numbers)) for name in names}

    def ids(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    floats = {
        **rows("said", count=top, numbers=features_of(devices)),
        **rows("said_hidden", "begin", "by_begin", count=top, numbers=width),
        **rows("x", "by_x", "sent_hidden", "sent", count=low + more, numbers=width),
        **rows("by_sent", "got", "taken_hidden", "taken", count=low + more, numbers=width),
        **rows("by_got", "by_taken", count=1, numbers=width),
        **rows("both", "by_both", count=top, numbers=both),
        **rows("inside_hidden", "inside", "by_inside", count=3 * top, numbers=both),
        **rows("pool", "by_pool", "outside_hidden", count=3, numbers=both),
        **rows("outside", "by_outside", count=3, numbers=both),
        **rows("joined", "by_joined", count=1, numbers=4 * both),
        **rows("choose_hidden", count=1, numbers=HIDDEN),
        **rows("logits", "by_logits", "chance", count=1, numbers=devices),
        **rows("nothing", count=1, numbers=wide),
    }
    return Tape(
        base=log(q, top),
        low=log(low, low + more),
        top=log(q, top),
        seen=ids(q),
        touched=ids(q),
        mark=ids(2, q),
        stamp=ids(1),
        **floats,
    )


@callee
def claimed(log: Log, place: int, kept: bool) -> int:
    """The row to write for a place: a new one where rows are kept, else the old one."""
    if not kept:
        return log.row[place]
    row = log.used[0]
    log.used[0] = row + 1
    log.place[row] = place
    log.before[row] = log.row[place]
    log.row[place] = row
    return row


@callee
def rewind(log: Log) -> None:
    """Only the first row of each place is left, whatever it holds."""
    for place in range(len(log.row)):
        log.row[place] = place
    log.used[0] = len(log.row)


@callee
def forget(log: Log, row: int) -> None:
    """Take back the last row; the first row of a place stays."""
    if log.before[row] >= 0:
        log.row[log.place[row]] = log.before[row]
        log.used[0] = row


@callee
def has_room(tape: Tape) -> bool:
    """Whether one more step surely fits."""
    return (
        tape.base.used[0] + 2 <= len(tape.base.place)
        and tape.low.used[0] + len(tape.low.row) <= len(tape.low.place)
        and tape.top.used[0] + len(tape.top.row) <= len(tape.top.place)
    )
