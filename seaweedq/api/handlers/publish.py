"""POST /v1/topics/{topic}/messages, on bare ASGI, because it is the busiest route.

A single JSON message is added directly to the messages that wait for its segment. Any other body is converted to
columns; large bodies are converted in a thread."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seaweedq.access.rights import Action
from seaweedq.api.connections.memory import DecodingMemory, needed
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.handlers.topics import create, may_create
from seaweedq.api.parameters import NAME_SCHEMA, SCHEMA_ID, check_name, stated_version, truth, whole_number
from seaweedq.api.request import Answer, Request
from seaweedq.api.routes import HOT, OF_BODIES, OF_CREATION, OF_ROWS, OF_TOPIC, OF_UPLOADS, TOPIC, Lead, Router, Takes
from seaweedq.api.services import Parts
from seaweedq.broker.publish import INLINE_ROWS, AppendedRows, Producer, Publisher, PublishResult, in_time
from seaweedq.broker.read import AGAIN_S, ClusterTime
from seaweedq.broker.streams import OpenStreams
from seaweedq.broker.topics import Catalog, SchemaVersions, Topic, TopicAdmin
from seaweedq.broker.uploads import REFUSALS, Payloads
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import (
    BadRequest,
    InvalidMessages,
    InvalidRequest,
    JournalUnavailable,
    SchemaMismatch,
    SeaweedqError,
    SequenceOutOfOrder,
    Unavailable,
)
from seaweedq.rows import bodies
from seaweedq.rows.arrow_bodies import decode_short_arrow
from seaweedq.rows.envelopes import (
    BytesEnvelope,
    BytesEnvelopes,
    Envelope,
    Envelopes,
    ReferenceEnvelope,
    ReferenceEnvelopes,
    decode_single,
)
from seaweedq.rows.intake import Intake, TimeUnknown
from seaweedq.rows.typed_values import unknown_field
from seaweedq.segments.evolution import hint_of
from seaweedq.segments.layout import Format, Layout, renamed
from seaweedq.segments.producers import OF_PRINCIPAL
from seaweedq.segments.rows import Single
from seaweedq.segments.trace_headers import add_to_rows, add_to_single
from seaweedq.traces import valid

INLINE_BYTES = 16 * 1024  # bodies up to here are decoded on the event loop: a thread costs more
INLINE_ARROW_BYTES = 256 * 1024  # of Arrow of at most INLINE_ROWS rows: columns are checked, and none copied
INLINE_COUNT = 1000  # answers of up to so many messages are encoded there
ID_BYTES = 64  # of a message's id while its answer is made: where it went, its text, and the text in the answer
FEW_IDS = 64  # which Python joins before Arrow has begun
ID_SLICE = 16 * 1024  # ids whose texts are made at a time: Arrow's columns of them take four times as much
LENIENT_US = 10 * 365 * 86_400 * 1_000_000  # by which a repeat's timestamps may be ahead: they were judged before
MAX_SEQUENCE = 2**62
router = Router("publish")


class SegmentRows(msgspec.Struct):
    """Some of the request's messages: their segment, first offset and number."""

    segment: int
    first_offset: int
    count: int


class PublishAnswer(msgspec.Struct):
    """All messages are durable. `ids` are in request order; an answer to an Arrow request has `ids` only if the request
    asks for them. `duplicate` means that the messages had already been stored, so nothing was added. If the request
    asks for `count`, `streams` is the number of open streams of the topic and its subscriptions, without those of the
    `silent_brokers` that did not answer within 1 s."""

    count: int
    segments: list[SegmentRows]
    ids: list[str] | msgspec.UnsetType = msgspec.UNSET
    duplicate: bool | msgspec.UnsetType = msgspec.UNSET
    streams: int | msgspec.UnsetType = msgspec.UNSET
    silent_brokers: int | msgspec.UnsetType = msgspec.UNSET


