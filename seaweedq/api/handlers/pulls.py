"""Pulls, answered as JSON or as an Arrow stream with the columns of the topic's files, `segment`, `_offset` and
`_attempt`.

If the client gave no lease name, the broker that receives the request chooses one before it forwards the request. So if
the dispatcher's answer is lost and the broker repeats the request, it gets the same messages.

In Arrow the lease's name is a header, which is absent if there are no messages. Columns are written to the stream as
they were read, never row by row. Adjacent rows with the same segment and schema form one batch."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import groupby
from typing import Annotated, Self, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from seaweedq.access.rights import Action
from seaweedq.api.access.rates import waiting
from seaweedq.api.connections.request_reader import RequestReader, decode_request
from seaweedq.api.handlers.fetch import EXAMPLE, Message
from seaweedq.api.parameters import check_name
from seaweedq.api.proxy import Proxy
from seaweedq.api.request import EMPTY, WAITED, Answer, Request
from seaweedq.api.routes import HOT, OF_BODIES, OF_SUBSCRIPTION, SUBSCRIPTION, Lead, Router, Takes
from seaweedq.api.services import Parts
from seaweedq.broker.read import Readable, Target
from seaweedq.broker.subscriptions import DeliveredRows, Dispatcher, DispatcherFinder, Pull, PullResult, RelayedWaits
from seaweedq.broker.topics import Catalog, Topic
from seaweedq.broker.uploads import Payloads
from seaweedq.clock import Ids
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import (
    ChainDamaged,
    InvalidRequest,
    JournalUnavailable,
    LeaseEnded,
    LeaseOfAnother,
    NotAcceptable,
    NotOwner,
)
from seaweedq.rows.bodies import ARROW, JSON
from seaweedq.rows.message_json import message_texts, separated
from seaweedq.segments.layout import PARTITION_COLUMN, Layout

SPARE_BYTES = 256  # for the mark of a stream's end
SHOWN = 100  # characters of a value that an error shows
SEGMENT_FIELD = pa.field(PARTITION_COLUMN, pa.int32(), nullable=False)
ATTEMPT_FIELD = pa.field("_attempt", pa.int32(), nullable=False)
Group: TypeAlias = tuple[Readable, pa.Array, pa.Array, pa.RecordBatch]


def wants_arrow(request: Request) -> bool:
    """Returns whether a pull asks for Arrow instead of JSON. Raises NotAcceptable if it accepts neither."""
    accepted = request.headers.get(b"accept")
    if accepted is None or accepted == b"*/*":
        return False
    if request.asks_for(ARROW):
        return True
    if not request.accepts(JSON):
        raise NotAcceptable(
            f"a pull can be answered only as {JSON} or {ARROW}, but the request accepts "
            f"{accepted[:SHOWN].decode('latin-1')!r}",
            supported=[JSON, ARROW],
        )
    return False


def together(found: Sequence[DeliveredRows]) -> Iterator[Group]:
    """Yields segment, offsets, attempts and rows. Combines adjacent rows with the same segment and schema, because
    encoding strings costs 0.2 ms per batch, however small the batch."""
    for _, group in groupby(found, lambda one: (one.segment.id, one.rows.schema)):
        first, *others = group
        if not others:
            yield first.segment, pa.array(first.offsets), pa.array(first.attempts), first.rows
            continue
        same = [first, *others]
        numbers = pa.array(np.concatenate([one.offsets for one in same]))
        attempts = pa.array(np.concatenate([one.attempts for one in same]))
        yield first.segment, numbers, attempts, pa.concat_batches([one.rows for one in same])


def arrow_answer(leased: PullResult, layout: Layout) -> Answer:
    """Encodes the answer to a pull as an Arrow stream."""
    headers = {"content-type": ARROW} | ({"lease": leased.name} if leased.name else {})
    return Answer(200, _stream(together(leased.messages), layout), headers)


def _stream(groups: Iterable[Group], layout: Layout) -> memoryview:
    schema = pa.schema([SEGMENT_FIELD, *layout.table, ATTEMPT_FIELD])
    batches: list[pa.RecordBatch] = []
    for segment, numbers, attempts, rows in groups:
        count, complete = rows.num_rows, layout.complete(rows, 0)
        numbered = [pa.array(np.full(count, segment.id, np.int32)), numbers, *complete.columns[1:]]
        batches.append(pa.RecordBatch.from_arrays([*numbered, attempts.cast(pa.int32())], schema=schema))
    size = schema.serialize().size + sum(map(pa.ipc.get_record_batch_size, batches))
    buffer = pa.allocate_buffer(size + SPARE_BYTES)  # one that grows is copied several times
    with pa.FixedSizeBufferWriter(buffer) as sink:
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return memoryview(buffer)[: sink.tell()]


MAX_WAIT_S = 30.0
MAX_PULL = 10_000
MAX_IDS = 100_000
_MORE_COMMAS = 1024  # than those between ids: in names, and between members
NONE = b'"messages":[]}'  # the end of an answer in which there are none
LEASE_ENDED = b"/problems/lease-ended"
OF_LEASES = (LeaseOfAnother, LeaseEnded, JournalUnavailable)
router = Router("subscriptions")
T = TypeVar("T")
LeaseName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}(?!\n)$")]
Consumer = Annotated[str, Meta(min_length=1, max_length=255)]


class PullRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The maximum number of messages to return, the number of seconds to wait for the first message, the consumer, and
    the name of the lease. In `ordered` mode, a pull first returns the messages that the consumer already holds; with
    `ahead`, it returns the messages after those.

    `max_messages` defaults to 100 and `wait_s` to 0. All pulls without a `consumer` count as one consumer.
    """

    max_messages: Annotated[int, Meta(ge=1, le=MAX_PULL)] = 100
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0
    consumer: Consumer | None = None
    lease: LeaseName | None = None
    ahead: bool = False


