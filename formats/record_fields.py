"""Fields that records of several kinds have."""

from __future__ import annotations

from dnnp.formats.fields import Field


def unique_id(doc: str) -> Field:
    """The id of a record."""
    return Field("id", doc, required=True)


def ids(doc: str, *, required: bool = True, unique: bool = True) -> Field:
    """Ids of other records."""
    return Field("list", doc, required=required, unique=unique, items=Field("id", ""))


def number(doc: str, *, required: bool = False, positive: bool = False) -> Field:
    """A number."""
    return Field("number", doc, required=required, positive=positive)


def string(doc: str, *, required: bool = False, enum: tuple[str, ...] = ()) -> Field:
    """A string, or one of some."""
    return Field("string", doc, required=required, enum=enum)


TIMES = Field(
    "map",
    "seconds by device class; a class that is absent cannot run it",
    items=Field("number", ""),
)
HEX = "^[0-9a-f]{64}$"
DIGEST = Field("string", "digest of what it was computed from", required=True, pattern=HEX)
