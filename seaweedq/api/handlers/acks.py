"""Acks, nacks and lease extensions, on bare ASGI."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from seaweedq.access.rights import Action
from seaweedq.api.handlers.pulls import MAX_IDS, OF_LEASES, Consumer, LeaseName, SubscriptionCalls
from seaweedq.api.handlers.subscriptions import AckDeadline, Delay
from seaweedq.api.request import Answer, Request
from seaweedq.api.routes import HOT, OF_BODIES, SUBSCRIPTION, Router, Takes
from seaweedq.api.services import Parts
from seaweedq.broker.read import Target
from seaweedq.broker.subscriptions import Refusal, Selection
from seaweedq.broker.topics import Topic
from seaweedq.errors import ChainDamaged, InvalidRequest, NoDeadLetters, NotOwner
from seaweedq.rows.message_json import read_ids

router = Router("subscriptions")
FEW_IDS = 5_000  # are read at once; more in a thread, since 100,000 take 60 ms


class AckRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Select the messages by `ids`, by `lease` (all its messages), or by both (only those `ids` that the lease holds).
    With `consumer`, the broker acks only ids that it last delivered to this consumer, and the lease must belong to this
    consumer."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_IDS)] | None = None
    lease: LeaseName | None = None
    consumer: Consumer | None = None


class NackRequest(AckRequest, forbid_unknown_fields=True, omit_defaults=True):
    """Select the messages as in an ack. `delay_s` is the time until redelivery; null means the subscription's backoff.

    `reject` sends the messages to the dead-letter topic, with `reason` as a header. `"attempted": false` redelivers the
    messages immediately and does not count the delivery as an attempt: use it to return messages that you have not
    started to handle. `"attempted": false` cannot be combined with `delay_s` or `reject`."""

    delay_s: Delay | None = None
    reject: bool = False
    attempted: bool = True
    reason: Annotated[str, Meta(max_length=255)] | None = None


class ExtendRequest(AckRequest, forbid_unknown_fields=True, omit_defaults=True):
    """Select the messages as in an ack. Their leases end `ack_deadline_s` seconds from now; null means the
    subscription's `ack_deadline_s`."""

    ack_deadline_s: AckDeadline | None = None


class AckAnswer(msgspec.Struct):
    """`acked` counts messages that are now durably acked, including those acked by earlier requests. `late` counts
    acked messages whose lease had already ended, but which no other consumer had received. `unknown` lists ids that are
    not acked, and that neither this lease nor this consumer holds."""

    acked: int
    late: int
    unknown: list[str]


class NackAnswer(msgspec.Struct):
    """`nacked` counts the messages whose lease this request ended. `unknown` lists ids that are not leased. `late` is
    always 0."""

    nacked: int
    late: int
    unknown: list[str]


class ExtendAnswer(msgspec.Struct):
    """`extended` counts the messages whose lease now ends later. `unknown` lists ids that are not leased. `late` is
    always 0."""

    extended: int
    late: int
    unknown: list[str]


_ACK = msgspec.json.Decoder(AckRequest)
_NACK = msgspec.json.Decoder(NackRequest)
_EXTEND = msgspec.json.Decoder(ExtendRequest)


