"""What a file is, by its beginning: for messages about one that is not what was expected."""

from __future__ import annotations

import re

_STREAM = re.compile(rb'\s*\{\s*"type"\s*:\s*"header"')
_ONNX = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x3a\x42]", re.DOTALL)
"""A small version of the format, then the next field of a model: producer, domain, graph, ..."""

KINDS: dict[str, tuple[re.Pattern[bytes], str]] = {
    "stream": (_STREAM, "a stream, which the commands after dnnp-import read"),
    "model": (_ONNX, "an ONNX model; dnnp-import makes a stream of it"),
    "lfs": (re.compile(rb"version https://git-lfs"), "a pointer of Git LFS; git lfs pull gets it"),
    "gzip": (re.compile(rb"\x1f\x8b"), "compressed by gzip; gunzip it first"),
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd"), "compressed by zstd; unzstd it first"),
    "zip": (re.compile(rb"PK\x03\x04"), "a zip archive; unzip it first"),
    "page": (re.compile(rb"\s*<(!DOCTYPE|html|HTML)"), "a web page"),
}
"""Kind -> how it begins, and what it is, with what to do about it."""


def what_it_is(data: bytes, wanted: str = "") -> str:
    """The end of a message about a file that is not of the kind wanted; empty if nobody knows.

    >>> what_it_is(b'{"type":"header"}', "model")
    '; it is a stream, which the commands after dnnp-import read'
    >>> what_it_is(b'{"type":"header"}', "stream"), what_it_is(b"???")
    ('', '')
    """
    start = data[:200]
    for kind, (beginning, text) in KINDS.items():
        if beginning.match(start):
            return "" if kind == wanted else f"; it is {text}"
    return ""
