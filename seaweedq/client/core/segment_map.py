"""A topic's segment map for a producer: the owner of each key range, as one broker saw it recently; when the map is
fetched; and the key of a message, found as brokers find it: the explicit one, else that in the topic's key field.

A message whose key is missing or cannot be read is sent as one without a key: the broker decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any

import msgspec

from seaweedq.client.core.calls import call, schema, topic_path
from seaweedq.client.core.effects import Request, Steps
from seaweedq.client.core.problems import check
from seaweedq.segments.keyrange import hash_key


class Segment(msgspec.Struct, frozen=True):
    """A segment: half-open range of key hashes, and its owner, if it has one that is reached at `owner_url`."""

    id: int
    low: int
    high: int
    state: str
    owner: str | None = None
    owner_url: str | None = None


class SegmentsAnswer(msgspec.Struct):
    segments: list[Segment]


_decode = msgspec.json.Decoder(SegmentsAnswer).decode


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """The open segments by their key range. Ranges without an owner may be missing."""

    segments: tuple[Segment, ...]

    @staticmethod
    def from_segments(segments: Sequence[Segment]) -> "SegmentMap":
        """Returns the map of the segments that accept messages."""
        opened = (segment for segment in segments if segment.state == "open")
        return SegmentMap(tuple(sorted(opened, key=lambda segment: segment.low)))

    @property
    def urls(self) -> dict[str, str]:
        """Returns the URL of each owner."""
        return {s.owner: s.owner_url.rstrip("/") for s in self.segments if s.owner and s.owner_url}

    @property
    def owners(self) -> set[str | None]:
        """Returns all owners; None is among them if a segment has no owner."""
        return {segment.owner for segment in self.segments}


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The field of the value that holds a topic's keys, apart from explicit ones; the form of its values."""

    field: str | None = None
    typed: bool = False
    binary: bool = False

    def takes(self, is_binary: bool) -> bool:
        """Tells whether the topic takes values as one column: of bytes, or of JSON texts."""
        return self.binary if is_binary else not self.typed and not self.binary

    @staticmethod
    def from_topic(facts: Mapping[str, Any]) -> "KeyRule":
        """Returns the rule in a topic's description."""
        return KeyRule(facts.get("key_field"), facts.get("format") == "typed", facts.get("format") == "bytes")


def fetch_map(topic: str) -> Steps[SegmentMap]:
    """Fetches the current map from a broker. Raises the broker's errors, ConnectionFailed, msgspec.DecodeError."""
    reply = check((yield Request("GET", f"{topic_path(topic)}/segments", is_hedged=True)))
    return SegmentMap.from_segments(_decode(reply.body).segments)


def fetch_rule(topic: str, schema_id: int | None = None) -> Steps[KeyRule]:
    """Fetches a topic's rule, which changes if the key field is renamed, or another topic takes its name; for messages
    of a version of its schema, with the name that the key field has there."""
    facts: dict[str, Any] = yield from call("GET", topic_path(topic))
    rule = KeyRule.from_topic(facts)
    if schema_id in (None, facts.get("schema_id")) or rule.field is None or not rule.typed:
        return rule
    known = next(one["id"] for one in facts["schema"]["fields"] if one["name"] == rule.field)
    fields = (yield from schema(topic, schema_id))["fields"]
    return replace(rule, field=next((one["name"] for one in fields if one["id"] == known), rule.field))


EVERY_S, STALE_S = 30.0, 1.0


class MapRefresh:
    """The times of fetches: only while the producer sends, and one at a time."""

    def __init__(self) -> None:
        self._fetched_s = -inf
        self._fetching = False
        self._stale = False

    def due(self, now_s: float) -> bool:
        """Tells whether a fetch is due."""
        return not self._fetching and now_s >= self._fetched_s + (STALE_S if self._stale else EVERY_S)

    def begin(self) -> None:
        """Records that a fetch begins."""
        self._fetching, self._stale = True, False

    def end(self, now_s: float, seen: bool) -> None:
        """Records that the fetch has ended; `seen`: whether it returned a map."""
        self._fetching, self._fetched_s = False, now_s
        self._stale = self._stale or not seen

    def invalidate(self) -> None:
        """Marks the map as possibly stale."""
        self._stale = True


# Numbers that are written in one way only; of all others the text counts.
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

    def key_of_line(self, key: str | None, line: bytes) -> str | None:
        """Returns the key of an envelope whose explicit key is `key`."""
        if key is not None or self.rule.field is None:
            return key
        try:
            return _text(self._line(line).value.key)
        except msgspec.DecodeError:
            return None

    def key_hash_of_line(self, key: str | None, line: bytes) -> int | None:
        """Returns the hash of that key; None without one."""
        found = self.key_of_line(key, line)
        return None if found is None else hash_key(found)

    def key_of_value(self, text: Any) -> str | None:
        """Returns the key in a value, JSON text; None without one, and if it cannot be read."""
        if self.rule.field is None:
            return None
        try:
            key = self._plain(text).key
            return key if key is None or type(key) is str else str(key)
        except (msgspec.DecodeError, TypeError):
            pass  # it may be written in several ways, or be no key at all
        try:
            return _text(self._value(text).key)
        except (msgspec.DecodeError, TypeError):
            return None


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text == b"null":
        return None
    return _decode_str(text) if text[:1] == b'"' else text.decode()
