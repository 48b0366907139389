"""The exact search with parts of it switched off, to see what they are worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dnnp.core.cost.items import Items
from dnnp.core.split.ideals import search as ideal


@contextmanager
def no_contraction() -> Iterator[None]:
    """Let the ideal search take all items as they are."""

    def untouched(line: object, items: Items, *rest: object, **named: object) -> Items:
        return items

    kept = {name: getattr(ideal, name) for name in ("contract_items", "joined")}
    for name in kept:
        setattr(ideal, name, untouched)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(ideal, name, function)