_STREAM = {"schema": {"type": "string", "format": "binary"}}
_KINDS = (Envelopes, Envelope, BytesEnvelopes, BytesEnvelope, ReferenceEnvelopes, ReferenceEnvelope)
_TAKES = {
    bodies.JSON: {
        "schema": {"anyOf": [*_KINDS]},
        "example": {"messages": [{"key": "UA", "value": {"carrier": "UA", "delay": 12}}]},
    },
    bodies.NDJSON: {
        "schema": {
            "type": "string",
            "description": "one message per line; with bare=true or the topic's ndjson=bare, one value per line",
        },
        "example": '{"key":"UA","value":{"delay":12}}\n{"value":{"delay":3}}\n',
    },
    bodies.ARROW: _STREAM,
    "application/octet-stream": _STREAM,
}
_PARAMETERS = (
    {
        "name": "bare",
        "in": "query",
        "description": "NDJSON: each line is itself the value; the default is the topic's `ndjson` setting",
        "schema": {"type": "boolean"},
    },
    {
        "name": "format",
        "in": "query",
        "description": "refuse the request if the topic has another format",
        "schema": {"type": "string", "enum": ["json", "bytes", "typed"]},
    },
    {
        "name": "ids",
        "in": "query",
        "description": "Arrow: also return the ids of the rows",
        "schema": {"type": "boolean"},
    },
    {
        "name": "count",
        "in": "query",
        "description": "also return the number of open streams of the topic and its subscriptions, in all brokers",
        "schema": {"type": "boolean"},
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
        "description": "together with Producer-Sequence, makes the request idempotent",
        "schema": NAME_SCHEMA,
    },
    {
        "name": "Producer-Sequence",
        "in": "header",
        "description": "number of the request's first message; increases by one per message",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE},
    },
    SCHEMA_ID,
)


@dataclass(slots=True)
class _PublishBody:
    """The body of a publish, how to decode it, and the topic's format, and the version of its schema, that the request
    expects. `traceparent` is the context that its messages get."""

    request: Request
    media: str | None
    content: bytes
    bare: bool | None  # by default the topic's
    key: str | None
    format: str | None
    schema_id: int | None
    traceparent: str | None = None

    async def rows(self, config: TopicConfig, intake: Intake, memory: DecodingMemory) -> pa.RecordBatch:
        """Decodes the messages to rows: immediately if that takes a fraction of a millisecond, otherwise in a
        thread."""
        media, content = bodies.media_type(self.media), self.content
        bare = config.lines_are_bare if self.bare is None else self.bare
        if media == bodies.ARROW:  # a few bytes may become many rows
            is_small = len(content) <= INLINE_ARROW_BYTES
            if is_small and (rows := decode_short_arrow(content, intake, INLINE_ROWS)) is not None:
                return rows
        elif len(content) <= INLINE_BYTES:
            return bodies.decode(self.media, content, intake, bare, self.key)
        size = needed(media, content, bare, intake.max_request_bytes)
        caller, own = self.request.key, len(content)
        timed = intake.at(intake.cluster_us)
        return await memory.run(caller, own, size, bodies.decode, self.media, content, timed, bare, self.key)

    def single(self, config: TopicConfig, intake: Intake) -> Single | None:
        """Decodes the single message of a small JSON body, or of a single line. Returns None if `rows` must decode the
        body."""
        if len(self.content) > INLINE_BYTES:
            return None
        media = bodies.JSON if self.media == bodies.JSON else bodies.media_type(self.media)  # mostly the first
        if media == bodies.JSON or (media == bodies.NDJSON and self._is_one_line(config)):
            return decode_single(self.content, intake)
        return None

    def _is_one_line(self, config: TopicConfig) -> bool:
        bare = config.lines_are_bare if self.bare is None else self.bare
        return not bare and b"\n" not in self.content.rstrip(b" \t\r\n")


