"""Finds the key of a message as brokers do: the explicit one, else that in the topic's key field.

A message whose key is missing or cannot be read is sent as one without a key: the broker decides.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from seaweedq.client.core.topics.segment_map import KeyRule
from seaweedq.segments.keyhash import hash_key

# Numbers that are written in one way only; the texts of all others are looked at.
_NUMBER = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
_decode_str: Callable[[Any], str] = msgspec.json.Decoder(str).decode


class Keys:
    """Finds the keys of messages by a topic's rule. `arrow_batches` finds those of tables with it."""

    def __init__(self, rule: KeyRule) -> None:
        self.rule = rule
        name, null = {"key": rule.field or ""}, msgspec.Raw(b"null")
        plain = msgspec.defstruct("Plain", [("key", str | _NUMBER | None, None)], rename=name)
        value = msgspec.defstruct("Value", [("key", msgspec.Raw, null)], rename=name)
        line = msgspec.defstruct("Line", [("value", value)])
        self._plain: Callable[[Any], Any] = msgspec.json.Decoder(plain).decode
        self._value: Callable[[Any], Any] = msgspec.json.Decoder(value).decode
        self._line: Callable[[Any], Any] = msgspec.json.Decoder(line).decode

    def of_line(self, key: str | None, line: bytes) -> str | None:
        """Returns the key of an envelope whose explicit key is `key`."""
        if key is not None or self.rule.field is None:
            return key
        try:
            return _text(self._line(line).value.key)
        except msgspec.DecodeError:
            return None

    def hash_of_line(self, key: str | None, line: bytes) -> int | None:
        """Returns the hash of that key; None without one."""
        found = self.of_line(key, line)
        return None if found is None else hash_key(found)

    def of_value(self, text: Any) -> str | None:
        """Returns the key in a value, JSON text; None without one, and if it cannot be read."""
        if self.rule.field is None:
            return None
        try:
            key = self._plain(text).key
            return key if key is None or type(key) is str else str(key)
        except (msgspec.DecodeError, TypeError):
            return self._unusual(text)

    def _unusual(self, text: Any) -> str | None:
        """Returns the key in a value where it may be written in several ways, or is no key at all."""
        try:
            return _text(self._value(text).key)
        except (msgspec.DecodeError, TypeError):
            return None


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text == b"null":
        return None
    return _decode_str(text) if text[:1] == b'"' else text.decode()
