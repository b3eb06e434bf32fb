"""A topic's files as brokers list them, and the offsets of a time. No I/O."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from seaweedq.client.core.protocol.effects import Request, Steps
from seaweedq.client.core.protocol.problems import check
from seaweedq.client.core.topics.calls import topic_path


class TopicFile(msgspec.Struct, frozen=True):
    """A file with rows of [first_offset, next_offset). The broker may know its schema's id, and the largest
    `_timestamp` up to its end."""

    segment: int
    name: str
    first_offset: int
    next_offset: int
    bytes: int
    schema_id: int | None
    max_timestamp: datetime | None

    @property
    def path(self) -> str:
        """Returns its place below the topic's folder."""
        return f"segment={self.segment}/{self.name}"

    @property
    def place(self) -> str:
        """Returns what later files come `after`."""
        return f"{self.segment}/{self.name}"


class FilesAnswer(msgspec.Struct):
    """A page of files."""

    files: Sequence[TopicFile]
    next: str | None = None


class OffsetsAnswer(msgspec.Struct):
    """Offsets by segment."""

    offsets: dict[int, int]


_FILES, _OFFSETS = msgspec.json.Decoder(FilesAnswer), msgspec.json.Decoder(OffsetsAnswer)


def topic_files(topic: str, segment: int | None = None, after: str | None = None) -> Steps[list[TopicFile]]:
    """Returns all files with rows of a topic, or of one of its segments; only those `after` a file's place."""
    found: list[TopicFile] = []
    params = {} if segment is None else {"segment": str(segment)}
    while True:
        params = params if after is None else {**params, "after": after}
        answer = _FILES.decode(check((yield Request("GET", f"{topic_path(topic)}/files", params))).body)
        found += answer.files
        if answer.next is None:
            return found
        after = answer.next


def offsets_of(topic: str, moment: datetime) -> Steps[dict[int, int]]:
    """Returns, by segment, the offset from which on no message of this time or of a later one is missed. Raises
    ValueError for a time without zone."""
    if moment.tzinfo is None:
        raise ValueError(f"the time {moment.isoformat()} has no time zone")
    request = Request("GET", f"{topic_path(topic)}/offsets", {"timestamp": moment.isoformat()})
    return _OFFSETS.decode(check((yield request)).body).offsets