class PullAnswer(msgspec.Struct):
    """The messages, which are now leased to the consumer under the name `lease`. If the wait ended without messages,
    `lease` is null. `attempt` counts the deliveries of a message."""

    lease: str | None
    messages: list[Message]


_PULL = msgspec.json.Decoder(PullRequest)


@dataclass(frozen=True)
class SubscriptionCalls:
    """The services of the busiest subscription routes."""

    catalog: Catalog
    dispatcher: Dispatcher
    finder: DispatcherFinder
    proxy: Proxy
    reader: RequestReader

    @classmethod
    def of(cls, parts: Parts) -> Self:
        subscribing = parts.broker.subscribing
        return cls(parts.broker.catalog, subscribing.dispatcher, subscribing.finder, parts.proxy, parts.reader)

    @asynccontextmanager
    async def read(
        self, request: Request, decoder: msgspec.json.Decoder[T], topic: str, name: str
    ) -> AsyncIterator[tuple[Topic, T]]:
        """Reads a request about a subscription, and reserves memory for it until the block ends."""
        check_name(topic)
        check_name(name, "subscription")
        async with self.reader.body(request) as content:
            check_count(content)
            with self.reader.decoding_json(content):
                wanted = decode_request(content, request.header(b"content-type"), decoder)
                yield await self.catalog.require(topic), wanted