@dataclass(frozen=True)
class Publish:
    """The route, with the services that it uses."""

    catalog: Catalog
    topics: TopicAdmin
    publisher: Publisher
    payloads: Payloads
    reader: RequestReader
    time: ClusterTime
    schemas: SchemaVersions
    open: OpenStreams
    keeps_traces: bool

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        publisher, payloads, time = (
            broker.publishing.publisher,
            broker.uploading.payloads,
            broker.reading.readables.time,
        )
        schemas, streams, traced = broker.schemas, broker.streaming.open, broker.process.traces is not None
        return cls(broker.catalog, broker.topics, publisher, payloads, parts.reader, time, schemas, streams, traced)

    @router.route(
        "POST",
        f"{TOPIC}/messages",
        Action.PUBLISH,
        "publishMessages",
        "Publish messages",
        mode=HOT,
        timed="publish",
        takes=Takes(_TAKES, required=True),
        answers={200: PublishAnswer},
        refuses=(
            *OF_BODIES,
            *OF_CREATION,
            *OF_UPLOADS,
            *OF_ROWS,
            InvalidMessages,
            SchemaMismatch,
            JournalUnavailable,
        ),
        parameters=_PARAMETERS,
        shows={"count": 1, "segments": [{"segment": 0, "first_offset": 17, "count": 1}], "ids": ["0-17"]},
        leads=(Lead(("fetchMessages",), {**OF_TOPIC, "segment": "$response.body#/segments/0/segment"}),),
    )
    async def publish(self, request: Request, name: str) -> Answer:
        """Publishes messages. When the broker answers, the messages are durable and readable.

        If any message is invalid, no message is stored, and the answer lists the first 1,000 invalid messages. If the
        topic does not exist and `auto_create_topics` is on, the broker creates it with the default configuration. With
        `format`, the broker refuses the request if the topic has another format.

        On a typed topic, `Schema-Id` names the version of the schema that the messages have. If that version does not
        exist, or a message has a value in a field that a later version has dropped, the answer is 409
        `schema-mismatch`, with the newest version in `schema_id`.

        A message may have a `reference` to one of this topic's uploads instead of a value; at most 10,000 per request.
        The broker checks every reference before it stores any message. If the only message of a request has an invalid
        reference, the answer is the upload's own error. In a request with several messages, each message with an
        invalid reference is listed with the `type` of the upload's error."""
        check_name(name)
        producer = _producer(request)
        options = request.query
        bare, key = truth(options["bare"], "bare") if "bare" in options else None, options.get("key")
        ids = "ids" in options and truth(options["ids"], "ids")  # before anything is stored: a refusal stores nothing
        count = "count" in options and truth(options["count"], "count")
        async with self.reader.body(request) as content:
            deadline = self.publisher.deadline()  # for all of it from here on
            media, schema_id = request.header(b"content-type"), stated_version(request)
            posted = _PublishBody(request, media, content, bare, key, options.get("format"), schema_id)
            if self.keeps_traces:
                posted.traceparent = valid(request.header(b"traceparent"))
            topic = self.catalog.get(name)
            if topic is None or topic.record.state == "deleting":
                topic = await in_time(self._known(request, name, posted), deadline)
            _check_format(topic.layout, posted.format)
            try:
                found = await self._append_by_newest(request, topic, posted, producer, deadline)
            except (InvalidMessages, InvalidRequest, *REFUSALS) as error:
                if producer is None or not (repeated := await self._repeated(topic, posted, producer, deadline, error)):
                    raise
                found = repeated
        answer = found if isinstance(found, Answer) else await self._answer(found, posted, ids)
        return await self._with_streams(answer, topic) if count else answer

    async def _answer(self, published: PublishResult, posted: _PublishBody, ids: bool) -> Answer:
        with_ids = ids or bodies.media_type(posted.media) != bodies.ARROW
        if published.count > INLINE_COUNT:
            size = ID_BYTES * published.count if with_ids else 0
            return Answer(200, await self.reader.decoding.run_at_once(size, answer_body, published, with_ids))
        return Answer(200, answer_body(published, with_ids))

    async def _with_streams(self, answer: Answer, topic: Topic) -> Answer:
        """Adds the number of open streams to an answer. The messages are durable by now: nothing fails any more."""
        counted = b',"streams":%d,"silent_brokers":%d}' % await self.open.everywhere(topic)
        return answer._replace(body=bytes(answer.body)[:-1] + counted)

    async def _append_by_newest(
        self, request: Request, topic: Topic, posted: _PublishBody, producer: Producer | None, deadline: Deadline
    ) -> Answer | PublishResult:
        """Appends as `_append_timed`. Refuses messages only by the newest version of a typed topic's schema."""
        while True:
            known = topic.layout
            try:
                return await self._append_timed(request, topic, posted, producer, deadline)
            except (InvalidMessages, InvalidRequest) as error:
                if known.format is not Format.TYPED or posted.schema_id is not None:
                    raise
                if await in_time(self.schemas.is_later(topic, known), deadline):
                    continue
                if (named := unknown_field(error.fields)) is None:
                    raise  # an earlier version has no more rows
                found = await self._append_by_earlier(request, topic, posted, producer, deadline, named)
                if found is None:
                    schema = topic.record.config.schema
                    assert schema is not None
                    raise _with_new_name(error, named, schema) from None
                return found

    async def _append_by_earlier(
        self,
        request: Request,
        topic: Topic,
        posted: _PublishBody,
        producer: Producer | None,
        deadline: Deadline,
        named: str,
    ) -> Answer | PublishResult | None:
        """Appends messages that fit an earlier version, from before a field was dropped: they have no value there, or
        they were stored before. Returns None for any others, also for those from before a field was renamed. The
        version has the field that is `named`."""
        names = [named]
        while layout := await in_time(self.schemas.newest_with(topic, names), deadline):
            if any(renamed(name, layout.values, topic.layout.values) != name for name in layout.values.names):
                return None
            earlier = replace(posted, schema_id=layout.schema_id)
            try:
                return await self._append_timed(request, topic, earlier, producer, deadline)
            except (InvalidMessages, InvalidRequest) as error:
                if (more := _missed(error, layout)) is None:
                    return None
                names.append(more)
            except SchemaMismatch as refused:
                if refused.fields.get("taken"):
                    raise
                return None
        return None

    async def _append_timed(
        self, request: Request, topic: Topic, posted: _PublishBody, producer: Producer | None, deadline: Deadline
    ) -> Answer | PublishResult:
        """Appends as `_append`. Learns the time of the cluster if the messages need it."""
        while True:
            try:
                return await self._append(request, topic, posted, producer, deadline)
            except TimeUnknown:  # from the decoder, before anything is stored
                await deadline.retry(self.time.learn, Unavailable, pause_s=AGAIN_S)

    async def _append(
        self, request: Request, topic: Topic, posted: _PublishBody, producer: Producer | None, deadline: Deadline
    ) -> Answer | PublishResult:
        layout = topic.layout
        if posted.schema_id is not None:
            layout = await in_time(self.schemas.pinned(topic, posted.schema_id), deadline)
        intake = self._intake(renamed(topic.record.config.key_field, topic.layout.values, layout.values), layout)
        single = posted.single(topic.record.config, intake)
        if single is not None:
            request.spend("messages", 1)
            self.reader.budget.check(0)
            if single.reference is not None:
                single = await in_time(self.payloads.resolve_single(topic, single), deadline)
            if posted.traceparent:
                add_to_single(single, posted.traceparent, intake.max_message_bytes)
            segment, offset, duplicate = await self.publisher.single(topic, single, producer, deadline)
            place = f'{{"segment":{segment},"first_offset":{offset},"count":1}}'
            end = ',"duplicate":true}' if duplicate else "}"
            return Answer(200, f'{{"count":1,"segments":[{place}],"ids":["{segment}-{offset}"]{end}'.encode())
        rows = await in_time(posted.rows(topic.record.config, intake, self.reader.decoding), deadline)
        request.spend("messages", rows.num_rows)
        if posted.traceparent:
            bounds = intake.max_message_bytes, intake.max_request_bytes
            add = partial(add_to_rows, rows, layout, posted.traceparent, *bounds)
            rows = add() if rows.num_rows <= INLINE_ROWS else await in_time(asyncio.to_thread(add), deadline)
        with self.reader.made(request, rows.nbytes):
            if "_reference" in rows.schema.names:
                rows = await in_time(self.payloads.resolve(topic, rows), deadline)
            if producer is None:  # owners judge their slices alone; with a producer, some may be there already
                topic.layout.check_values(rows, topic.name)
            return await self.publisher.batch(topic, rows, producer, deadline)

    async def _repeated(
        self, topic: Topic, posted: _PublishBody, producer: Producer, deadline: Deadline, refused: SeaweedqError
    ) -> PublishResult | None:
        """Returns the offsets of a refused request's messages if an earlier attempt stored them, so that they do not
        seem lost; if it stored some, their places become the field `taken` of the refusal. What was valid then may be
        refused now: a timestamp by another broker's clock, an upload that has expired, or fields that the newest
        version of a typed topic's schema has not."""
        layout: Layout | None = topic.layout
        if posted.schema_id is not None:
            layout = await in_time(self.schemas.pinned(topic, posted.schema_id), deadline)
        names: list[str] = []
        while layout is not None:
            key_field = renamed(topic.record.config.key_field, topic.layout.values, layout.values)
            intake = self._intake(key_field, layout)
            lenient = intake.at(intake.judged_from_us + LENIENT_US)
            try:
                rows = await in_time(posted.rows(topic.record.config, lenient, self.reader.decoding), deadline)
            except BadRequest as error:
                if posted.schema_id is not None or (more := _missed(error, layout)) is None:
                    return None
                names.append(more)
                layout = await in_time(self.schemas.newest_with(topic, names), deadline)
                continue
            try:
                with self.reader.made(posted.request, rows.nbytes):
                    return await self.publisher.batch(topic, rows, replace(producer, only_repeats=True), deadline)
            except (SchemaMismatch, SequenceOutOfOrder) as error:
                if taken := error.fields.get("taken"):
                    refused.fields["taken"] = taken
                return None
        return None

    async def _known(self, request: Request, name: str, posted: _PublishBody) -> Topic:
        """Returns a topic that this broker does not know yet. Creates the topic if the settings ask for that, and the
        caller may."""
        is_unknown = self.catalog.get(name) is None and self.reader.settings.auto_create_topics
        if is_unknown and await may_create(request, self.catalog, name):
            request.take("changes", 1)
            await self._create(request, name, posted)
        return await self.catalog.require(name)

    async def _create(self, request: Request, name: str, posted: _PublishBody) -> None:
        """Creates a topic with the default configuration, unless the messages cannot be published to it."""
        layout = Layout.from_format(Format.JSON)
        _check_format(layout, posted.format)
        config = TopicConfig()
        intake = self._intake(config.key_field, layout)  # these rows are not stored: they need no certain time
        rows = await posted.rows(config, intake.at(intake.judged_from_us), self.reader.decoding)
        if "_reference" in rows.schema.names:
            await self.catalog.require(name)  # a topic that does not exist has no uploads
        await create(request, self.topics, name)

    def _intake(self, key_field: str | None, layout: Layout) -> Intake:
        settings, now_us = self.reader.settings, self.reader.clock.now_us()
        limits = settings.max_message_bytes, now_us, settings.max_request_bytes
        return Intake(layout, key_field, *limits, self.time.lifetime_from_us)


