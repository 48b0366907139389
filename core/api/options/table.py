"""One table of options: parsers, help, manual, completion and keywords of Python follow from it.

A class of `Options` has a row for each field. Commands start with it, so that it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, dataclass_transform

from dnnp.callbacks import CALLBACKS, Callbacks
from dnnp.core.model.errors import UsageError

if TYPE_CHECKING:
    from typing import Self

P = ParamSpec("P")
T = TypeVar("T")


class _Row:
    """Takes fields as keywords."""

    def __init__(self, default: Any = None, flag: Any = None, **about: Any) -> None:
        self.__dict__.update(about, default=default, flag=flag)


@dataclass_transform()
def _typed(kind: type[T]) -> type[T]:
    return kind


# No `dataclass` here and below: its module takes longer to import than `--help` to print.
@_typed
class Option(_Row):
    """A row of the table: an option of a command, and a keyword of Python."""

    default: Any = None
    """Its value where nothing is said."""
    flag: str | None = None
    """Its long form; None: the field's name with hyphens; empty: the command has none."""
    short: str = ""
    """Its form of one letter, such as `-n`."""
    choices: tuple[str, ...] = ()
    """Values that a text may have."""
    several: bool = False
    """Several of them may be given, between commas."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    """The range of a number."""
    unit: str = ""
    """Numbers that may be text too, which `formats.inputs.amounts.parse_UNIT` reads."""
    words: tuple[str, ...] = ()
    """Words that may stand in place of a number."""
    const: Any = None
    """Its value where it is given without one; None: it must have one."""
    json: bool = False
    """A list is one argument, which the command takes from a file."""
    needs: tuple[str, ...] = ()
    """Of these one must be given too: a flag, and after it the values of which it must have one."""
    apart: str = ""
    """Of options that have the same here only one may be given."""
    show: Callable[[Any, Any], str] | None = None
    """The command prints this text, made from parser and value, and does nothing else."""
    metavar: str | None = None
    """Name of its value; None: its choices."""
    group: str | None = None
    """Heading in help; None: that of the option before."""
    page: bool = False
    """It is on the page of `--help`, with its help up to the first semicolon or parenthesis."""
    tuning: bool = False
    """Commands take it as `--set KEY=VALUE`; `--help-all` does not list its flag."""
    help: str = ""
    """Its purpose; starts small, without full stop."""
    name: str = ""
    type: str = ""
    """Field and annotation, from the class."""

    @property
    def kind(self) -> str:
        """The first of its types: int, float, str, bool, Sequence (it may be repeated), ..."""
        return self.type.partition(" | ")[0].partition("[")[0]

    @property
    def flags(self) -> tuple[str, ...]:
        """Names by which the command takes it."""
        return (self.short, str(self.flag)) if self.short else (str(self.flag),)

    @property
    def key(self) -> str:
        """The flag without hyphens in front, as `--set` names it."""
        return str(self.flag).lstrip("-")

    def amount(self, text: str) -> Any:
        """Read a number with its unit; ValueError: it is none."""
        if text in self.words:
            return text
        from dnnp.formats.inputs import amounts

        return getattr(amounts, f"parse_{self.unit}")(text)

    def given(self, value: Any) -> bool:
        """Tell whether a value is another than the default."""
        if value is self.default or (value == [] and self.kind == "Sequence"):
            return False
        return self.default is None or bool(value != self.default)

    def check(self, value: Any) -> None:
        """Refuse a value that is none of the choices, or out of range.

        Raises
        ------
        UsageError
            The message names the option.
        """
        if value is None or value in self.words:
            return
        if self.choices:
            for word in value.split(",") if self.several else [value]:
                if word not in self.choices:
                    known = ", ".join(self.choices)
                    raise UsageError(f"{self.flag} {word!r}: must be one of {known}")
        if (self.least, self.above, self.most) == (None, None, None):
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            others = "".join(f" or {word}" for word in self.words)
            raise UsageError(f"{self.flag} {value!r}: must be a number{others}")
        if self.least is not None and not value >= self.least:
            raise UsageError(f"{self.flag} {value}: must be at least {self.least:g}")
        if self.above is not None and not value > self.above:
            raise UsageError(f"{self.flag} {value}: must be above {self.above:g}")
        if self.most is not None and not value <= self.most:
            raise UsageError(f"{self.flag} {value}: must be at most {self.most:g}")


def _untyped(row: Callable[P, Option]) -> Callable[P, Any]:
    return row


option = _untyped(Option)
"""A row, as the value of a field of any type."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _Table:
    """Makes rows of the fields of its subclasses, and a frozen class of each."""

    rows: ClassVar[dict[str, Option]] = {}
    """Field -> row."""

    def __init_subclass__(cls, *, first: bool = False) -> None:
        """`first`: its rows come before those of the base class."""
        rows: dict[str, Option] = {}
        for name, type_ in cls.__annotations__.items():
            row = vars(cls).get(name)
            if isinstance(row, Option):
                rows[name], row.name, row.type = row, name, type_
                if row.flag is None:
                    row.flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
                setattr(cls, name, row.default)
        cls.rows = rows | cls.rows if first else cls.rows | rows

    def __init__(self, **given: Any) -> None:
        for name, value in given.items():
            row = self.rows.get(name)
            if row is None and name != "caller":
                raise TypeError(f"{type(self).__name__}: unknown option {name!r}")
            if row is not None and row.several and not isinstance(value, str):
                value = ",".join(value)
            if row is not None and row.unit and isinstance(value, str):
                try:
                    value = row.amount(value)
                except ValueError as error:
                    raise UsageError(f"{row.flag}: {error}") from None
            self.__dict__[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


class Options(_Table):
    """Base of the options of a step; each is named as that of the command which does the same."""

    caller: Callbacks = CALLBACKS
    """Whom the step tells what it does."""

    def check(self) -> None:
        """Refuse options that make no sense, before there is any work.

        Raises
        ------
        UsageError
            A value is out of its range, or options exclude each other; the message names them.
        """
        apart: dict[str, str] = {}
        for row in self.rows.values():
            value = getattr(self, row.name)
            row.check(value)
            if row.needs and row.given(value) and not any(map(self._meets, row.needs)):
                needed = " or ".join(need.replace("|", " or ") for need in row.needs)
                raise UsageError(f"{row.flag} is for {needed}")
            if row.apart and row.given(value):
                other = apart.setdefault(row.apart, str(row.flag))
                if other != row.flag:
                    raise UsageError(f"give {other} or {row.flag}, not both")
            if row.kind == "Sequence" and isinstance(value, str | os.PathLike):
                raise UsageError(f"{row.flag} {os.fspath(value)!r}: give a list")

    def _meets(self, need: str) -> bool:
        """Tell whether a flag is given, with one of the values after it if there are any."""
        flag, _, words = need.partition(" ")
        row = next(row for row in self.rows.values() if row.flag == flag)
        value = getattr(self, row.name)
        if not words:
            return row.given(value)
        found = value.split(",") if isinstance(value, str) else value or ()
        return not {*words.split("|")}.isdisjoint(found)

    def replaced(self, **changes: Any) -> Self:
        """The same options but for some."""
        mine = {name: value for name, value in vars(self).items() if name in (*self.rows, "caller")}
        return type(self)(**{**mine, **changes})

    def words(self) -> list[str]:
        """The arguments by which the command does the same."""
        words: list[str] = []
        for row in self.rows.values():
            value, flag = getattr(self, row.name), row.flag
            if not flag or not row.given(value):
                continue
            if value is True:
                words.append(flag)
            elif row.json and not isinstance(value, str | os.PathLike):
                words += [flag, str(list(value))]
            elif isinstance(value, str | os.PathLike | int | float):
                words += [flag, _text(value)]
            else:
                items = value.items() if isinstance(value, Mapping) else value
                for item in items:
                    parts = item if isinstance(item, tuple) else [item]
                    words += [flag, "=".join(map(_text, parts))]
        return words


def _text(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
