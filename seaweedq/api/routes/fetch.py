"""Fetch: messages of one segment from an offset on, as JSON or Arrow."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.api.asgi.http import header, query
from seaweedq.api.asgi.openapi import broker_of, described, integer, schema_ref
from seaweedq.api.asgi.parameters import MAX_NUMBER, check_name, seconds, whole_number
from seaweedq.api.internal.proxy import at_owner
from seaweedq.broker.broker import Broker
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import Pieces, fitting, unexpired
from seaweedq.broker.topics.catalog import Topic
from seaweedq.codec.bodies import ARROW, JSON
from seaweedq.codec.message_json import encode_messages
from seaweedq.coordination.keys import ID_BOUND

router = APIRouter(tags=["read"])
MAX_BYTES = 8 * 1024 * 1024
_FRAME_BYTES = 1024  # of a JSON answer, around its messages: at most 32 successors
_END_BYTES = 8  # of an Arrow stream
MAX_LIMIT = 10_000
MAX_WAIT_S = 30.0
EXAMPLE = {
    "id": "0-17",
    "key": "UA",
    "value": {"carrier": "UA", "delay": 12},
    "headers": {},
    "timestamp": "2026-01-31T12:00:00.000000Z",
    "segment": 0,
    "offset": 17,
}


class MessageReference(Struct):
    """A payload in the store: `url` gets it without credentials, for a while; it is left out where there is none."""

    uri: str
    size: int
    content_type: str
    sha256: str
    url: str | UnsetType = UNSET


class Message(Struct, omit_defaults=True):
    """A message as it is read. `value` for json and typed topics, `value_base64` for bytes topics.

    With a `reference` the value is null.
    """

    id: str
    key: str | None
    headers: dict[str, str]
    timestamp: str
    segment: int
    offset: int
    value: Any = None
    value_base64: str | UnsetType | None = UNSET
    reference: MessageReference | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


class FetchAnswer(Struct):
    """`next_offset` is where to go on; expired messages are left out, so offsets may have holes.

    A `sealed` segment gets no more messages: at its end, go on with its `successors`, each from 0.
    """

    messages: list[Message]
    next_offset: int
    sealed: bool
    successors: list[int]


@router.get(
    "/v1/topics/{topic}/segments/{segment}/messages",
    **described(
        None,
        {200: {JSON: {"schema": schema_ref(FetchAnswer)}, ARROW: {"schema": {"type": "string", "format": "binary"}}}},
        (400, 404, 409, 416),
        parameters=[
            integer("offset", 0, 0, MAX_NUMBER, "the first offset wanted; the segment's end is valid"),
            integer("limit", 1000, 1, MAX_LIMIT, "messages at most"),
            {
                "name": "wait_s",
                "in": "query",
                "description": "seconds to wait for a message where there is none yet",
                "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S, "default": 0},
                "example": 0.1,
            },
        ],
        shows={"messages": [EXAMPLE], "next_offset": 18, "sealed": False, "successors": []},
    ),
)
async def fetch(request: Request, topic: str, segment: str) -> Response:
    """Messages from `offset` on. With `Accept: application/vnd.apache.arrow.stream` as an Arrow stream."""
    broker = broker_of(request)
    check_name(topic)
    options = query(request.scope)
    number = whole_number(segment, "segment", 0, MAX_NUMBER)
    offset = whole_number(options.get("offset", "0"), "offset", 0, MAX_NUMBER)
    limit = whole_number(options.get("limit", "1000"), "limit", 1, MAX_LIMIT)
    wait_s = seconds(options.get("wait_s", "0"), "wait_s", MAX_WAIT_S)
    found = await broker.core.catalog.known(topic)
    if number < ID_BOUND and number not in broker.core.catalog.records(found):
        await broker.core.catalog.look(topic, number)  # it may have come to be a moment ago, at another broker
    accepts_arrow = ARROW in (header(request.scope, b"accept") or "")

    async def here(left_s: float) -> Response:
        opened = await broker.serving.publishing.ownership.opened(found, number)
        pieces = await _read(broker, opened, offset, limit, left_s)
        now_us = broker.environment.clock.now_us()
        alive = [fresh for first, rows in pieces for fresh in unexpired(first, rows, now_us)]
        next_offset = pieces[-1][0] + pieces[-1][1].num_rows if pieces else offset
        if accepts_arrow:
            return _arrow_answer(broker, found, opened, next_offset, alive)
        links = await broker.serving.payloads.links_of(found, [rows for _, rows in alive])
        return _answer(broker, found, opened, next_offset, alive, links)

    return await at_owner(broker, request, found, number, wait_s, here)


async def _read(broker: Broker, segment: OpenSegment, offset: int, limit: int, wait_s: float) -> Pieces:
    """Rows from `offset` on; none where the wait has ended, or nothing more can come. Raises NotOwner where the segment
    is held, or has been sealed meanwhile."""
    end_s = broker.environment.clock.monotonic_s() + wait_s
    while True:
        segment.check_open()
        pieces = await broker.core.reader.read(segment, offset, limit, MAX_BYTES)
        left_s = end_s - broker.environment.clock.monotonic_s()
        if pieces or left_s <= 0 or broker.readiness.stopping or segment.sealed:
            return pieces
        if offset == segment.end:
            await segment.signal.wait(left_s)


def _arrow_answer(broker: Broker, topic: Topic, segment: OpenSegment, next_offset: int, alive: Pieces) -> Response:
    record = broker.core.catalog.segment(topic, segment.id).record
    content, left_out = arrow_stream(segment, alive, MAX_BYTES)
    headers = {"Next-Offset": str(next_offset if left_out is None else left_out)}
    if record.state == "sealed":
        headers |= {"Sealed": "true", "Successors": ",".join(map(str, record.successors))}
    return Response(content, media_type=ARROW, headers=headers)


def _answer(
    broker: Broker,
    topic: Topic,
    segment: OpenSegment,
    next_offset: int,
    alive: Pieces,
    links: Mapping[str, str],
) -> Response:
    record = broker.core.catalog.segment(topic, segment.id).record
    messages, left_out = encode_messages(alive, segment.id, segment.layout, None, links, MAX_BYTES - _FRAME_BYTES)
    content = b'{"messages":%b,"next_offset":%d,"sealed":%b,"successors":%b}' % (
        messages,
        next_offset if left_out is None else left_out,
        b"true" if record.state == "sealed" else b"false",
        msgspec.json.encode(record.successors if record.state == "sealed" else ()),
    )
    return Response(content, media_type="application/json")


def arrow_stream(segment: OpenSegment, pieces: Pieces, max_bytes: int) -> tuple[memoryview, int | None]:
    """The rows with all columns of the table, offsets too, as an IPC stream of at most `max_bytes` but at least one
    row; and the offset of the first row that did not fit, None where all did."""
    sink, schema = pa.BufferOutputStream(), segment.layout.table
    left, left_out = max_bytes - schema.serialize().size - _END_BYTES, None
    with pa.ipc.new_stream(sink, schema) as writer:
        for at, (first, rows) in enumerate(pieces):
            rows = segment.layout.complete(rows, first)
            fit = fitting(rows, left, 0 if at else 1, pa.ipc.get_record_batch_size)
            if fit:
                writer.write_batch(rows.slice(0, fit))
            if fit < rows.num_rows:
                left_out = first + fit
                break
            left -= pa.ipc.get_record_batch_size(rows)
    return memoryview(sink.getvalue()), left_out
