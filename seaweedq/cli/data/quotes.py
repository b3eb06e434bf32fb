"""Watches the quotes of a CSV file while it is read: whether the last one that opened a value is still open."""

import io
import re
from typing import BinaryIO

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A quote counts where a value begins; two of them inside of it are one of its text. Group 1 is the quote that closes
# the value, if it is there, and group 2 is there where the value ends with it.
_QUOTED = re.compile(rb'"(?<=[,\r\n]")(?:[^"]++|"")*+("((?=[ \t]*(?:[,\r\n]|\Z)))?)?')
# Texts that leave the same state as all that was read: a value begins, or goes on without a quote that counts.
_BEGINS, _GOES_ON = b"\n", b"x"


class QuotedFile(io.RawIOBase):
    """A file of CSV that is read from its start. `open` says whether a quote is open after what was read.

    A quote that closes a value of several lines, and has more text behind it, is one that opens a value further on:
    the value before was never closed. The file ends there, with its quote open.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._state = file, b""
        self.open = False
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Returns the next bytes of the file."""
        found = b"" if self._ended else self._file.read(size)
        return self._watch(found) if found else b""

    def _watch(self, found: bytes) -> bytes:
        text = self._state + found if self._state else _BEGINS + found.removeprefix(_BYTE_ORDER_MARK)
        quoted = None
        for quoted in _QUOTED.finditer(text):
            if quoted[1] and quoted[2] is None and b"\n" in quoted[0]:
                self.open = self._ended = True
                return found[: len(found) - len(text) + quoted.end()] + b'"'  # two quotes close nothing
        self.open = quoted is not None and quoted[1] is None
        if quoted is not None and quoted.end() == len(text):
            self._state = b'\n"' + (b"\n" if b"\n" in quoted[0] else b"") + (quoted[1] or b"")
        else:
            self._state = _BEGINS if text[-1:] in (b",", b"\r", b"\n") else _GOES_ON
        return found
