"""Whether runs did what they were asked to do, by the words of the command in the header."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from dnnp.core.check.violation import Fact, Violation, same

Record = Mapping[str, Any]

Words = Mapping[str, str]
"""Option without its hyphens -> the word after it."""

DEFAULTS = {"threads": 1.0, "seed": 0.0, "retries": 0.0}
"""Options that stand for a number where they are not given."""

WARMUP = 3
"""Samples for each replica of a stage that go before files, where nothing says how many."""


_SAMPLES = re.compile(r"-[qv]*n=?(.*)")
"""The short form of `--samples`, among others or not."""


def check_asked(header: Record, runs: Sequence[Record]) -> list[Violation]:
    """Return what runs state that the command which made them was not asked for.

    Where nothing says how they were made, nothing is known.
    """
    made = [e["arguments"] for e in header["provenance"] if e["tool"] == "dnnp-run"]
    words = _said(made[-1]) if made else {}
    return [
        violation
        for number, run in enumerate(runs if made else ())
        if run["mode"] == "pipeline"
        for violation in _asked(run, words, f"run {number}")
    ]


def _wrong(subject: str, name: str, stated: Fact, expected: Fact, words: str) -> Violation:
    message = f"{name} is {stated!r}, but {words} asks for {expected!r}"
    return Violation("value", subject, message, expected, stated)


def _asked(run: Record, words: Words, subject: str) -> Iterator[Violation]:
    """Numbers that were given are those of the record."""
    served = run.get("arrivals") or run.get("sweep") or {}
    for flag, record, name in (
        ("threads", run, "threads"),
        ("rtol", run, "rtol"),
        ("atol", run, "atol"),
        ("duration", run, "duration_s"),
        ("rate", run.get("arrivals", {}), "rate_per_s"),
        ("seed", served, "seed"),
    ):
        expected = _number(words, flag)
        if name in record and expected is not None and not same(record[name], expected):
            yield _wrong(subject, name, record[name], expected, f"--{flag}")
    yield from _samples(run, words, subject)
    yield from _restarts(run, words, subject)
    if "files" in run:
        yield from _files(run, words, subject)


def _samples(run: Record, words: Words, subject: str) -> Iterator[Violation]:
    """As many samples as were asked for went through in each round, and at each rate."""
    wanted = _number(words, "samples")
    if wanted is None or run.get("interrupted") or "files" in run:
        return
    rows: Sequence[Record] = run.get("sweep", {}).get("rates", ())
    counts = [run["samples"] / run.get("rounds", 1), *(row["samples"] for row in rows)]
    for count in counts:
        if count != wanted:
            yield _wrong(subject, "samples", count, wanted, "-n")


def _restarts(run: Record, words: Words, subject: str) -> Iterator[Violation]:
    """No worker was started again more often than allowed, nor for a sample that there was not."""
    most = _number(words, "retries")
    losses: Sequence[Record] = run.get("restarts", ())
    for worker, count in Counter(loss["worker"] for loss in losses).items():
        if most is not None and count > most:
            yield _wrong(subject, f"restarts of {worker}", count, most, "--retries")
    passes = [run["samples"] + run.get("discarded", 0)]
    passes += [row["samples"] for row in run.get("sweep", {}).get("rates", ())]
    for loss in losses:
        if loss["sample"] >= max(passes) and not run.get("interrupted"):
            message = f"{loss['worker']} was lost with sample {loss['sample']}, "
            message += f"of at most {max(passes)} that went through"
            yield Violation("value", subject, message, max(passes), loss["sample"])


def _files(run: Record, words: Words, subject: str) -> Iterator[Violation]:
    """What became of files adds up to the samples that went through."""
    files = run["files"]
    for name, flag in (("failed", "keep-going"), ("skipped", "outputs")):
        if files[name] and flag not in words:
            message = f"{files[name]} files are {name}, which takes --{flag}"
            yield Violation("value", subject, message, 0, files[name])
    most = _number(words, "samples")
    if most is not None and files["written"] > most:
        yield _wrong(subject, "files written", files["written"], most, "-n")
    through = run["samples"] + run.get("discarded", 0)
    if through and not run.get("interrupted"):
        given = _number(words, "warmup")
        copies = max((entry.get("replicas", 1) for entry in run.get("stages", ())), default=1)
        through -= int(WARMUP if given is None else given) * copies
        # A file that fails in a stage went through; one that cannot be read did not.
        if not through - files["failed"] <= files["written"] <= through:
            message = f"{files['written']} files were written and {files['failed']} failed, "
            message += f"but {through} went through after the warm-up"
            yield Violation("value", subject, message, through, files["written"])


def _said(words: Sequence[str]) -> Words:
    """What stands after each option, the last time that it is there."""
    found = {}
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        short = _SAMPLES.fullmatch(word)
        if short:
            found["samples"] = short[1] or after
        elif name.startswith("--"):
            found[name[2:]] = value if equals else after
    return found


def _number(words: Words, flag: str) -> float | None:
    """The number that an option was given, or its default; None: it says no number."""
    try:
        return float(words[flag]) if flag in words else DEFAULTS.get(flag)
    except ValueError:
        return None
