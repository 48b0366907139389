"""Columns for tensors that cross the border of a place (2020 paper, constraints (4) and (5)).

For a tensor with source s and a place p,

    in[p] >= x[r, p] - x[s, p],    out[p] >= x[s, p] - x[r, p]    for every reader r,

so a tensor is paid once, however many readers it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnnp.core.mip.split.draft import NEGLIGIBLE, Draft, Term
from dnnp.core.mip.split.task import Net


class Transfers(NamedTuple):
    """What a place pays for transfers, for each load that is optimised."""

    arriving: list[list[Term]]
    leaving: list[list[Term]]


def transfers_of(draft: Draft, i: int, nets: Sequence[Net]) -> Transfers:
    """Add the columns and rows of place `i`; return the terms of its loads."""
    found = Transfers([[] for _ in draft.tops], [[] for _ in draft.tops])
    both = draft.task.options.comm != "duplex"
    for net in nets:
        price = draft.price(draft.places[i], net.cost)
        if price <= NEGLIGIBLE:
            continue
        part = int(net.backward)
        if net.source >= 0 and net.always:
            found.leaving[part].append((draft.x[net.source][i], price))
        if not net.readers:
            continue
        if net.source >= 0 and not net.always:
            if price > draft.upper:
                _keep_whole(draft, i, net)
                continue
            if both and len(net.readers) == 1:
                found.arriving[part].append((_parted(draft, i, net.source, net.readers[0]), price))
                continue
            found.leaving[part].append((_leaving(draft, i, net), price))
        found.arriving[part].append((_arriving(draft, i, net), price))
    return found


def _arriving(draft: Draft, i: int, net: Net) -> int:
    """Column: some reader is in the place, the source is not."""
    readers, source = list(net.readers), net.source
    column = draft.column(
        lambda at: float((at[readers] == i).any() and (source < 0 or at[source] != i))
    )
    for r in readers:
        _at_least(draft, column, draft.x[r][i], draft.x[source][i] if source >= 0 else -1)
    return column


def _leaving(draft: Draft, i: int, net: Net) -> int:
    """Column: the source is in the place, some reader is not."""
    readers, source = list(net.readers), net.source
    column = draft.column(lambda at: float(at[source] == i and (at[readers] != i).any()))
    for r in readers:
        _at_least(draft, column, draft.x[source][i], draft.x[r][i])
    return column


def _parted(draft: Draft, i: int, a: int, b: int) -> int:
    """Column: one of two items is in the place, the other is not."""
    column = draft.column(lambda at: float((at[a] == i) != (at[b] == i)))
    _at_least(draft, column, draft.x[a][i], draft.x[b][i])
    _at_least(draft, column, draft.x[b][i], draft.x[a][i])
    return column


def _at_least(draft: Draft, column: int, more: int, less: int) -> None:
    """column >= more - less."""
    if more >= 0:
        draft.row([(column, 1.0), (more, -1.0), (less, 1.0)], ">", 0.0)


def _keep_whole(draft: Draft, i: int, net: Net) -> None:
    """The transfer alone is beyond the limit: all its items are in the place, or none."""
    for r in net.readers:
        draft.row([(draft.x[net.source][i], 1.0), (draft.x[r][i], -1.0)], "=", 0.0)
