"""Finds the key of a message as brokers do: the explicit one, else that in the topic's key field.

A message whose key is missing or cannot be read is sent as one without a key: the broker decides.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.client.core.topics.segment_map import KeyRule
from seaweedq.segments.keyhash import hash_key


class Keys:
    """Finds keys in lines and in tables."""

    def __init__(self, rule: KeyRule) -> None:
        self._rule = rule
        value = msgspec.defstruct(
            "Value", [("key", msgspec.Raw, msgspec.Raw(b"null"))], rename={"key": rule.field or ""}
        )
        line = msgspec.defstruct("Line", [("value", value)])
        self._value: Callable[[Any], Any] = msgspec.json.Decoder(value).decode
        self._line: Callable[[Any], Any] = msgspec.json.Decoder(line).decode

    def of_line(self, key: str | None, line: bytes) -> str | None:
        """Returns the key of an envelope whose explicit key is `key`."""
        if key is not None or self._rule.field is None:
            return key
        try:
            return _text(self._line(line).value.key)
        except msgspec.DecodeError:
            return None

    def hash_of_line(self, key: str | None, line: bytes) -> int | None:
        """Returns the hash of that key; None without one."""
        found = self.of_line(key, line)
        return None if found is None else hash_key(found)

    def of_rows(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Returns the keys of a table's rows, as strings; None if no row has one. Raises pa.ArrowException."""
        keys = rows.column("_key").cast(pa.string()) if "_key" in rows.schema.names else None
        if self._rule.field is None or (keys is not None and not keys.null_count):
            return keys
        found = self._in_values(rows, self._rule.field)
        return found if keys is None else pc.coalesce(keys, found)

    def _in_values(self, rows: pa.RecordBatch, field: str) -> pa.Array:
        if self._rule.typed:
            return (
                rows.column(field).cast(pa.string()) if field in rows.schema.names else pa.nulls(len(rows), pa.string())
            )
        return pa.array([self._of_text(text) for text in rows.column("value").to_pylist()], pa.string())

    def _of_text(self, text: Any) -> str | None:
        try:
            return _text(self._value(text).key)
        except (msgspec.DecodeError, TypeError):
            return None


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text == b"null":
        return None
    return msgspec.json.decode(text, type=str) if text[:1] == b'"' else text.decode()
