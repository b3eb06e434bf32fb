"""A message as users see it. It decodes its value when asked, and knows where its ack goes."""

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UnsetType

from seaweedq.client.wire import PageAnswer, WireMessage, encode
from seaweedq.errors import ClientError


def _nothing_to_ack(id: str) -> None:
    raise ClientError(f"message {id} was fetched, not delivered by a subscription: there is nothing to ack", id=id)


class Message:
    """One message. Read only, apart from `ack`."""

    __slots__ = ("_ack", "_wire")

    def __init__(self, wire: WireMessage, ack: Callable[[str], None] = _nothing_to_ack) -> None:
        self._wire, self._ack = wire, ack

    @property
    def id(self) -> str:
        """`{segment}-{offset}`, unique in the topic."""
        return self._wire.id

    @property
    def key(self) -> str | None:
        """The key, if it has one."""
        return self._wire.key

    @property
    def value(self) -> Any:
        """The value: decoded JSON, the object of a typed topic's fields, or the bytes of a `bytes` topic."""
        value = self._wire.value
        return self.raw if isinstance(value, UnsetType) else msgspec.json.decode(value)

    @property
    def raw(self) -> bytes:
        """The value as stored: its JSON text, or the bytes of a `bytes` topic."""
        wire = self._wire
        if not isinstance(wire.value, UnsetType):
            return bytes(wire.value)
        return b"" if isinstance(wire.value_base64, UnsetType) else base64.b64decode(wire.value_base64)

    @property
    def json(self) -> bytes:
        """The whole message as a broker gives it, as one line of JSON."""
        return encode(self._wire)

    @property
    def headers(self) -> dict[str, str]:
        """The publisher's headers, empty where there are none."""
        return self._wire.headers or {}

    @property
    def timestamp(self) -> datetime:
        """The publisher's time, else the broker's; UTC."""
        return self._wire.timestamp

    @property
    def segment(self) -> int:
        """The segment it is in."""
        return self._wire.segment

    @property
    def offset(self) -> int:
        """Its position there, from 0."""
        return self._wire.offset

    @property
    def attempt(self) -> int:
        """How often it was delivered to the subscription, this time included; 1 for a fetched one."""
        attempt = self._wire.attempt
        return 1 if isinstance(attempt, UnsetType) else attempt

    @property
    def reference(self) -> dict[str, Any] | None:
        """What the broker says of a payload published by reference (`uri`, `size`, `sha256`, `url`), else None."""
        return self._wire.reference or None

    def ack(self) -> None:
        """Have it never delivered again. Sent in the background with others, so that it returns at once.

        Raises ClientError for a message that was fetched.
        """
        self._ack(self._wire.id)

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, key={self.key!r}, value={self.raw[:80]!r})"


class Page:
    """The answer to a fetch: the messages, and where to go on."""

    __slots__ = ("messages", "next_offset", "sealed", "successors")

    def __init__(self, answer: PageAnswer) -> None:
        self.messages = [Message(wire) for wire in answer.messages]
        self.next_offset = answer.next_offset
        self.sealed = answer.sealed
        self.successors = answer.successors
