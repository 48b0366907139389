"""Numbers of bytes, times and rates as people write them: `16G`, `10GB/s`, `5us`, `100/s`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dnnp.formats.fields import MAX_NUMBER, MIN_POSITIVE

_FACTORS = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


def parse_bytes(text: str, ending: str, what: str, examples: str) -> float:
    """A number of bytes with a prefix; `B` and the ending may follow.

    Raises
    ------
    ValueError
        It is none, or not above 0; the message names `what` it should be, with `examples`.
    """
    plain = text.removesuffix(ending).removesuffix("B")
    digits = plain.rstrip("kKMGTi")
    try:
        factor, value = _FACTORS[plain[len(digits) :]], float(digits)
    except (KeyError, ValueError):
        bits = "; 8 bits are a byte" if ending and text.endswith(("b/s", "bit/s", "bps")) else ""
        raise ValueError(f"'{text}' is not {what}, such as {examples}{bits}") from None
    value *= factor
    if not MIN_POSITIVE <= value <= MAX_NUMBER:
        fault = "is not above 0" if not value > 0 else f"is not from {MIN_POSITIVE} to {MAX_NUMBER}"
        raise ValueError(f"'{text}' {fault}")
    return value


def parse_rate(text: str) -> float:
    """A bandwidth in bytes per second, with or without suffix and unit: `10G`, `10GB/s`."""
    return parse_bytes(text, "/s", "a bandwidth in bytes per second", "12G or 12GB/s")


def parse_size(text: str) -> float:
    """A size in bytes, with or without suffix and unit: `16G`, `512MiB`, `1.5e9`."""
    return parse_bytes(text, "", "a size", "16G or 512MiB")


def parse_limits(text: str, read: Callable[[str], float]) -> dict[str, float]:
    """Device -> number of `16G,a100/0=9G`; "" stands for all others. ValueError: as of `read`."""
    words = [word.rpartition("=") for word in text.split(",")]
    found = {name: read(number) for name, _, number in words}
    if len(found) < len(words):
        raise ValueError(f"'{text}' states one twice")
    return found


def parse_share_or_size(text: str) -> float:
    """A share up to 1, or a size in bytes above that: `0.9`, `14Gi`."""
    return parse_bytes(text, "", "a share or a size", "0.9 or 14Gi")


def parse_frequency(text: str) -> float:
    """A number a second: `100/s`, `1.5K/s`, `100`.

    Raises
    ------
    ValueError
        It is none, or not above 0.
    """
    if "B" in text:
        raise ValueError(f"'{text}' is not a number a second, such as 100/s")
    return parse_bytes(text, "/s", "a number a second", "100/s")


def _seconds(text: str, units: Mapping[str, float], fault: str) -> float:
    """Seconds of a number with one of the units, or without if "" is among them, or if it is 0."""
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit)) / units.get(unit, 1.0)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_NUMBER or (value and unit not in units):
        raise ValueError(f"'{text}' is not {fault}")
    return value


def parse_latency(text: str) -> float:
    """A time in seconds, with its unit: `5us`, `0.2ms`, `0`. ValueError: it is none, or below 0."""
    return _seconds(text, _PER_SECOND, "a latency with its unit, such as 5us or 0.2ms")


def parse_duration(text: str) -> float:
    """A time in seconds: `90`, `5s`, `2m`, `1h`, `500ms`. ValueError: it is none, or below 0."""
    units = {"ms": 1e3, "s": 1.0, "m": 1 / 60, "h": 1 / 3600, "": 1.0}
    return _seconds(text, units, "a time, such as 90, 5s or 2m")
