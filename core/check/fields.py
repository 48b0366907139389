"""Fields of a certificate, read with suspicion, and how much work its verification may be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any


class UnprovenError(Exception):
    """Why a certificate proves nothing, as one sentence without its subject."""


class UncheckedError(Exception):
    """Why a certificate is not looked at to the end, as a sentence without its subject."""


def field(row: object, name: str, kind: type) -> Any:
    """The field `name` of an object, of this type; whole numbers are not truth values."""
    if not isinstance(row, Mapping) or name not in row:
        raise UnprovenError(f"the field '{name}' is missing")
    return of_kind(row[name], kind, f"the field '{name}'")


def of_kind(value: object, kind: type, what: str) -> Any:
    """`value` if it has this type; large whole numbers stand as text."""
    if kind is int and isinstance(value, str) and re.fullmatch(r"-?[1-9][0-9]{15,99}", value):
        large = int(value)
        if abs(large) >= 2**53:
            return large
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = {int: "a whole number", list: "a list", dict: "an object", str: "text"}[kind]
        raise UnprovenError(f"{what} is not {wanted}")
    return value


def whole(value: object, what: str, least: int = 0) -> int:
    """A whole number of at least `least`."""
    number: int = of_kind(value, int, what)
    if number < least:
        raise UnprovenError(f"{what} is {short(number)}, expected at least {least}")
    return number


def rows(value: object, width: int, what: str) -> list[list[Any]]:
    """A list of lists of `width` entries each."""
    for row in of_kind(value, list, what):
        if len(of_kind(row, list, f"an entry of {what}")) != width:
            raise UnprovenError(f"an entry of {what} has {len(row)} parts, expected {width}")
    return value  # type: ignore[return-value]


def number(value: object, what: str) -> Fraction:
    """A finite number, exactly."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise UnprovenError(f"{what} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnprovenError(f"{what} is not finite")
    return Fraction(value)


def quantum_of(certificate: Mapping[str, Any]) -> Fraction:
    """What one unit of a certificate is worth."""
    quantum = number(certificate.get("quantum"), "the quantum")
    if quantum <= 0:
        raise UnprovenError("the quantum is not above 0")
    return quantum


def short(number: int) -> str:
    """A number for a message."""
    return str(number) if abs(number) < 10**30 else "beyond 10^30"


def printable(text: str, limit: int) -> str:
    """Text of others for a message: one line, at most `limit` characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


MOST_STEPS = 20_000_000
"""Looks at an item, a pin or a word of a bit mask; seconds on a slow machine."""

WORD = 64
"""Bits of a mask that one step looks at."""


class Budget:
    """Steps that are left, for all certificates of a stream together."""

    def __init__(self) -> None:
        self.most = self.left = MOST_STEPS

    def spend(self, steps: int) -> None:
        """Take steps away before they are made.

        Raises
        ------
        UncheckedError
            There are not so many left.
        """
        self.left -= steps
        if self.left < 0:
            raise UncheckedError(f"it takes more than {self.most} steps to verify")