@dataclass(frozen=True)
class Pulls:
    """The route and the services that it uses."""

    calls: SubscriptionCalls
    payloads: Payloads
    waits: RelayedWaits
    ids: Ids

    @classmethod
    def of(cls, parts: Parts) -> Self:
        calls, broker = parts.get(SubscriptionCalls), parts.broker
        return cls(calls, broker.uploading.payloads, broker.subscribing.waits, broker.process.ids)

    @router.route(
        "POST",
        f"{SUBSCRIPTION}/pull",
        Action.CONSUME,
        "pullMessages",
        "Pull messages",
        mode=HOT,
        lasts=True,
        timed="pull",
        outcomes=(WAITED, EMPTY),
        takes=Takes(PullRequest, {"max_messages": 100, "wait_s": 0.1}),
        answers={200: {JSON: {"schema": PullAnswer}, ARROW: {"schema": {"type": "string", "format": "binary"}}}},
        refuses=(*OF_BODIES, 404, 406, *OF_LEASES),
        shows={"lease": "5f2b8a6c", "messages": [{**EXAMPLE, "attempt": 1}]},
        leads=(
            Lead(("ackMessages", "nackMessages", "extendLeases"), OF_SUBSCRIPTION, {"lease": "$response.body#/lease"}),
        ),
    )
    async def pull(self, request: Request, topic_name: str, name: str) -> Answer:
        """Leases messages to a consumer, and waits for the first message. Any broker can answer.

        An answer without messages means that the wait has ended. An answer with fewer messages than requested does not
        mean that no more are waiting: answers end at about 8 MiB, or after 1 s if the store is slow. If no segment
        owner can be reached, the answer is 503 `unavailable` with the `segments`.

        **Leases.** The messages of one answer form one lease. A client may choose the lease's name. If the answer is
        lost, the client repeats the pull with the same name, and gets the lease's messages that are not acked or nacked
        yet, with the same `attempt` and a new deadline. Use a new name for each pull. If the lease has ended, the
        answer is 410 `lease-ended`; if it belongs to another consumer, 409 `lease-of-another`.

        **Attempts.** A delivery counts as an attempt if the message is nacked or not acked in time. A delivery does not
        count if a seek ended it, or if it ended only because the lease of an earlier message ended. From its third
        attempt on, a message is delivered only together with other retries, at most 16. If `max_attempts` is three or
        more, the last attempt delivers the message alone. So one poison message cannot make healthy messages fail. A
        broker that is killed may forget the attempts of the last `checkpoint_s` seconds, but never an ack.

        **Consumers in `ordered` mode.** Give each process its own `consumer` name; two processes must not use the same
        name. If a consumer pulls while it holds messages that it has not acked or nacked, the broker assumes that the
        consumer crashed and restarted. The consumer gets those messages first, under a new lease and with `attempt`
        raised by one. The broker accepts acks for the old lease until the new lease is acked, and ignores nacks and
        extensions for the old lease. A message on its last attempt stays with the old lease. To prefetch, a client
        sends `ahead: true` in every pull after the first pull that returned messages, and gets the messages that
        follow. Pulls without a consumer name always behave as with `ahead`. The rules of this paragraph do not apply to
        other modes.

        **Failover.** If the broker that delivers a subscription's messages dies, another broker takes over the
        subscription. Requests wait up to `publish_timeout_s` seconds for the new broker; after that, the answer is 503
        `not-owner`. Acked messages are not redelivered; leased messages are redelivered immediately. For another
        `ack_deadline_s`, the new broker accepts acks by `ids` of messages that were leased before. A message on its
        last attempt waits for an ack during this time, and then becomes a dead letter.

        With `Accept: application/vnd.apache.arrow.stream`, the answer is an Arrow stream with the columns of the
        Parquet files, plus `segment`, `_offset` and `_attempt`. Rows are grouped by segment and sorted by offset. The
        header `lease` has the lease's name, and is absent if there are no rows."""
        calls = self.calls
        as_arrow = wants_arrow(request)  # raises before anything is leased to a client that cannot take it
        async with calls.read(request, _PULL, topic_name, name) as (topic, wanted):
            pass  # the body's memory is not needed during the wait
        search = self._pull if wanted.lease is not None else self._pull_under_some_name
        if wanted.lease is None:
            wanted.lease = self.ids.nonce()
        if calls.dispatcher.has(topic, name):
            with suppress(NotOwner, ChainDamaged):  # it is just being handed over, or its topic deleted
                found = await calls.dispatcher.pull_now(topic, name, _pull(wanted, 0))
                if found.messages:
                    return await self._delivered(request, topic, found, as_arrow)
        with waiting(request) if wanted.wait_s else nullcontext():
            answer = await request.while_there(search(request, topic, name, wanted))
        if _is_empty(answer):
            request.outcome = EMPTY
        elif wanted.wait_s:
            request.outcome = WAITED
        return answer

    async def _pull_under_some_name(self, request: Request, topic: Topic, name: str, wanted: PullRequest) -> Answer:
        """Pulls under a name that this broker chose. If that lease has ended, because an answer was lost and the
        request was repeated late, chooses another name; the client does not know the name yet."""
        with suppress(LeaseEnded):
            answer = await self._pull(request, topic, name, wanted, is_new=True)
            if answer.status != HTTPStatus.GONE or LEASE_ENDED not in answer.body:
                return answer
        return await self._pull(request, topic, name, replace(wanted, lease=self.ids.nonce(), wait_s=0))

    async def _pull(
        self, request: Request, topic: Topic, name: str, wanted: PullRequest, is_new: bool = False
    ) -> Answer:
        calls = self.calls

        async def here(target: Target) -> Answer:
            found = await calls.dispatcher.pull(topic, name, _pull(wanted, target.wait_s))
            return await self._delivered(request, topic, found, wants_arrow(request))

        async def there(target: Target) -> Answer:
            nonlocal is_new
            may_hold, is_new = not is_new, False  # once it was handed on, since its answer may be lost
            return await self._relayed(request, topic, name, wanted, target, may_hold)

        return await calls.finder.search(topic, name, calls.proxy.search_request(request, wanted.wait_s)).answer(
            here, there
        )

    async def _relayed(
        self, request: Request, topic: Topic, name: str, wanted: PullRequest, target: Target, may_hold: bool
    ) -> Answer:
        """Forwards a pull to the dispatcher. The first waiting pull waits at the dispatcher. Later ones ask for
        messages that are ready (unless none are known to be), and queue here (broker/subscriptions/subscribing)."""
        clock = self.calls.reader.clock
        until, queue = Deadline(clock, target.wait_s), None
        if target.wait_s > 0:
            queue = await self.waits.queue(topic, name, wanted.consumer)
            may_hold |= queue.is_of_one and wanted.consumer is not None and not wanted.ahead
        if queue is None or (queue.is_taken and (may_hold or not queue.is_dry(clock.monotonic_s()))):
            answer = await self._hand_on(request, target, wanted, 0)
            if queue is None or not _is_empty(answer):
                return answer
        async with queue.turn(until, target.check, wanted.consumer or "") as left_s:
            return await self._hand_on(request, target, wanted, left_s)

    async def _hand_on(self, request: Request, target: Target, wanted: PullRequest, wait_s: float) -> Answer:
        return await self.calls.proxy.relay(request, target, msgspec.json.encode(replace(wanted, wait_s=wait_s)))

    async def _delivered(self, request: Request, topic: Topic, leased: PullResult, as_arrow: bool) -> Answer:
        if as_arrow:
            self.calls.dispatcher.check_lease()
            return arrow_answer(leased, topic.layout)
        found = leased.messages
        links = await self.payloads.links_of(topic, [one.rows for one in found], request.caller.expires_us)
        self.calls.dispatcher.check_lease()
        texts = [
            message_texts(numbers, rows, segment.id, segment.layout, attempts, links, ",")
            for segment, numbers, attempts, rows in together(found)
        ]
        head = b'{"lease":%b,"messages":[' % msgspec.json.encode(leased.name)
        return Answer(200, b"".join([head, *separated(texts), b"]}"]))


def check_count(content: bytes) -> None:
    """Raises InvalidRequest before decoding if a body has more values than any valid body. Decoding it could need more
    memory than there is, and a retry would not help."""
    if content.count(b",") > MAX_IDS + _MORE_COMMAS:
        raise InvalidRequest(f"ids must have 1 to {MAX_IDS} values", field="ids", bound=MAX_IDS)


def _pull(wanted: PullRequest, wait_s: float) -> Pull:
    return Pull(wanted.max_messages, wait_s, wanted.consumer, wanted.lease, wanted.ahead)


def _is_empty(answer: Answer) -> bool:
    """Returns whether another broker's answer to a pull has no messages: an Arrow stream without a lease, or JSON."""
    if answer.status != HTTPStatus.OK:
        return False
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if headers.get("content-type") == ARROW:
        return "lease" not in headers
    return bytes(answer.body[-len(NONE) :]) == NONE
