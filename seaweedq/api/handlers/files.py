"""The routes with which readers plan a read of a topic: the topic's files, and the offsets at a time."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

from fastapi import Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.access.rights import Action
from seaweedq.api.parameters import MAX_NUMBER, TIME, PathTopic, integer, json_answer, moment, query, time_us
from seaweedq.api.routes import TOPIC, Router
from seaweedq.api.services import Parts, given
from seaweedq.broker.read import MOST, FilePages, Place, ReadableSegments, TopicFile, TopicPositions
from seaweedq.broker.topics import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.errors import InvalidRequest, SegmentNotFound
from seaweedq.segments.entry import EntryName

router = Router("read")
LEAST = 2  # objects of a page: where a file ends is told by the next one
_AFTER = re.compile(r"([0-9]{1,19})/([0-9]{8}-[0-9]{16}\.parquet)")


class FileAnswer(Struct):
    """A file that contains rows: its segment, name, half-open offset range, and size in bytes. The schema id, and the
    largest `_timestamp` up to the end of the file, are present if the broker knows them."""

    segment: int
    name: str
    first_offset: int
    next_offset: int
    bytes: int
    schema_id: int | None
    max_timestamp: datetime | None


class FilesAnswer(Struct, omit_defaults=True):
    """One page of a topic's files. If more files may follow, pass `next` as `after` to get the next page."""

    files: list[FileAnswer]
    next: str | UnsetType = UNSET


class OffsetsAnswer(Struct):
    """For each segment, the offset at which to start so that you miss no message with this timestamp or a later one."""

    offsets: dict[int, int]


_NEXT = "0/00000002-0000000000048211.parquet"
_TIME = "2026-01-31T12:00:00Z"
_FILE = {
    "segment": 0,
    "name": "00000002-0000000000048211.parquet",
    "first_offset": 48211,
    "next_offset": 61007,
    "bytes": 402113,
    "schema_id": 0,
    "max_timestamp": _TIME,
}


@dataclass(frozen=True)
class FileServices:
    """The services of these routes."""

    catalog: Catalog
    pages: FilePages
    positions: TopicPositions
    readables: ReadableSegments
    clock: Clock

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker, reading = parts.broker, parts.broker.reading
        read = reading.files, reading.positions, reading.readables
        return cls(broker.catalog, *read, broker.process.clock)

    async def check(self, topic: Topic, segment: int) -> None:
        """Raises SegmentNotFound if the segment never existed."""
        try:
            await self.catalog.require_segment(topic, segment)
        except SegmentNotFound:
            await self.catalog.tombstone(topic, segment)


Services = Annotated[FileServices, given(FileServices)]


def _place(text: str) -> Place:
    match = _AFTER.fullmatch(text)
    if not match or int(match[1]) > MAX_NUMBER:
        detail = f"after must be a segment and the name of a file, such as {_NEXT!r}, not {text[:80]!r}"
        raise InvalidRequest(detail, field="after", value=text[:80])
    return Place(int(match[1]), EntryName.parse(match[2]))


_AFTER_FILE = query(
    "after",
    "`next` of the previous page, or a segment and a file name",
    {"type": "string", "pattern": f"^{_AFTER.pattern}$"},
    _place,
)


@router.route(
    "GET",
    f"{TOPIC}/offsets",
    Action.DESCRIBE,
    "findOffsets",
    "Find each segment's offset for a given time",
    answers={200: OffsetsAnswer},
    refuses=(400, 404, 409),
    shows={"offsets": {"0": 48211}},
)
async def offsets_of_a_time(
    services: Services,
    topic: PathTopic,
    timestamp: Annotated[
        str, query("timestamp", "RFC 3339 with a UTC offset, or an age such as 5m", TIME, default="", required=True)
    ],
) -> Response:
    """Returns, for each segment, the offset at which to start so that you miss no message from this time on.

    This is the offset of the segment's first message with this timestamp or a later one, or the segment's end if there
    is no such message. If a predecessor of the segment contains such a message, the offset is 0."""
    moment_us = time_us(timestamp, "timestamp", services.clock.now_us())
    found = await services.catalog.require(topic)
    services.catalog.check_whole(found)
    ends = {number: position.end for number, position in (await services.positions.positions(found)).items()}
    return json_answer(OffsetsAnswer(await services.readables.find(found, ends, moment_us)))


@router.route(
    "GET",
    f"{TOPIC}/files",
    Action.READ,
    "listFiles",
    "List a topic's files",
    answers={200: FilesAnswer},
    refuses=(400, 404, 409),
    shows={"files": [_FILE], "next": _NEXT},
)
async def topic_files(
    services: Services,
    topic: PathTopic,
    most: Annotated[
        int, integer("page_size", LEAST, MOST, "maximum number of store objects to examine for a page", MOST)
    ],
    after: Annotated[Place | None, _AFTER_FILE],
    segment: Annotated[int | None, integer("segment", 0, MAX_NUMBER, "only the files of this segment")],
) -> Response:
    """Lists the topic's Parquet files that have rows, page by page, so that a reader can plan its work without opening
    files.

    Every row below a segment's `flushed_offset` is in the files of a listing that starts after you read that offset.
    Segments are sorted by folder name, and the files of a segment by offset. The listing omits files that retention has
    deleted and objects that the queue did not write. Each page costs one listing of the store, so a page may be short
    or empty. The last page has no `next`.
    """
    if after and segment not in (None, after.segment):
        raise InvalidRequest(
            f"the parameter `after` names a file of segment {after.segment}, but the parameter `segment` is {segment}",
            field="after",
        )
    named = await services.catalog.require(topic)
    if segment is not None:
        await services.check(named, segment)
    found, behind = await services.pages.page(named, most, after, segment)
    following = f"{behind.segment}/{behind.name}" if behind else UNSET
    return json_answer(FilesAnswer([_answer(one) for one in found], following))


def _answer(file: TopicFile) -> FileAnswer:
    place, facts = file.place, file.facts
    return FileAnswer(
        segment=place.segment,
        name=str(place.name),
        first_offset=place.name.first_offset,
        next_offset=file.next_offset,
        bytes=file.size,
        schema_id=facts.schema_id if facts else None,
        max_timestamp=moment(facts.max_timestamp_us) if facts else None,
    )