@dataclass(frozen=True)
class Acks:
    """The three routes and the services that they use."""

    calls: SubscriptionCalls

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.get(SubscriptionCalls))

    @router.route(
        "POST",
        f"{SUBSCRIPTION}/ack",
        Action.CONSUME,
        "ackMessages",
        "Ack messages",
        mode=HOT,
        timed="ack",
        takes=Takes(AckRequest, {"ids": ["0-17", "0-18"]}, required=True),
        answers={200: AckAnswer},
        refuses=(*OF_BODIES, 404, *OF_LEASES),
        shows={"acked": 1, "late": 0, "unknown": ["0-18"]},
    )
    async def ack(self, request: Request, topic_name: str, name: str) -> Answer:
        """Acks messages, in any order. When the broker answers, the acks are durable.

        If the request has only `ids`, the broker answers 200 even if it could ack none of the messages: check `unknown`
        in the answer. If the request has only a `lease`, it acks every message in the lease, and every message that was
        in the lease earlier and that no consumer has received since. The broker gives the same answer to a repeated
        request. If nothing is left to ack, the answer is 410 `lease-ended`."""
        async with self.calls.read(request, _ACK, topic_name, name) as (topic, wanted):
            return await self.answer(request, topic, name, wanted)

    @router.route(
        "POST",
        f"{SUBSCRIPTION}/nack",
        Action.CONSUME,
        "nackMessages",
        "Nack messages",
        mode=HOT,
        timed="nack",
        takes=Takes(NackRequest, {"ids": ["0-17", "0-18"], "delay_s": 10}, required=True),
        answers={200: NackAnswer},
        refuses=(*OF_BODIES, 404, *OF_LEASES, NoDeadLetters),
        shows={"nacked": 1, "late": 0, "unknown": ["0-18"]},
    )
    async def nack(self, request: Request, topic_name: str, name: str) -> Answer:
        """Returns leased messages to the broker, which redelivers them after a delay, or publishes them as dead
        letters.

        If a message is rejected, or fails for the `max_attempts`-th time, the broker publishes it to the subscription's
        `dead_letter_topic` and then acks it. Meanwhile no consumer receives the message; the message does not hold up
        others, but counts toward `max_in_flight`. If the subscription has no `dead_letter_topic`, the broker answers a
        request with `reject` with 409 `no-dead-letter-topic`.

        A dead letter has the key, value, timestamp and headers of the original message, a copy of its payload, and no
        expiry. It is published exactly once, even if brokers crash. The broker adds these headers: `dead-letter-reason`
        (`max-attempts` or `rejected`), `dead-letter-detail` (the nack's `reason`, or a note that the ack deadline
        passed), `dead-letter-topic`, `dead-letter-subscription` and `dead-letter-id` (the origin of the message),
        `dead-letter-attempts`, `dead-letter-time`.

        A nack is not durable: a broker that is killed forgets all delays, and the rejections of the last `checkpoint_s`
        seconds. If the request has only a `lease`, and no messages are left in this lease, the broker repeats its
        answer to the earlier nack, or answers 410 `lease-ended`."""
        async with self.calls.read(request, _NACK, topic_name, name) as (topic, wanted):
            return await self.answer(request, topic, name, wanted)

    @router.route(
        "POST",
        f"{SUBSCRIPTION}/extend",
        Action.CONSUME,
        "extendLeases",
        "Extend the leases of messages",
        mode=HOT,
        timed="extend",
        takes=Takes(ExtendRequest, {"ids": ["0-17", "0-18"], "ack_deadline_s": 60}, required=True),
        answers={200: ExtendAnswer},
        refuses=(*OF_BODIES, 404, *OF_LEASES),
        shows={"extended": 1, "late": 0, "unknown": ["0-18"]},
    )
    async def extend(self, request: Request, topic_name: str, name: str) -> Answer:
        """Sets a new deadline for leases, counted from now. If the request has only a `lease`, and no messages are left
        in this lease, the broker answers 410 `lease-ended`."""
        async with self.calls.read(request, _EXTEND, topic_name, name) as (topic, wanted):
            return await self.answer(request, topic, name, wanted)

    async def answer(self, request: Request, topic: Topic, name: str, wanted: AckRequest) -> Answer:
        """Returns the dispatcher's answer to a request about messages."""
        calls = self.calls
        if wanted.ids is None and wanted.lease is None:
            raise InvalidRequest("the request must have at least one of the fields ids and lease", field="ids")
        if isinstance(wanted, NackRequest) and not wanted.attempted and (wanted.delay_s or wanted.reject):
            other = "reject" if wanted.reject else "delay_s"
            raise InvalidRequest(
                f"attempted=false cannot be combined with {other}: messages nacked with "
                "attempted=false are redelivered immediately",
                field="attempted",
            )

        if calls.dispatcher.has(topic, name):
            with suppress(NotOwner, ChainDamaged):  # it is just being handed over, or its topic deleted
                return await self._answer_here(topic, name, wanted)

        def there(target: Target) -> Awaitable[Answer]:
            return calls.proxy.relay(request, target, msgspec.json.encode(wanted))

        search = calls.finder.search(topic, name, calls.proxy.search_request(request))
        return await search.answer(lambda _: self._answer_here(topic, name, wanted), there)

    async def _answer_here(self, topic: Topic, name: str, wanted: AckRequest) -> Answer:
        dispatcher, many = self.calls.dispatcher, len(wanted.ids or ()) > FEW_IDS
        selection, unknown = await asyncio.to_thread(_selection, wanted) if many else _selection(wanted)
        if isinstance(wanted, NackRequest):
            refusal = Refusal(wanted.delay_s, wanted.reject, wanted.reason or "", wanted.attempted)
            done = await dispatcher.nack(topic, name, selection, refusal)
            kind: type[AckAnswer] | type[NackAnswer] | type[ExtendAnswer] = NackAnswer
        elif isinstance(wanted, ExtendRequest):
            done = await dispatcher.extend(topic, name, selection, wanted.ack_deadline_s)
            kind = ExtendAnswer
        else:
            done = await dispatcher.ack(topic, name, selection)
            kind = AckAnswer
        for segment, offsets in done.unknown.items():
            unknown += [f"{segment}-{offset}" for offset in offsets]
        return Answer(200, msgspec.json.encode(kind(done.known, done.late, unknown)))


def _selection(wanted: AckRequest) -> tuple[Selection, list[str]]:
    """Returns the messages that a request names, and the invalid ids."""
    if wanted.ids is None:
        return Selection(None, wanted.lease, wanted.consumer), []
    offsets, strange = read_ids(wanted.ids)
    return Selection(offsets, wanted.lease, wanted.consumer), strange
