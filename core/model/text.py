"""Text for messages: numbers with units, and what a misspelt name was meant to be.

What others wrote is made safe for terminals, for XML, for spreadsheets and for Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

_UNSAFE = (
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: what terminals obey
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of writing
    "\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]"  # line breaks, and what XML does not admit
)


def printable(text: str) -> str:
    r"""Text on one line, with control characters shown as escapes.

    Names are bytes from elsewhere: raw, they could move the cursor, ring the bell,
    rewrite the line above or turn the direction of writing. What is printable already stays as
    it is, so that it does no harm to call this twice.

    >>> print(printable("\x1b[31mred\x00 a\u202eb\n"))
    \x1b[31mred\x00 a\u202eb\n
    """
    if text.isprintable():  # compiling the pattern takes memory that a message about its want lacks
        return text
    return re.sub(_UNSAFE, lambda match: match[0].encode("unicode_escape").decode(), text)


_FORMULA = "[\\s\u200b']*[=+\\-@\uff0b\uff0d\uff1d\uff20]"
"""First characters of a spreadsheet formula, or of one that an apostrophe disarms."""


def guarded(text: str) -> str:
    """Text for a cell of a table; what a spreadsheet would compute gets an apostrophe in front.

    >>> guarded("=1+1"), guarded("'=1+1"), guarded("conv-1")
    ("'=1+1", "''=1+1", 'conv-1')
    """
    return f"'{text}" if re.match(_FORMULA, text) else text


def unguarded(cell: str) -> str:
    """The text that `guarded` made a cell of.

    >>> unguarded("'=1+1"), unguarded("''=1+1"), unguarded("'a'")
    ('=1+1', "'=1+1", "'a'")
    """
    return cell[1:] if cell.startswith("'") and re.match(_FORMULA, cell) else cell


_MARKS = r"[<>&\[\]@\\`*~|#$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=(?i:www))\."
"""Characters with a meaning in Markdown, or that make a link of an address."""


def markdown(text: str) -> str:
    r"""Text on one line for a cell of a table in Markdown, which is shown as it is.

    No HTML, link, picture, emphasis or code begins in it. Underscores within words stay.

    >>> print(markdown("<b>[a_b](http://e)|_c_</b>"))
    &#60;b&#62;&#91;a_b&#93;(http&#58;//e)\|\_c\_&#60;/b&#62;
    """

    def escaped(found: re.Match[str]) -> str:
        mark = found[0]
        return f"&#{ord(mark)};" if mark in "<>&[]@:." else f"\\{mark}"

    return re.sub(_MARKS, escaped, text)


def operator_name(op: str, domain: str) -> str:
    """Type of an operator for people, with its domain if that is not the usual one."""
    return f"{domain}:{op}" if domain else op


def counted(count: int, noun: str) -> str:
    """A number of things, for messages.

    >>> counted(1, "group"), counted(2, "group")
    ('1 group', '2 groups')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def shown_bytes(value: float | None, digits: int = 4) -> str:
    """A number of bytes, by powers of ten; `-` where there is none, or no limit.

    >>> shown_bytes(80e9), shown_bytes(16000001234, 9), shown_bytes(256)
    ('80 GB', '16.0000012 GB', '256 B')
    """
    if value is None or not isfinite(value):
        return "-"
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.{digits}g} {unit}"
    return f"{value:.{digits}g} B"


