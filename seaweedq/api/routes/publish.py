"""POST /v1/topics/{topic}/messages, on bare ASGI: the hottest route of all.

One JSON message goes through the accumulator of its segment; everything else becomes columns in a worker thread.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.api.asgi.http import Answer, Receive, Scope, body, header, query
from seaweedq.api.asgi.openapi import NAME_SCHEMA, schema_ref
from seaweedq.api.asgi.parameters import check_name, whole_number
from seaweedq.broker.broker import Broker
from seaweedq.broker.publish.batch_split import Appended
from seaweedq.broker.publish.publisher import Producer, Published
from seaweedq.broker.uploads.message_payloads import names_uploads
from seaweedq.codec import bodies
from seaweedq.codec.intake import Intake
from seaweedq.codec.messages import (
    BytesEnvelope,
    BytesEnvelopes,
    Envelope,
    Envelopes,
    ReferenceEnvelope,
    ReferenceEnvelopes,
)
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import InvalidRequest
from seaweedq.segments.layout import Format, Layout

INLINE_BYTES = 16 * 1024  # bodies up to here are decoded on the event loop: a thread costs more
MAX_SEQUENCE = 2**62


class SegmentRows(msgspec.Struct):
    """Where some of the request's messages went."""

    segment: int
    first_offset: int
    count: int


class PublishAnswer(msgspec.Struct):
    """Everything is durable. `ids` in the order of the request, but for Arrow; `duplicate`: nothing new was stored."""

    count: int
    segments: list[SegmentRows]
    ids: list[str] | msgspec.UnsetType = msgspec.UNSET
    duplicate: bool | msgspec.UnsetType = msgspec.UNSET


_STREAM = {"schema": {"type": "string", "format": "binary"}}
_KINDS = (Envelopes, Envelope, BytesEnvelopes, BytesEnvelope, ReferenceEnvelopes, ReferenceEnvelope)
TAKES = {
    bodies.JSON: {
        "schema": {"anyOf": [schema_ref(one) for one in _KINDS]},
        "example": {"messages": [{"key": "UA", "value": {"carrier": "UA", "delay": 12}}]},
    },
    bodies.NDJSON: {
        "schema": {"type": "string", "description": "a message a line; with bare=true a value a line"},
        "example": '{"key":"UA","value":{"delay":12}}\n{"value":{"delay":3}}\n',
    },
    bodies.ARROW: _STREAM,
    "application/octet-stream": _STREAM,
}
PARAMETERS = (
    {
        "name": "bare",
        "in": "query",
        "description": "NDJSON: each line is itself the value",
        "schema": {"type": "boolean", "default": False},
    },
    {
        "name": "key",
        "in": "query",
        "description": "the key of a raw body on a bytes topic",
        "schema": {"type": "string"},
    },
    {
        "name": "Producer-Id",
        "in": "header",
        "description": "makes the request idempotent, with Producer-Sequence",
        "schema": NAME_SCHEMA,
    },
    {
        "name": "Producer-Sequence",
        "in": "header",
        "description": "of the request's first message; rises by one a message",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE},
    },
)


async def publish(broker: Broker, scope: Scope, receive: Receive, name: str) -> Answer:
    """Take messages; answers when they are durable."""
    broker.readiness.check_ready()
    check_name(name)
    producer = _producer(scope)
    options = query(scope)
    bare, key = _flag(options, "bare"), options.get("key")
    async with body(scope, receive, broker.environment.settings, broker.core.budget) as content:
        media = header(scope, b"content-type")
        topic = broker.core.catalog.find(name)
        if topic is None and broker.environment.settings.auto_create_topics:
            first = await _decode(media, content, _intake(broker, TopicConfig(), Layout.of(Format.JSON)), bare, key)
            if names_uploads(first):
                await broker.core.catalog.known(name)  # no topic, no uploads
            await broker.joined.topics.create(name, TopicConfig())
        topic = await broker.core.catalog.known(name)
        intake = _intake(broker, topic.record.config, topic.layout)
        if len(content) <= INLINE_BYTES and bodies.media_type(media) == bodies.JSON:
            single = bodies.decode_single(content, intake)
            if single is not None:
                broker.core.budget.check(0)
                if single.reference is not None:
                    single = await broker.serving.payloads.resolve_single(topic, single)
                return _single_answer(*await broker.serving.publishing.publisher.single(topic, single, producer))
        rows = await _decode(media, content, intake, bare, key)
        if names_uploads(rows):
            rows = await broker.serving.payloads.resolve(topic, rows)
        published = await broker.serving.publishing.publisher.batch(topic, rows, producer)
    with_ids = bodies.media_type(media) != bodies.ARROW
    return Answer(
        200,
        await asyncio.to_thread(_answer, published, with_ids)
        if published.count > 1000
        else _answer(published, with_ids),
    )


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name} is {text[:50]!r}; it must be true or false", field=name, value=text[:50])
    return text == "true"


def _intake(broker: Broker, config: TopicConfig, layout: Layout) -> Intake:
    settings = broker.environment.settings
    return Intake(
        layout,
        config.key_field,
        settings.max_message_bytes,
        broker.environment.clock.now_us(),
        settings.max_request_bytes,
    )


async def _decode(media: str | None, content: bytes, intake: Intake, bare: bool, key: str | None) -> pa.RecordBatch:
    if len(content) <= INLINE_BYTES:
        return bodies.decode(media, content, intake, bare, key)
    return await asyncio.to_thread(bodies.decode, media, content, intake, bare, key)


def _producer(scope: Scope) -> Producer | None:
    identity, sequence = header(scope, b"producer-id"), header(scope, b"producer-sequence")
    if identity is None and sequence is None:
        return None
    if identity is None or sequence is None:
        raise InvalidRequest(
            "Producer-Id and Producer-Sequence go together", field="Producer-Sequence" if identity else "Producer-Id"
        )
    return Producer(check_name(identity, "producer"), whole_number(sequence, "Producer-Sequence", 0, MAX_SEQUENCE))


def _single_answer(segment: int, offset: int, duplicate: bool) -> Answer:
    end = ',"duplicate":true}' if duplicate else "}"
    place = f'{{"segment":{segment},"first_offset":{offset},"count":1}}'
    return Answer(200, f'{{"count":1,"segments":[{place}],"ids":["{segment}-{offset}"]{end}'.encode())


def _answer(published: Published, with_ids: bool) -> bytes:
    document: dict[str, Any] = {
        "count": published.count,
        "segments": [
            {"segment": p.segment, "first_offset": p.first, "count": len(p.indexes)} for p in published.appended
        ],
    }
    if with_ids:
        document["ids"] = msgspec.Raw(_ids(published.appended, published.count))
    if published.duplicate:
        document["duplicate"] = True
    return msgspec.json.encode(document)


def _ids(appended: Sequence[Appended], count: int) -> bytes:
    """The JSON array of ids in the order of the request, joined by Arrow."""
    segments, offsets = np.empty(count, np.int64), np.empty(count, np.int64)
    for rows in appended:
        segments[rows.indexes] = rows.segment
        offsets[rows.indexes] = np.arange(rows.first, rows.first + len(rows.indexes))
    text = pc.binary_join_element_wise(pa.array(segments).cast(pa.string()), pa.array(offsets).cast(pa.string()), "-")
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), text), '","')
    return b'["%b"]' % joined[0].as_buffer()