def _check_format(layout: Layout, stated: str | None) -> None:
    """Refuses messages if the topic has, or would be created with, another format than the request expects: another
    topic may have taken the name."""
    own = layout.format.value
    if stated is not None and stated != own:
        raise InvalidRequest(
            f"the request asks for the format {stated[:20]!r}, but the topic has, or would be "
            f"created with, the format {own}",
            field="format",
            value=stated[:20],
        )


def _missed(error: BadRequest, layout: Layout) -> str | None:
    """Returns the field for which a version of a typed topic's schema refused messages, since it lacks the field; None
    if that is not why."""
    named = unknown_field(error.fields) if layout.format is Format.TYPED else None
    return None if named in layout.values.names else named


def _with_new_name(error: InvalidMessages | InvalidRequest, named: str, schema: Mapping[str, Any]) -> BadRequest:
    """Returns a refusal of messages that have a field under an earlier name with the name that it has now."""
    if (hint := hint_of(named, schema)) is None:
        return error
    return type(error)(f"{error.detail}; {hint}", **{**error.fields, "hint": hint})


def _producer(request: Request) -> Producer | None:
    if b"producer-id" not in request.headers and b"producer-sequence" not in request.headers:
        return None
    identity, sequence = request.header(b"producer-id"), request.header(b"producer-sequence")
    if identity is None or sequence is None:
        raise InvalidRequest(
            "Producer-Id and Producer-Sequence must be sent together",
            field="Producer-Sequence" if identity else "Producer-Id",
        )
    own = request.caller.uid
    check_name(identity, "producer")
    # No name of a client's has the sign: a principal's producers are neither an anonymous one's nor another's, which
    # may have had its name before.
    identity = identity if own is None else f"{own}{OF_PRINCIPAL}{identity}"
    return Producer(identity, whole_number(sequence, "Producer-Sequence", 0, MAX_SEQUENCE))


