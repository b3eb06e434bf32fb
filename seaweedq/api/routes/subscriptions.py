"""Subscriptions: create, show with lag, list, delete. Pull and ack are hot and stand in deliver."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.api.asgi.http import Answer, Scope
from seaweedq.api.asgi.openapi import broker_of, described, read_request
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.internal.proxy import at_dispatcher
from seaweedq.broker.broker import Broker
from seaweedq.broker.subscriptions.admin import Lag
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import SubscriptionRecord
from seaweedq.errors import InvalidRequest, SubscriptionConflict, SubscriptionNotFound

router = APIRouter(tags=["subscriptions"])
LISTED = 16  # subscriptions of a list that are asked for at a time
PATH = "/v1/topics/{topic}/subscriptions/{subscription}"


class StartAt(Struct, forbid_unknown_fields=True):
    """The first message whose timestamp reaches this (RFC 3339, with an offset)."""

    timestamp: Annotated[datetime, Meta(tz=True)]


class SubscriptionRequest(Struct, forbid_unknown_fields=True):
    """Every field may be left out. An existing subscription is compared only in the fields that are named."""

    mode: Literal["ordered", "shared"] | UnsetType = UNSET
    start: Literal["latest", "earliest"] | StartAt | UnsetType = UNSET
    ack_deadline_s: Annotated[float, Meta(ge=1, le=43_200)] | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=0, le=1000)] | UnsetType = UNSET
    dead_letter_topic: str | UnsetType | None = UNSET


class LagAnswer(Struct):
    """What is still to be acked of one segment; `seconds` is the age of the oldest unacked message."""

    segment: int
    acked_to: int
    end_offset: int
    messages: int
    bytes: int
    seconds: float


class SubscriptionAnswer(Struct):
    """A subscription and its lag."""

    name: str
    topic: str
    mode: str
    start: str | dict[str, str]
    ack_deadline_s: float
    max_attempts: int
    dead_letter_topic: str | None
    created_at: datetime
    lag: list[LagAnswer]


class SubscriptionList(Struct):
    """All subscriptions of a topic."""

    subscriptions: list[SubscriptionAnswer]


_REQUEST = msgspec.json.Decoder(SubscriptionRequest)
_SHOWN = {
    "name": "billing",
    "topic": "flights",
    "mode": "ordered",
    "start": "earliest",
    "ack_deadline_s": 30.0,
    "max_attempts": 0,
    "dead_letter_topic": None,
    "created_at": "2026-01-31T12:00:00Z",
    "lag": [{"segment": 0, "acked_to": 17, "end_offset": 18, "messages": 1, "bytes": 52, "seconds": 0.5}],
}


@router.put(
    PATH,
    **described(
        SubscriptionRequest,
        {201: SubscriptionAnswer, 200: SubscriptionAnswer},
        (400, 404, 408, 409, 413, 415),
        example={"start": "earliest"},
        shows=_SHOWN,
    ),
)
async def create_subscription(request: Request, topic: str, subscription: str) -> Response:
    """Create a subscription (201), or make sure that it exists with what the request names (200, else 409)."""
    broker = broker_of(request)
    check_name(topic)
    check_name(subscription, "subscription")
    wanted = await read_request(request, _REQUEST)
    found = await broker.core.catalog.known(topic)
    record = _record(wanted, broker.environment.clock.now_us())

    async def here(left_s: float) -> Answer:
        created = await broker.serving.subscribing.admin.create(found, subscription, record)
        if not created and (there := await broker.serving.subscribing.admin.find(found, subscription)):
            _compare(subscription, there, record, wanted)
        return Answer(201 if created else 200, await _shown(broker, found, subscription))

    content = msgspec.json.encode(wanted)
    return _response(await at_dispatcher(broker, request.scope, found, subscription, here, lambda left_s: content))


@router.get(PATH, **described(None, {200: SubscriptionAnswer}, (404, 409), shows=_SHOWN))
async def show_subscription(request: Request, topic: str, subscription: str) -> Response:
    """A subscription, with its lag in each segment."""
    broker = broker_of(request)
    check_name(subscription, "subscription")
    found = await broker.core.catalog.known(check_name(topic))
    return _response(await _show(broker, request.scope, found, subscription))


@router.get(
    "/v1/topics/{topic}/subscriptions",
    **described(None, {200: SubscriptionList}, (404, 409), shows={"subscriptions": [_SHOWN]}),
)
async def list_subscriptions(request: Request, topic: str) -> Response:
    """The topic's subscriptions, with their lag."""
    broker = broker_of(request)
    found = await broker.core.catalog.known(check_name(topic))
    places = asyncio.Semaphore(LISTED)

    async def show(name: str) -> Answer | None:
        async with places:
            path = f"{request.scope['raw_path'].decode('latin-1').rstrip('/')}/{name}"
            try:
                shown = await _show(broker, {**request.scope, "raw_path": path.encode()}, found, name)
            except SubscriptionNotFound:
                return None
            return shown if shown.status != 404 else None

    shown = await asyncio.gather(*map(show, await broker.serving.subscribing.admin.names(found)))
    answers = [answer for answer in shown if answer]
    if failed := next((answer for answer in answers if answer.status != 200), None):
        return _response(failed)
    bodies = b",".join(bytes(answer.body) for answer in answers)
    return Response(b'{"subscriptions":[%b]}' % bodies, media_type="application/json")


