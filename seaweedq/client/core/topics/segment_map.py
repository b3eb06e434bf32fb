"""A topic's segment map for a producer: the owner of each key range, as one broker saw it recently."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from seaweedq.client.core.protocol.effects import Request, Steps
from seaweedq.client.core.protocol.problems import check
from seaweedq.client.core.topics.calls import call, topic_path


class Segment(msgspec.Struct, frozen=True):
    """A segment: half-open range of key hashes, and its owner, if it has one that is reached at `owner_url`."""

    id: int
    low: int
    high: int
    state: str
    owner: str | None = None
    owner_url: str | None = None


class _Answer(msgspec.Struct):
    segments: list[Segment]


_decode = msgspec.json.Decoder(_Answer).decode


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """The open segments by their key range. Ranges without an owner may be missing."""

    segments: tuple[Segment, ...]

    @staticmethod
    def of(segments: Sequence[Segment]) -> "SegmentMap":
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
    def of(facts: Mapping[str, Any]) -> "KeyRule":
        """Returns the rule in a topic's description."""
        return KeyRule(facts.get("key_field"), facts.get("format") == "typed", facts.get("format") == "bytes")


def fetch_map(topic: str) -> Steps[SegmentMap]:
    """Fetches the current map from a broker. Raises the broker's errors, ConnectionFailed, msgspec.DecodeError."""
    reply = check((yield Request("GET", f"{topic_path(topic)}/segments", is_hedged=True)))
    return SegmentMap.of(_decode(reply.body).segments)


def fetch_rule(topic: str) -> Steps[KeyRule]:
    """Fetches a topic's rule, which changes only where another topic takes its name."""
    facts: dict[str, Any] = yield from call("GET", topic_path(topic))
    return KeyRule.of(facts)