def shown_seconds(value: float, digits: int = 4) -> str:
    """A number of seconds.

    >>> shown_seconds(0.00197654), shown_seconds(2.5e-5), shown_seconds(1234.0)
    ('1.977 ms', '25 us', '1234 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1.0, "s")):
        if value * factor < 999.95:
            return f"{value * factor:.{digits}g} {unit}"
    return f"{value:.0f} s"


def shown_time(value: float | None, in_seconds: bool, digits: int = 4) -> str:
    """A time, without a unit where that is not known; `-` where there is none.

    >>> shown_time(0.00197654, True), shown_time(0.00197654, False)
    ('1.977 ms', '0.00197654')
    """
    if value is None or not isfinite(value):
        return "-"
    return shown_seconds(value, digits) if in_seconds and value else f"{value:.{max(digits, 6)}g}"


def shown_share(value: float) -> str:
    """A share or a gap in percent: `12 %`, and below ten two digits.

    >>> shown_share(0.123), shown_share(0.0123), shown_share(0.00012345), shown_share(8e-6)
    ('12 %', '1.2 %', '0.012 %', '0.0008 %')
    >>> shown_share(0.0), shown_share(1e-7)
    ('0 %', '<0.0001 %')
    """
    if value >= 0.0995:
        return f"{100 * value:.0f} %"
    if 0 < value < 1e-6:
        return "<0.0001 %"
    return f"{100 * value:.2g} %"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> list[str]:
    """Lines of a table: the columns `left` to the left, the others to the right."""
    rows = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def called(op: str, name: str, outputs: Sequence[str]) -> str:
    """Name of a node; of one without a name, its operator and its first output.

    >>> called("MatMul", "", ["", "m0"]), called("MatMul", "product", ["m0"])
    ('MatMul:m0', 'product')
    """
    first = next(filter(None, outputs), "")
    return name or (f"{op}:{first}" if first else op)


def located_words(found: Mapping[str, Any]) -> str:
    """Name the tensor at which a run parts from the whole model, and the reason; or nothing.

    >>> located_words({"tensor": "y", "stage": 1, "operator": "Add", "node": "sum", "reason": "-"})
    "tensor 'y' of stage 1 is the first to part, made by Add 'sum': -"
    """
    if "tensor" not in found:
        return str(found.get("reason", ""))
    layer = f" in layer {found['layer']}" if "layer" in found else ""
    reason = f": {found['reason']}" if "reason" in found else ""
    return (
        f"tensor '{found['tensor']}' of stage {found['stage']} is the first to part, made by "
        f"{found['operator']} '{found['node']}'{layer}{reason}"
    )


_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.[A-Za-z_]\w*")


def scope_of_name(name: str) -> str:
    """Scope that a name implies: all before its last slash or, if it has none, its last dot.

    >>> scope_of_name("/layer.3/attn/MatMul"), scope_of_name("layers.0.mlp.Relu")
    ('/layer.3/attn', 'layers.0.mlp')
    >>> scope_of_name("Conv.1"), scope_of_name("MatMul_3")
    ('', '')
    """
    if "/" not in name and _DOTTED.fullmatch(name):
        return name.rpartition(".")[0]
    return name.rpartition("/")[0]


LEAST = 0.7
"""Similarity of two words, from 0 to 1, that is enough: more than that of `gpu` and `cpu`."""

LONGEST = 100
"""Characters of words that are compared: the time is quadratic in them."""

MOST_LISTED = 16
"""More names than this make no readable list."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a word begins, or resembles most; None if none does. Case is ignored.

    >>> closest("exakt", ["anneal", "exact"]), closest("A100", ["a100"]), closest("foo", ["exact"])
    ('exact', 'a100', None)
    """
    import difflib

    if len(word) > LONGEST:
        return None
    names = {name.lower(): name for name in known if len(name) <= LONGEST}
    longer = [name for name in names if len(word) > 2 and name.startswith(word.lower())]
    found = longer if len(longer) == 1 else difflib.get_close_matches(word.lower(), names, 1, LEAST)
    return names[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: a question, or nothing.

    >>> did_you_mean("exakt", ["anneal", "exact"])
    "; did you mean 'exact'?"
    """
    name = closest(word, known)
    return "" if name is None else f"; did you mean '{name}'?"


def instead(word: str, known: Iterable[str], more: str = "") -> str:
    """The end of a message about an unknown word: the name it resembles, else the known ones.

    `more` says, after a list, what else may stand there.

    >>> instead("exakt", ["anneal", "exact"]), instead("foo", ["anneal", "exact"], "or a file")
    ("; did you mean 'exact'?", '; known: anneal, exact, or a file')
    """
    names = list(known)
    hint = did_you_mean(word, names)
    if hint or not 0 < len(names) <= MOST_LISTED:
        return hint
    return "; known: " + ", ".join([*names, *([more] if more else [])])
