"""A topic's segment map as a producer needs it: who owns which key range, as one broker saw it a moment ago."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from seaweedq.client.core.calls import call, topic_path
from seaweedq.client.core.effects import Request, Steps
from seaweedq.client.core.problems import check


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
    """The open segments by their key range. Ranges that nobody has for the moment may be missing."""

    segments: tuple[Segment, ...]

    @staticmethod
    def of(segments: Sequence[Segment]) -> "SegmentMap":
        """The map of those that take messages."""
        opened = (segment for segment in segments if segment.state == "open")
        return SegmentMap(tuple(sorted(opened, key=lambda segment: segment.low)))

    @property
    def urls(self) -> dict[str, str]:
        """Where each owner is reached."""
        return {s.owner: s.owner_url.rstrip("/") for s in self.segments if s.owner and s.owner_url}

    @property
    def owners(self) -> set[str | None]:
        """All owners; None among them where a segment has none."""
        return {segment.owner for segment in self.segments}


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Where a topic's messages have their key, beside an explicit one: in this field of the value."""

    field: str | None = None
    typed: bool = False


def fetch_map(topic: str) -> Steps[SegmentMap]:
    """The map as a broker sees it now. Raises what the broker states, ConnectionFailed, msgspec.DecodeError."""
    reply = check((yield Request("GET", f"{topic_path(topic)}/segments")))
    return SegmentMap.of(_decode(reply.body).segments)


def fetch_rule(topic: str) -> Steps[KeyRule]:
    """A topic's rule, which never changes."""
    facts: dict[str, Any] = yield from call("GET", topic_path(topic))
    return KeyRule(facts.get("key_field"), facts.get("format") == "typed")
