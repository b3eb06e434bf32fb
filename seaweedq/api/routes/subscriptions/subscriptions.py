"""Subscriptions: create, change, show with lag, list, delete. Pulls and answers are hot routes: pulls,
answers."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.api.access.callers import caller_of, check_right
from seaweedq.api.asgi.http import Answer, Scope
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.asgi.services import given
from seaweedq.api.asgi.shown_values import moment
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.internal.proxy import Proxy
from seaweedq.api.openapi.document import Takes, described
from seaweedq.api.routes.subscriptions.config import (
    SubscriptionChange,
    SubscriptionRequest,
    changes_of,
    compare,
    record_of,
)
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.letters.target import LetterTopics
from seaweedq.broker.read.request_search import Search
from seaweedq.broker.subscriptions.admin import SubscriptionAdmin
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.broker.subscriptions.lag import Counted, LagMeter, Stall, total
from seaweedq.broker.subscriptions.relaying import DispatcherFinder
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination.records.access import ACCESS_LEVEL
from seaweedq.coordination.records.subscriptions import SUBSCRIPTION_LEVEL, MessageFilter, SubscriptionRecord
from seaweedq.errors import SubscriptionNotFound

router = APIRouter(tags=["subscriptions"])
LISTED = 16  # subscriptions of a list that are asked for at a time
PATH = "/v1/topics/{topic}/subscriptions/{subscription}"


class LagAnswer(Struct):
    """The part of one segment that is not acked yet, as in all segments."""

    segment: int
    acked_to: int
    end_offset: int
    messages: int
    bytes: int
    seconds: float
    in_flight: int
    delayed: int
    dying: int
    waiting: int
    stalled: Stall | None
    skipped: int


class TotalLagAnswer(Struct):
    """The lag in all segments: messages that are not acked yet. `in_flight` messages are leased, `dying` ones given up,
    until their dead letters are durable; retention took `skipped` ones before they were acked, as far as this
    dispatcher has seen it."""

    messages: int
    bytes: int
    seconds: float
    in_flight: int
    delayed: int
    dying: int
    waiting: int
    stalled: Stall | None
    skipped: int


class SubscriptionAnswer(Struct):
    """A subscription and its lag. `seek_epoch` is another number after each seek, and in a subscription that was
    deleted and created again; a change of dispatcher leaves it as it is."""

    name: str
    topic: str
    mode: str
    start: str | dict[str, str]
    ack_deadline_s: float
    max_attempts: int
    dead_letter_topic: str | None
    backoff_s: tuple[float, ...]
    max_in_flight: int
    filter: MessageFilter | None
    expires_after_s: float | None
    paused: bool
    consumers: int
    idle_consumers: int
    waiting_pulls: int
    created_at: datetime
    seek_epoch: int
    lag_total: TotalLagAnswer
    lag: list[LagAnswer]


class SubscriptionList(Struct):
    """All subscriptions of a topic; `unreadable` names those that need a newer broker, where there are any."""

    subscriptions: list[SubscriptionAnswer]
    unreadable: list[str] | UnsetType = UNSET


_REQUEST = msgspec.json.Decoder(SubscriptionRequest)
_CHANGE = msgspec.json.Decoder(SubscriptionChange)
_LAG: dict[str, Any] = {"messages": 1, "bytes": 52, "seconds": 0.5, "in_flight": 1, "delayed": 0, "dying": 0}
_LAG |= {"waiting": 0, "stalled": None, "skipped": 0}
_SHOWN = {
    "name": "billing",
    "topic": "flights",
    "mode": "ordered",
    "start": "earliest",
    "ack_deadline_s": 30.0,
    "max_attempts": 0,
    "dead_letter_topic": None,
    "backoff_s": [],
    "max_in_flight": 10_000,
    "filter": None,
    "expires_after_s": None,
    "paused": False,
    "consumers": 2,
    "idle_consumers": 0,
    "waiting_pulls": 0,
    "created_at": "2026-01-31T12:00:00Z",
    "seek_epoch": 1_769_860_800_000_000,
    "lag_total": _LAG,
    "lag": [{"segment": 0, "acked_to": 17, "end_offset": 18, **_LAG}],
}


@dataclass(frozen=True)
class SubscriptionServices:
    """The services of these routes."""

    catalog: Catalog
    admin: SubscriptionAdmin
    dispatcher: Dispatcher
    finder: DispatcherFinder
    proxy: Proxy
    reader: RequestReader
    level: ClusterLevel
    meter: LagMeter
    letters: LetterTopics

    def check_new(self, record: SubscriptionRecord, changes: Collection[str]) -> None:
        """Raises NeedsLevel for a changed setting of level 3."""
        new = [name for name in record.new_in_level_3 if name in changes]
        if new:
            self.level.require(SUBSCRIPTION_LEVEL, f"a subscription with {', '.join(new)}")

    def check_letters(self, scope: Scope, target: str | None) -> None:
        """Raises Forbidden where the caller may not publish to a topic for dead letters, or create it."""
        if target is None:
            return
        check_right(scope, Action.PUBLISH, Resource(target))
        if self.catalog.find(target) is None:
            check_right(scope, Action.CREATE, Resource(target))

    def sender(self, scope: Scope) -> dict[str, str | None]:
        """Returns the members of a record that say with whose rights dead letters go out: those of who has named their
        topic, and was judged for it. There are none below level 4."""
        if self.level.written < ACCESS_LEVEL:
            return {}
        caller = caller_of(scope)
        return {"creator": caller.principal, "creator_uid": caller.uid}


Services = Annotated[SubscriptionServices, given(SubscriptionServices)]


@router.put(
    PATH,
    **described(
        Takes(SubscriptionRequest, {"start": "earliest"}),
        {201: SubscriptionAnswer, 200: SubscriptionAnswer},
        (400, 404, 408, 409, 413, 415),
        shows=_SHOWN,
    ),
)
async def create_subscription(services: Services, request: Request, topic: str, subscription: str) -> Response:
    """Creates a subscription (201), or checks that it exists with the fields that the request names (200, else 409)."""
    check_name(topic)
    check_name(subscription, "subscription")
    wanted = await services.reader.json(request, _REQUEST)
    found = await services.catalog.known(topic)
    changes = changes_of(wanted)
    record = record_of(wanted, services.reader.clock.now_us())
    services.check_letters(request.scope, record.dead_letter_topic)
    record = msgspec.structs.replace(record, **services.sender(request.scope))

    async def create() -> int:
        """Creates it or compares it; returns the status."""
        services.check_new(record, changes)
        await services.letters.check(found, record)
        created = await services.admin.create(found, subscription, record)
        if not created and (there := await services.admin.find(found, subscription)):
            compare(subscription, there, record, changes)
        return 201 if created else 200

    return await _by_dispatcher(services, request, found, subscription, wanted, create)


@router.patch(
    PATH,
    **described(
        Takes(SubscriptionChange, {"ack_deadline_s": 60}),
        {200: SubscriptionAnswer},
        (400, 404, 408, 409, 413, 415),
        shows=_SHOWN,
    ),
)
async def change_subscription(services: Services, request: Request, topic: str, subscription: str) -> Response:
    """Changes settings of a subscription; mode, start and filter stay as they are. What is leased stays leased. Dead
    letters go out with the rights of the principal that named `dead_letter_topic` last, be it the same topic again."""
    check_name(topic)
    check_name(subscription, "subscription")
    wanted = await services.reader.json(request, _CHANGE)
    found = await services.catalog.known(topic)
    changes = changes_of(wanted)
    services.check_letters(request.scope, changes.get("dead_letter_topic"))
    if changes.get("dead_letter_topic") is not None:
        changes |= services.sender(request.scope)

    async def change() -> int:
        """Changes the record, by that which the dispatcher has."""
        opened = await services.dispatcher.open(found, subscription)
        changed = msgspec.structs.replace(opened.record, **changes)
        services.check_new(changed, changes)
        if changes.keys() & {"max_attempts", "dead_letter_topic"}:
            await services.letters.check(found, changed)
        await services.admin.change(found, subscription, changes)
        return 200

    return await _by_dispatcher(services, request, found, subscription, wanted, change)


async def _by_dispatcher(
    services: SubscriptionServices,
    request: Request,
    topic: Topic,
    subscription: str,
    wanted: Struct,
    act: Callable[[], Awaitable[int]],
) -> Response:
    """Acts here, where this broker dispatches, and shows the subscription under the status that `act` returns; else
    hands the request on."""
    search = services.finder.search(topic, subscription, services.proxy.asked(request.scope))
    while True:
        async with search as target:
            if not target.here:
                return _response(await services.proxy.relay(request.scope, target, msgspec.json.encode(wanted)))
            return _response(Answer(await act(), await _encoded(services, topic, subscription)))


@router.get(PATH, **described(None, {200: SubscriptionAnswer}, (404, 409), shows=_SHOWN))
async def show_subscription(services: Services, request: Request, topic: str, subscription: str) -> Response:
    """Returns a subscription, with its lag in each segment."""
    check_name(subscription, "subscription")
    found = await services.catalog.known(check_name(topic))
    return _response(await _show(services, request.scope, found, subscription))


@router.get(
    "/v1/topics/{topic}/subscriptions",
    **described(None, {200: SubscriptionList}, (404, 409), shows={"subscriptions": [_SHOWN]}),
)
async def list_subscriptions(services: Services, request: Request, topic: str) -> Response:
    """Lists those subscriptions of the topic that the caller may describe, with their lag."""
    found = await services.catalog.known(check_name(topic))
    base = request.scope["raw_path"].decode("latin-1").rstrip("/")

    async def show(name: str) -> Answer:
        """Returns the answer of one; 404 for one that has gone meanwhile."""
        try:
            return await _show(services, {**request.scope, "raw_path": f"{base}/{name}".encode()}, found, name)
        except SubscriptionNotFound:
            return Answer(404)

    names, unreadable = await services.admin.names(found)
    caller = caller_of(request.scope)
    names = [name for name in names if judge(caller, Action.DESCRIBE, Resource(topic, name))]
    unreadable = [name for name in unreadable if judge(caller, Action.DESCRIBE, Resource(topic, name))]
    shown = await gather_bounded(LISTED, show, names)
    answers = [answer for answer in shown if answer.status != 404]  # those were deleted meanwhile
    if failed := next((answer for answer in answers if answer.status != 200), None):
        return _response(failed)
    bodies = b",".join(bytes(answer.body) for answer in answers)
    more = b',"unreadable":' + msgspec.json.encode(unreadable) if unreadable else b""
    return Response(b'{"subscriptions":[%b]%b}' % (bodies, more), media_type="application/json")


@router.delete(PATH, status_code=204, **described(None, {204: None}, (404, 409)))
async def delete_subscription(services: Services, request: Request, topic: str, subscription: str) -> Response:
    """Deletes a subscription and its cursors; the messages stay."""
    check_name(subscription, "subscription")
    found = await services.catalog.known(check_name(topic))
    search = services.finder.search(found, subscription, services.proxy.asked(request.scope))
    try:
        answer = await _delete(services, request.scope, found, subscription, search)
    except SubscriptionNotFound:
        if not search.in_doubt:
            raise
        return Response(status_code=204)
    if answer.status == 404 and search.in_doubt:  # an attempt without an answer has deleted it
        return Response(status_code=204)
    return Response(status_code=204) if answer.status == 204 else _response(answer)


async def _delete(services: SubscriptionServices, scope: Scope, topic: Topic, name: str, search: Search) -> Answer:
    while True:
        async with search as target:
            if not target.here:
                return await services.proxy.relay(scope, target)
            await services.admin.delete(topic, name)
            return Answer(204)


async def _show(services: SubscriptionServices, scope: Scope, topic: Topic, name: str) -> Answer:
    search = services.finder.search(topic, name, services.proxy.asked(scope))
    while True:
        async with search as target:
            if target.here:
                return Answer(200, await _encoded(services, topic, name))
            return await services.proxy.relay(scope, target)


def _response(answer: Answer) -> Response:
    return Response(bytes(answer.body), answer.status, dict(answer.headers))


async def _encoded(services: SubscriptionServices, topic: Topic, name: str) -> bytes:
    opened = await services.dispatcher.open(topic, name)
    record = opened.record
    lags = await services.meter.measure(topic, opened)
    now_s = services.reader.clock.monotonic_s()
    created = moment(record.created_us)
    answer = SubscriptionAnswer(
        name,
        topic.name,
        record.mode,
        record.start,
        record.ack_deadline_s,
        record.max_attempts,
        record.dead_letter_topic,
        record.backoff_s,
        record.max_in_flight,
        record.filter,
        record.expires_after_s,
        record.paused,
        opened.consumers(now_s),
        opened.idle_consumers(now_s),
        opened.waiting_pulls(now_s),
        created,
        record.seek.epoch if record.seek else record.created_us,
        TotalLagAnswer(**_named(total(lags, opened))),
        [LagAnswer(one.segment, one.acked_to, one.end_offset, **_named(one.counted)) for one in lags],
    )
    return msgspec.json.encode(answer)


def _named(counted: Counted) -> dict[str, Any]:
    """Returns the members of an answer; its sizes are all bytes, so that `bytes` says enough."""
    members = asdict(counted)
    return {"bytes": members.pop("size_bytes"), **members}
