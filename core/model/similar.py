"""What a misspelt name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable

LEAST = 0.7
"""Similarity of two words, from 0 to 1, that is enough: more than that of `gpu` and `cpu`."""

MOST_LISTED = 16
"""More names than this make no readable list."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that a word begins, or resembles most; None if none does. Case is ignored.

    >>> closest("exakt", ["anneal", "exact"]), closest("A100", ["a100"]), closest("foo", ["exact"])
    ('exact', 'a100', None)
    """
    import difflib

    names = {name.lower(): name for name in known}
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
