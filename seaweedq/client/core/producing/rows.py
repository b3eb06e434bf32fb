"""Messages that are a key and a value alone, as columns: one Arrow stream, which costs client and broker a fraction of
what as many lines do. Where a broker refuses some of them they go again as lines."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from seaweedq.client.core.producing.row_streams import stream_of_rows
from seaweedq.client.core.protocol.wire import BytesEnvelope, Envelope, encode

MOST_BYTES = 64 * 1024  # of a value: larger ones are lines, which may go by reference
FEWEST = 100  # rows that are worth an Arrow stream: a broker's work for one has a fixed part
# Values that are looked at, or copied, as they become lines; bytes are those of a subclass, such as numpy.bytes_.
_LINES = (bytes, bytearray, memoryview, msgspec.Raw)
_LINE_BYTES = 40  # of a line beside its key and its value


@dataclass(slots=True)
class Rows:
    """Rows of one kind: values of bytes, or JSON texts."""

    is_binary: bool
    keys: list[str | None] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def lines(self) -> list[bytes]:
        """Returns the rows as lines of JSON, as `envelope` makes them."""
        return [line_of(key, value, self.is_binary) for key, value in zip(self.keys, self.values, strict=True)]

    def stream(self) -> bytes:
        """Returns the rows as an Arrow stream."""
        return stream_of_rows(self.keys, self.values, self.is_binary)


def row_of(value: Any, key: str | None, limit_bytes: int) -> tuple[bytes, bool, int] | None:
    """Returns the value's bytes, whether they are binary, and a bound of their line's size; None for what has to be
    a line, as values over `limit_bytes` have.

    Raises TypeError for a value that JSON cannot express, ValueError for a text that is not Unicode.
    """
    if key is None:
        size = _LINE_BYTES
    elif type(key) is str and (key.isascii() or _is_unicode(key)):
        size = _LINE_BYTES + 6 * len(key)
    else:
        return None
    if type(value) is bytes:
        count = len(value)
        return None if count > limit_bytes or count > MOST_BYTES else (value, True, size + 4 * count // 3)
    if isinstance(value, _LINES):
        return None
    data = encode(value)
    count = len(data)
    return None if count > limit_bytes or count > MOST_BYTES else (data, False, size + count)


def line_of(key: str | None, value: bytes, is_binary: bool) -> bytes:
    """Returns a row as a line of JSON."""
    return encode(BytesEnvelope(value, key) if is_binary else Envelope(msgspec.Raw(value), key))


def _is_unicode(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
