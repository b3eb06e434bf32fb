"""Pull and ack, on bare ASGI."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from seaweedq.api.asgi.decoding_memory import needed_by_json
from seaweedq.api.asgi.http import Answer, ClientGone, Receive, Scope, until_gone
from seaweedq.api.asgi.json_requests import decode_request
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.asgi.request_reader import RequestReader
from seaweedq.api.internal.proxy import Proxy
from seaweedq.api.routes.fetch import Message
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.subscriptions.dispatcher import Delivered, Dispatcher
from seaweedq.broker.subscriptions.dispatcher_search import DispatcherFinder
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.codec.message_json import json_array, message_texts
from seaweedq.errors import ChainDamaged, NotOwner

MAX_WAIT_S = 30.0
MAX_PULL = 10_000
MAX_IDS = 100_000
T = TypeVar("T")
Consumer = Annotated[str, Meta(min_length=1, max_length=255)]
_ID = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages are wanted, how long to wait for the first one (seconds), and for whom."""

    max_messages: Annotated[int, Meta(ge=1, le=MAX_PULL)] = 100
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0
    consumer: Consumer | None = None


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The ids to ack; with `consumer`, only those that this consumer holds."""

    ids: Annotated[list[str], Meta(max_length=MAX_IDS)]
    consumer: Consumer | None = None


class PullAnswer(msgspec.Struct):
    """Messages that are leased to the consumer now; none when the wait has ended. `attempt` counts their deliveries."""

    messages: list[Message]


class AckAnswer(msgspec.Struct):
    """`acked` counts the ids that are acked now, durably; `late` those of them whose lease had ended, while nobody else
    got the message; `unknown` ones are neither leased nor acked."""

    acked: int
    late: int
    unknown: list[str]


_PULL = msgspec.json.Decoder(PullRequest)
_ACK = msgspec.json.Decoder(AckRequest)


@dataclass(frozen=True)
class PullAndAck:
    """The two routes, with the services that they use."""

    catalog: Catalog
    dispatcher: Dispatcher
    finder: DispatcherFinder
    proxy: Proxy
    payloads: Payloads
    reader: RequestReader

    async def pull(self, scope: Scope, receive: Receive, topic_name: str, name: str) -> Answer:
        """Leases messages to a consumer, and waits for the first one."""
        async with self._asked(scope, receive, _PULL, topic_name, name) as (topic, wanted):
            pass  # the body's memory is not needed during the wait
        if self.dispatcher.has(topic, name):
            with suppress(NotOwner, ChainDamaged):  # it is just being handed over, or its topic deleted
                found = await self.dispatcher.look(topic, name, wanted.consumer, wanted.max_messages)
                if found:
                    return await self._delivered(topic, found)
        return await _while_there(receive, self._pull(scope, topic, name, wanted))

    async def _pull(self, scope: Scope, topic: Topic, name: str, wanted: PullRequest) -> Answer:
        search = self.finder.search(topic, name, self.proxy.asked(scope, wanted.wait_s))
        while True:
            async with search as target:
                if not target.here:
                    content = msgspec.json.encode(replace(wanted, wait_s=target.wait_s))
                    return await self.proxy.relay(scope, target, content)
                found = await self.dispatcher.pull(topic, name, wanted.consumer, wanted.max_messages, target.wait_s)
                return await self._delivered(topic, found)

    async def _delivered(self, topic: Topic, found: Sequence[Delivered]) -> Answer:
        links = await self.payloads.links_of(topic, [one.rows for one in found])
        self.finder.check_lease()
        texts = [
            message_texts(numbers, rows, segment.id, segment.layout, attempts, links)
            for segment, numbers, attempts, rows in _together(found)
        ]
        return Answer(200, b'{"messages":%b}' % json_array(texts))

    async def ack(self, scope: Scope, receive: Receive, topic_name: str, name: str) -> Answer:
        """Acks messages; they are acked durably when this answers."""
        async with self._asked(scope, receive, _ACK, topic_name, name) as (topic, wanted):
            search = self.finder.search(topic, name, self.proxy.asked(scope))
            while True:
                async with search as target:
                    if target.here:
                        return await self._ack(topic, name, wanted)
                    return await self.proxy.relay(scope, target, msgspec.json.encode(wanted))

    async def _ack(self, topic: Topic, name: str, wanted: AckRequest) -> Answer:
        offsets: dict[int, list[int]] = {}
        unknown = []
        for text in wanted.ids:
            if parts := _ID.fullmatch(text):
                offsets.setdefault(int(parts[1]), []).append(int(parts[2]))
            else:
                unknown.append(text)
        judged = await self.dispatcher.ack(topic, name, offsets, wanted.consumer)
        self.finder.check_lease()
        unknown += [f"{segment}-{offset}" for segment, result in judged.items() for offset in result.unknown]
        acked, late = sum(one.known for one in judged.values()), sum(one.late for one in judged.values())
        return Answer(200, msgspec.json.encode(AckAnswer(acked, late, unknown)))

    @asynccontextmanager
    async def _asked(
        self, scope: Scope, receive: Receive, decoder: msgspec.json.Decoder[T], topic: str, name: str
    ) -> AsyncIterator[tuple[Topic, T]]:
        check_name(topic)
        check_name(name, "subscription")
        async with self.reader.body(scope, receive) as content:
            with self.reader.budget.holding(needed_by_json(content)):
                request = decode_request(content, scope, decoder)
                yield await self.catalog.known(topic), request


def _together(found: Sequence[Delivered]) -> Iterator[tuple[Readable, pa.Array, pa.Array, pa.RecordBatch]]:
    """Yields segment, offsets, attempts and rows, neighbours of one segment and schema put together: texts take 0.2 ms
    a batch, however small that is."""
    for _, group in groupby(found, lambda one: (one.segment.id, one.rows.schema)):
        same = list(group)
        numbers = pa.array(np.concatenate([one.offsets for one in same]))
        attempts = pa.array(np.concatenate([one.attempts for one in same]))
        rows = same[0].rows if len(same) == 1 else pa.concat_batches([one.rows for one in same])
        yield same[0].segment, numbers, attempts, rows


async def _while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. It is cancelled when the client goes, so that nothing is leased to a client that
    has gone. Raises ClientGone."""
    working, gone = asyncio.create_task(work), asyncio.create_task(until_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        gone.cancel()
