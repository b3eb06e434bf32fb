"""The routes by which a reader plans a read of a topic: its files, and the offsets of a time."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.api.openapi.document import TIME, described, integer, json_answer
from seaweedq.api.parameters import MAX_NUMBER, check_name, moment, time_us, whole_number
from seaweedq.api.services import RequestDep, given
from seaweedq.broker.read import MOST, FilePages, Place, ReadableSegments, TopicFile, TopicPositions
from seaweedq.broker.topics import Catalog, Tombstones, Topic
from seaweedq.clock import Clock
from seaweedq.errors import InvalidRequest, SegmentNotFound
from seaweedq.segments.entry import EntryName

router = APIRouter(tags=["topics"])
LEAST = 2  # objects of a page: where a file ends is told by the next one
_AFTER = re.compile(r"([0-9]{1,19})/([0-9]{8}-[0-9]{16}\.parquet)")


class FileAnswer(Struct):
    """A file with rows: its segment and name, the half-open range of its offsets, its bytes; and, where the broker
    knows them, the id of its schema, and the largest `_timestamp` up to its end."""

    segment: int
    name: str
    first_offset: int
    next_offset: int
    bytes: int
    schema_id: int | None
    max_timestamp: datetime | None


class FilesAnswer(Struct, omit_defaults=True):
    """Files of a topic. Where there may be more, `next` is what they come `after`."""

    files: list[FileAnswer]
    next: str | UnsetType = UNSET


class OffsetsAnswer(Struct):
    """By segment, the offset from which on no message of a time, or of a later one, is missed."""

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


def _text(name: str, about: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": about, "schema": {"type": "string", **schema}}


@dataclass(frozen=True)
class FileServices:
    """The services of these routes."""

    catalog: Catalog
    pages: FilePages
    positions: TopicPositions
    readables: ReadableSegments
    tombstones: Tombstones
    clock: Clock

    async def check(self, topic: Topic, segment: int) -> None:
        """Raises SegmentNotFound for a segment that there never was."""
        try:
            await self.catalog.known_segment(topic, segment)
        except SegmentNotFound:
            await self.tombstones.require(topic, segment)


Services = Annotated[FileServices, given(FileServices)]


@router.get(
    "/v1/topics/{topic}/files",
    **described(
        None,
        {200: FilesAnswer},
        (400, 404, 409),
        parameters=[
            integer("page_size", MOST, LEAST, MOST, "objects of the store that a page looks at"),
            _text("after", "`next` of the page before, or segment and name of a file", pattern=f"^{_AFTER.pattern}$"),
            {
                "name": "segment",
                "in": "query",
                "description": "files of this segment alone",
                "schema": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
            },
        ],
        shows={"files": [_FILE], "next": _NEXT},
    ),
)
async def topic_files(services: Services, request: RequestDep, topic: str) -> Response:
    """Lists the topic's files, a page at a time: all rows below the segments' flushed offsets are in them."""
    check_name(topic)
    options = request.query
    most = whole_number(options.get("page_size", str(MOST)), "page_size", LEAST, MOST)
    segment = whole_number(options["segment"], "segment", 0, MAX_NUMBER) if "segment" in options else None
    after = _place(options["after"]) if "after" in options else None
    if after and segment not in (None, after.segment):
        raise InvalidRequest(f"after is in segment {after.segment}, not in {segment}", field="after")
    named = await services.catalog.known(topic)
    if segment is not None:
        await services.check(named, segment)
    found, behind = await services.pages.page(named, most, after, segment)
    following = f"{behind.segment}/{behind.name}" if behind else UNSET
    return json_answer(FilesAnswer([_answer(one) for one in found], following))


@router.get(
    "/v1/topics/{topic}/offsets",
    **described(
        None,
        {200: OffsetsAnswer},
        (400, 404, 409),
        parameters=[
            {
                "name": "timestamp",
                "in": "query",
                "description": "RFC 3339, with an offset, or how long ago: 5m",
                "schema": TIME,
                "required": True,
            }
        ],
        shows={"offsets": {"0": 48211}},
    ),
)
async def offsets_of_a_time(services: Services, request: RequestDep, topic: str) -> Response:
    """Returns the offset of each segment from which on no message of this time, or of a later one, is missed."""
    check_name(topic)
    moment_us = time_us(request.query.get("timestamp", ""), "timestamp", services.clock.now_us())
    found = await services.catalog.known(topic)
    services.catalog.check_whole(found)
    ends = {number: position.end for number, position in (await services.positions.positions(found)).items()}
    return json_answer(OffsetsAnswer(await services.readables.find(found, ends, moment_us)))


def _place(text: str) -> Place:
    match = _AFTER.fullmatch(text)
    if not match or int(match[1]) > MAX_NUMBER:
        detail = f"after is {text[:80]!r}; it must be a segment and the name of a file, such as {_NEXT!r}"
        raise InvalidRequest(detail, field="after", value=text[:80])
    return Place(int(match[1]), EntryName.parse(match[2]))


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