def answer_body(published: PublishResult, with_ids: bool) -> bytes:
    segments = [{"segment": p.segment, "first_offset": p.first, "count": len(p.indexes)} for p in published.appended]
    head = msgspec.json.encode({"count": published.count, "segments": segments})[:-1]
    ids = (b',"ids":["', *_ids(published.appended, published.count), b'"]') if with_ids else ()
    return b"".join((head, *ids, b',"duplicate":true}' if published.duplicate else b"}"))


def _ids(appended: Sequence[AppendedRows], count: int) -> Iterator[Any]:
    """Yields the ids in request order as JSON text, with quotes and commas; Arrow joins many."""
    if count <= FEW_IDS:
        places = [(index, rows.segment, rows.first + n) for rows in appended for n, index in enumerate(rows.indexes)]
        yield '","'.join(f"{segment}-{offset}" for _, segment, offset in sorted(places)).encode()
        return
    segments, offsets = np.empty(count, np.int64), np.empty(count, np.int64)
    for rows in appended:
        segments[rows.indexes] = rows.segment
        offsets[rows.indexes] = np.arange(rows.first, rows.first + len(rows.indexes))
    for at in range(0, count, ID_SLICE):
        texts = [pa.array(column[at : at + ID_SLICE]).cast(pa.string()) for column in (segments, offsets)]
        ids = pc.binary_join_element_wise(*texts, "-")
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(ids)], pa.int32()), ids), '","')
        if at:
            yield b'","'
        yield joined[0].as_buffer()
