"""Text of prompts and tokens, by the package `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from dnnp.core.model.errors import FormatError, InputFileError, UnavailableError


class Text:
    """A tokenizer, which is read when it is needed, and the texts of sequences."""

    def __init__(self, read: Callable[[str], bytes], file: str, wanted: bool) -> None:
        self._read, self._file, self.wanted = read, file, wanted
        self._tails: dict[int, tuple[list[int], int]] = {}
        """Last tokens of each sequence, as spaces depend on those before; how many are said."""
        self.texts: dict[int, str] = {}

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer. UnavailableError: no package; FormatError: the file holds none."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UnavailableError("text needs tokenizers: pip install 'dnnp[text]'") from None
        try:
            data = self._read(self._file)
        except InputFileError as error:
            raise InputFileError(f"{error} (--tokenizer FILE)") from None
        try:
            return Tokenizer.from_str(data.decode())
        except Exception as error:  # the package raises no class of its own
            raise FormatError(f"no tokenizer: {error}", self._file) from None

    def ids(self, text: str) -> list[int]:
        """Tokens of a prompt."""
        self.wanted = True
        return list(self.tokenizer.encode(text).ids)

    def piece(self, sequence: int, token: int, ended: bool) -> str:
        """Add a token to the text of its sequence; returns what is new, in whole characters."""
        tail, said = self._tails.get(sequence, ([], 0))
        tail = [*tail, token]
        before, now = map(self.tokenizer.decode, (tail[:said], tail))
        whole = len(now) > len(before) and not now.endswith("\ufffd")  # else amid a character
        piece = now[len(before) :] if whole or ended else ""
        self._tails[sequence] = (tail[said:], len(tail) - said) if whole else (tail, said)
        self.texts[sequence] = self.texts.get(sequence, "") + piece
        return piece