@router.delete(PATH, status_code=204, **described(None, {204: None}, (404, 409)))
async def delete_subscription(request: Request, topic: str, subscription: str) -> Response:
    """Delete a subscription and its cursors; the messages stay."""
    broker = broker_of(request)
    check_name(subscription, "subscription")
    found = await broker.core.catalog.known(check_name(topic))

    async def here(left_s: float) -> Answer:
        await broker.serving.subscribing.admin.delete(found, subscription)
        return Answer(204)

    answer = await at_dispatcher(broker, request.scope, found, subscription, here)
    return Response(status_code=204) if answer.status == 204 else _response(answer)


async def _show(broker: Broker, scope: Scope, topic: Topic, name: str) -> Answer:
    async def here(left_s: float) -> Answer:
        return Answer(200, await _shown(broker, topic, name))

    return await at_dispatcher(broker, scope, topic, name, here)


def _response(answer: Answer) -> Response:
    return Response(bytes(answer.body), answer.status, dict(answer.headers))


def _record(wanted: SubscriptionRequest, now_us: int) -> SubscriptionRecord:
    if wanted.mode == "shared":
        raise InvalidRequest("mode 'shared' is not supported yet; use 'ordered'", field="mode", value="shared")
    if wanted.max_attempts or wanted.dead_letter_topic:
        given = f"max_attempts is {wanted.max_attempts or 0}, dead_letter_topic {wanted.dead_letter_topic or None!r}"
        detail = f"{given[:300]}: dead letters are not supported yet; leave them 0 and null"
        raise InvalidRequest(detail, field="max_attempts" if wanted.max_attempts else "dead_letter_topic")
    start = "latest" if wanted.start is UNSET else wanted.start
    if isinstance(start, StartAt):
        start = {"timestamp": _in_utc(start.timestamp).isoformat()}  # type: ignore[assignment]
    deadline_s = 30.0 if wanted.ack_deadline_s is UNSET else wanted.ack_deadline_s
    # The epoch begins with the clock, so that acks of a deleted subscription of the same name never count for this one.
    return SubscriptionRecord("ordered", start, deadline_s, 0, None, now_us, epoch=now_us)  # type: ignore[arg-type]


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        detail = f"start.timestamp is {moment.isoformat()}; in UTC it must be in the years 1 to 9999"
        raise InvalidRequest(detail, field="start.timestamp", value=moment.isoformat()) from None


def _compare(name: str, there: SubscriptionRecord, record: SubscriptionRecord, wanted: SubscriptionRequest) -> None:
    named = [field for field in wanted.__struct_fields__ if getattr(wanted, field) is not UNSET]
    pairs = {field: (getattr(there, field), getattr(record, field)) for field in named}
    differences = {field: {"current": old, "requested": new} for field, (old, new) in pairs.items() if old != new}
    if differences:
        raise SubscriptionConflict(
            f"subscription {name!r} exists with another {', '.join(differences)}", differences=differences
        )


async def _shown(broker: Broker, topic: Topic, name: str) -> bytes:
    opened = await broker.serving.subscribing.dispatcher.open(topic, name)
    record = opened.record
    lag = [LagAnswer(*_fields(one)) for one in await broker.serving.subscribing.admin.lag(topic, opened)]
    created = datetime.fromtimestamp(record.created_us / 1e6, UTC)
    answer = SubscriptionAnswer(
        name,
        topic.name,
        record.mode,
        record.start,
        record.ack_deadline_s,
        record.max_attempts,
        record.dead_letter_topic,
        created,
        lag,
    )
    return msgspec.json.encode(answer)


def _fields(lag: Lag) -> tuple[int, int, int, int, int, float]:
    return lag.segment, lag.acked_to, lag.end_offset, lag.messages, lag.size_bytes, lag.seconds
