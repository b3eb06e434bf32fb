"""Subscriptions: their settings; list, create, show with lag, change, delete. Pulls, acks and seeks are in other files.

The list of all topics' subscriptions has only names: no lag is measured, and no dispatcher is asked."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from seaweedq.access.rights import Action, Resource, judge
from seaweedq.api.access.authentication import check_right
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.handlers.principals import MAX_PAGE
from seaweedq.api.parameters import (
    PageToken,
    PathSubscription,
    PathTopic,
    RequestDep,
    in_utc,
    integer,
    json_answer,
    moment,
    show_differences,
)
from seaweedq.api.proxy import Proxy
from seaweedq.api.request import Answer, Request
from seaweedq.api.routes import KNOWN, OF_BODIES, OF_CREATION, OF_SUBSCRIPTION, SUBSCRIPTION, TOPIC, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.read import Target
from seaweedq.broker.subscriptions import (
    DeadLetterTopics,
    Dispatcher,
    DispatcherFinder,
    LagCounts,
    LagMeter,
    ListedSubscription,
    Stall,
    SubscriptionAdmin,
    total,
)
from seaweedq.broker.topics import Catalog, Topic
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.records import MessageFilter, SubscriptionRecord
from seaweedq.errors import Forbidden, InvalidRequest, SubscriptionConflict, SubscriptionNotFound, TopicConflict
from seaweedq.segments.entry import NAME

LONGEST_S = 43_200  # of a lease or a delay: half a day
AckDeadline = Annotated[float, Meta(ge=1, le=LONGEST_S)]
MaxAttempts = Annotated[int, Meta(ge=0, le=100)]
DeadLetterTopic = Annotated[str, Meta(pattern=rf"^{NAME}(?!\n)$")]
Delay = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Backoff = Annotated[list[Delay], Meta(max_length=100)]
MaxInFlight = Annotated[int, Meta(ge=1, le=1_000_000)]
ExpiresAfter = Annotated[float, Meta(ge=60, le=315_360_000)]


class StartAt(Struct, forbid_unknown_fields=True):
    """The first message with this timestamp or a later one (RFC 3339 with a UTC offset)."""

    timestamp: Annotated[datetime, Meta(tz=True)]


class Filter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The filter for the messages to deliver: the key starts with `key_prefix`, and every header in `headers` has the
    given value. All other messages count as acked."""

    key_prefix: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    headers: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=255)], Annotated[str, Meta(max_length=4096)]],
        Meta(max_length=16),
    ] = {}


class SubscriptionRequest(Struct, forbid_unknown_fields=True):
    """All fields are optional. For an existing subscription, only the fields in the request are compared.

    - `start`: `latest` (the default), `earliest`, or a timestamp.
    - `ack_deadline_s`: how long a message is leased, 30 by default.
    - `backoff_s`: the delays after the first, second, ... failed delivery. The last delay also applies to all later
      failures. The default is no delay.
    - `max_attempts`: the number of failed deliveries after which a message becomes a dead letter. The default 0 means
      never. This field requires `dead_letter_topic`. If that topic does not exist, the broker creates it with this
      topic's format and schema.
    - `max_in_flight`: how many messages may be leased at the same time, 10,000 by default.
    - `expires_after_s`: the subscription is deleted if it is unused and has no lease for this time. Showing a
      subscription does not count as use.
    """

    mode: Literal["ordered", "shared", "keyed"] | UnsetType = UNSET
    start: Literal["latest", "earliest"] | StartAt | UnsetType = UNSET
    ack_deadline_s: AckDeadline | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET
    dead_letter_topic: DeadLetterTopic | UnsetType | None = UNSET
    backoff_s: Backoff | UnsetType = UNSET
    max_in_flight: MaxInFlight | UnsetType = UNSET
    filter: Filter | UnsetType | None = UNSET
    expires_after_s: ExpiresAfter | UnsetType | None = UNSET


class SubscriptionChange(Struct, forbid_unknown_fields=True):
    """The settings to change. Settings that are left out keep their values, and null restores a default. `mode`,
    `start` and `filter` cannot be changed.

    While a subscription is `paused`, the broker leases no messages. Existing leases stay valid, and their messages can
    be acked.
    """

    FIXED: ClassVar = ("mode", "start", "filter")

    ack_deadline_s: AckDeadline | UnsetType | None = UNSET
    max_attempts: MaxAttempts | UnsetType | None = UNSET
    dead_letter_topic: DeadLetterTopic | UnsetType | None = UNSET
    backoff_s: Backoff | UnsetType | None = UNSET
    max_in_flight: MaxInFlight | UnsetType | None = UNSET
    expires_after_s: ExpiresAfter | UnsetType | None = UNSET
    paused: bool | UnsetType | None = UNSET


_PLAIN = SubscriptionRecord("ordered", "latest", 30.0, 0, None, 0, epoch=0)


def record_of(wanted: SubscriptionRequest, now_us: int) -> SubscriptionRecord:
    """Makes the record of a new subscription. Raises InvalidRequest."""
    # The epoch begins with the clock, so that acks of a deleted subscription of the same name never count for this one.
    return structs.replace(_PLAIN, created_us=now_us, epoch=now_us, **changes_of(wanted))


def changes_of(wanted: SubscriptionRequest | SubscriptionChange) -> dict[str, Any]:
    """Converts the fields that a request names to the record's form; null is the default. Raises InvalidRequest."""
    named = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not UNSET}
    found = {name: getattr(_PLAIN, name) if value is None else value for name, value in named.items()}
    if isinstance(start := found.get("start"), StartAt):
        found["start"] = {"timestamp": in_utc(start.timestamp, "start.timestamp").isoformat()}
    if "backoff_s" in found:
        found["backoff_s"] = tuple(found["backoff_s"])
    if (chosen := found.get("filter")) is not None:
        if not chosen.key_prefix and not chosen.headers:
            raise InvalidRequest("the filter {} is empty; set key_prefix, headers or both", field="filter", value={})
        found["filter"] = MessageFilter(chosen.key_prefix, chosen.headers)
    return found


def compare(name: str, there: SubscriptionRecord, record: SubscriptionRecord, named: Iterable[str]) -> None:
    """Raises SubscriptionConflict if an existing subscription differs from a record in the `named` fields."""
    pairs = {field: (getattr(there, field), getattr(record, field)) for field in named}
    differences = {field: {"current": old, "requested": new} for field, (old, new) in pairs.items() if old != new}
    if differences:
        raise SubscriptionConflict(
            f"subscription {name!r} already exists: {show_differences(differences)}", differences=differences
        )


router = Router("subscriptions")
LISTED = 16  # subscriptions of a list that are asked for at a time


class LagAnswer(Struct):
    """The lag of one segment, with the same fields as the total lag. All messages below `acked_to` are acked."""

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
    """The lag over all segments: the number of unacked messages, their approximate size in bytes, and the age of the
    oldest message in `seconds`.

    - `in_flight` messages are leased, `delayed` messages wait for their redelivery, `waiting` messages are ready for
      the next pull.
    - `dying` messages have used up their attempts or were rejected, and their dead letters are not durable yet.
    - `stalled` is the reason why nobody receives the waiting messages: `paused`, `max_in_flight`, `window` (all
      messages within 100,000 offsets are delivered), or null.
    - `skipped` messages were deleted by retention before they were acked, as far as this dispatcher has observed.
    """

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
    """A subscription and its lag. `seek_epoch` changes with each seek, and when a subscription is deleted and created
    again, but not when another broker becomes the dispatcher.

    `consumers` counts consumers that are waiting, have pulled within the last second, or hold messages.
    `idle_consumers` counts consumers that receive nothing, because in `ordered` mode every segment belongs to another
    consumer. `waiting_pulls` counts pulls that wait for messages. Counts from other brokers may be a second old."""

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
    """All subscriptions of a topic. `unreadable` lists the names of subscriptions whose records only a newer broker can
    read."""

    subscriptions: list[SubscriptionAnswer]
    unreadable: list[str] | UnsetType = UNSET


class SubscriptionName(Struct):
    """A subscription in a list of several topics."""

    topic: str
    name: str


class SubscriptionNames(Struct, omit_defaults=True):
    """One page of subscriptions. `next_page_token` is present if more follow. `unreadable` lists this page's
    subscriptions whose records only a newer broker can read."""

    subscriptions: list[SubscriptionName]
    unreadable: list[SubscriptionName] | UnsetType = UNSET
    next_page_token: str | UnsetType = UNSET


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
    meter: LagMeter
    letters: DeadLetterTopics

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker, subscribing = parts.broker, parts.broker.subscribing
        dispatching = subscribing.dispatcher, subscribing.finder, parts.proxy
        letters = broker.dead_lettering.topics
        return cls(broker.catalog, subscribing.admin, *dispatching, parts.reader, subscribing.meter, letters)

    def check_letters(self, request: Request, target: str | None) -> None:
        """Raises Forbidden if the caller may not publish to the dead-letter topic, or create it."""
        if target is None:
            return
        if request.caller.is_subject:
            raise Forbidden(
                "only a principal can set dead_letter_topic, and the caller is not one: brokers publish dead letters "
                "with the rights of the principal that set dead_letter_topic. Create a principal for the caller, or "
                "let an existing principal set dead_letter_topic",
                action=str(Action.PUBLISH),
                resource=target,
            )
        check_right(request.caller, Action.PUBLISH, Resource(target))
        if self.catalog.get(target) is None:
            check_right(request.caller, Action.CREATE, Resource(target))

    def sender(self, request: Request) -> dict[str, str | None]:
        """Returns the record's fields that state whose rights publish dead letters: those of the caller that named the
        dead-letter topic."""
        caller = request.caller
        return {"creator": caller.principal, "creator_uid": caller.uid}


SubscriptionDep = Annotated[SubscriptionServices, given(SubscriptionServices)]


@router.route(
    "GET",
    "/v1/subscriptions",
    KNOWN,
    "listAllSubscriptions",
    "List the subscriptions of all topics",
    answers={200: SubscriptionNames},
    refuses=(400,),
    shows={"subscriptions": [{"topic": "flights", "name": "billing"}], "next_page_token": "flights/1/billing"},
)
async def list_all_subscriptions(
    services: SubscriptionDep,
    request: RequestDep,
    size: Annotated[int, integer("page_size", 1, MAX_PAGE, "maximum number of subscriptions", MAX_PAGE)],
    page_token: PageToken,
) -> Response:
    """Lists the names of all topics' subscriptions that the caller may describe, page by page."""
    after = None if page_token is None else _place(page_token)
    caller, found, more = request.caller, list[ListedSubscription](), False
    async for one in services.admin.every(after):
        topic = services.catalog.get(one.topic)  # which may be another one of that name
        is_there = topic is not None and topic.record.incarnation == one.incarnation
        if is_there and judge(caller, Action.DESCRIBE, Resource(one.topic, one.name)):
            if more := len(found) == size:
                break
            found.append(one)
    page = SubscriptionNames([_name(one) for one in found if one.is_readable])
    if unreadable := [_name(one) for one in found if not one.is_readable]:
        page.unreadable = unreadable
    if more:
        page.next_page_token = f"{found[-1].topic}/{found[-1].incarnation}/{found[-1].name}"
    return json_answer(page)


def _name(one: ListedSubscription) -> SubscriptionName:
    return SubscriptionName(one.topic, one.name)


def _place(text: str) -> tuple[str, int, str]:
    """Decodes a page token. Raises InvalidRequest."""
    topic, _, rest = text.partition("/")
    incarnation, _, name = rest.partition("/")
    try:
        place = topic, int(incarnation), name
        keys.SUBSCRIPTIONS.key(*place)
    except ValueError:
        raise InvalidRequest(
            f"page_token must be the next_page_token of an earlier page, not {text[:100]!r}", field="page_token"
        ) from None
    return place


@router.route(
    "GET",
    f"{TOPIC}/subscriptions",
    Action.DESCRIBE,
    "listSubscriptions",
    "List a topic's subscriptions",
    answers={200: SubscriptionList},
    refuses=(404, 409),
    shows={"subscriptions": [_SHOWN]},
)
async def list_subscriptions(services: SubscriptionDep, request: RequestDep, topic: PathTopic) -> Response:
    """Lists the topic's subscriptions that the caller may describe, with their lag."""
    found = await services.catalog.require(topic)

    async def show(name: str) -> Answer:
        """Returns one subscription's answer; 404 if it was deleted in the meantime."""
        try:
            return await _show(services, request.derived("GET", f"{request.path}/{name}"), found, name)
        except SubscriptionNotFound:
            return Answer(404)

    names, unreadable = await services.admin.names(found)
    caller = request.caller
    names = [name for name in names if judge(caller, Action.DESCRIBE, Resource(topic, name))]
    unreadable = [name for name in unreadable if judge(caller, Action.DESCRIBE, Resource(topic, name))]
    shown = await gather_bounded(LISTED, show, names)
    answers = [answer for answer in shown if answer.status != 404]  # those were deleted meanwhile
    if failed := next((answer for answer in answers if answer.status != 200), None):
        return _response(failed)
    bodies = b",".join(bytes(answer.body) for answer in answers)
    more = b',"unreadable":' + msgspec.json.encode(unreadable) if unreadable else b""
    return Response(b'{"subscriptions":[%b]%b}' % (bodies, more), media_type="application/json")


@router.route(
    "PUT",
    SUBSCRIPTION,
    Action.SUBSCRIBE,
    "createSubscription",
    "Create a subscription",
    answers={201: SubscriptionAnswer, 200: SubscriptionAnswer},
    refuses=(*OF_BODIES, 404, *OF_CREATION, TopicConflict),
    shows=_SHOWN,
    leads=(
        Lead(
            ("getSubscription", "updateSubscription", "pullMessages", "seekSubscription", "deleteSubscription"),
            OF_SUBSCRIPTION,
        ),
    ),
)
async def create_subscription(
    services: SubscriptionDep,
    request: RequestDep,
    topic: PathTopic,
    subscription: PathSubscription,
    wanted: Annotated[SubscriptionRequest, body(SubscriptionRequest, {"start": "earliest"})],
) -> Response:
    """Creates a subscription (201). If it exists, compares it with the fields in the request: 200 if they match,
    otherwise 409.

    The `mode` decides which consumer gets which messages, and which messages must wait for others:

    - `ordered`: each segment has one consumer at a time, which receives its messages in order. Segments are spread
      evenly over the consumers; surplus consumers receive nothing. If there are more than 64 consumers (or more than
      twice as many as segments, if that is more), a consumer keeps segments only while it waits or pulls again. If a
      lease ends without an ack, the leases of later messages in the same segment end too, and delivery restarts at the
      first unacked message. A consumer keeps a segment for one second after its last pull.
    - `keyed`: any number of consumers share a segment. Messages with the same key are delivered in order, under one
      lease at a time. An unacked message holds back only later messages with the same key, or with a key that has the
      same one of 65,536 hashes. Messages without a key have no order.
    - `shared`: each message has its own lease, and no message waits for another.

    In `ordered` and `keyed` mode, a segment that replaced others delivers its messages once all messages of its
    predecessors are acked. In each segment, a subscription delivers only messages within 100,000 offsets of the first
    unacked one. With a `filter`, one pull examines at most 65,536 messages. Messages that no pull has examined yet
    count toward the lag even if the filter excludes them."""
    found = await services.catalog.require(topic)
    changes = changes_of(wanted)
    record = record_of(wanted, services.reader.clock.now_us())
    services.check_letters(request, record.dead_letter_topic)
    record = msgspec.structs.replace(record, **services.sender(request))

    async def create() -> int:
        """Creates the subscription or compares it. Returns the status."""
        checked = await services.letters.check(found, record)
        created = await services.admin.create(found, subscription, record, checked)
        if not created and (there := await services.admin.find(found, subscription)):
            compare(subscription, there, record, changes)
        return 201 if created else 200

    return await _by_dispatcher(services, request, found, subscription, wanted, create)


@router.route(
    "GET",
    SUBSCRIPTION,
    Action.DESCRIBE,
    "getSubscription",
    "Get a subscription and its lag",
    answers={200: SubscriptionAnswer},
    refuses=(404, 409),
    shows=_SHOWN,
)
async def show_subscription(
    services: SubscriptionDep, request: RequestDep, topic: PathTopic, subscription: PathSubscription
) -> Response:
    """Returns a subscription, with its lag in each segment.

    Sealed segments whose messages are all acked are omitted. Successors that wait for their predecessors are included.
    To compute the lag, the broker lists the store once per thousand new files, and reads each segment's oldest unacked
    row."""
    found = await services.catalog.require(topic)
    return _response(await _show(services, request, found, subscription))


@router.route(
    "PATCH",
    SUBSCRIPTION,
    Action.SUBSCRIBE,
    "updateSubscription",
    "Change a subscription",
    answers={200: SubscriptionAnswer},
    refuses=(*OF_BODIES, 404, *OF_CREATION, TopicConflict),
    shows=_SHOWN,
)
async def change_subscription(
    services: SubscriptionDep,
    request: RequestDep,
    topic: PathTopic,
    subscription: PathSubscription,
    wanted: Annotated[SubscriptionChange, body(SubscriptionChange, {"ack_deadline_s": 60})],
) -> Response:
    """Changes settings of a subscription. Fields that the request omits keep their values, and `mode`, `start` and
    `filter` never change. Leases keep their deadlines.

    Dead letters are published with the rights of the principal that created the subscription or last set
    `dead_letter_topic`. To publish dead letters with your own rights, set the same topic again. If you lower
    `max_attempts`, messages that have already reached the new number become dead letters."""
    found = await services.catalog.require(topic)
    changes = changes_of(wanted)
    services.check_letters(request, changes.get("dead_letter_topic"))
    if changes.get("dead_letter_topic") is not None:
        changes |= services.sender(request)

    async def change() -> int:
        """Changes the record, starting from the dispatcher's."""
        opened = await services.dispatcher.open(found, subscription)
        changed = msgspec.structs.replace(opened.record, **changes)
        concerned = bool(changes.keys() & {"max_attempts", "dead_letter_topic"})
        checked = await services.letters.check(found, changed) if concerned else {}
        await services.admin.change(found, subscription, changes, checked)
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
    """If this broker is the dispatcher, acts and returns the subscription with the status that `act` returns. Otherwise
    forwards the request."""

    async def here(_: Target) -> Answer:
        return Answer(await act(), await _encoded(services, topic, subscription))

    def there(target: Target) -> Awaitable[Answer]:
        return services.proxy.relay(request, target, msgspec.json.encode(wanted))

    search = services.finder.search(topic, subscription, services.proxy.search_request(request))
    return _response(await search.answer(here, there))


@router.route(
    "DELETE",
    SUBSCRIPTION,
    Action.SUBSCRIBE,
    "deleteSubscription",
    "Delete a subscription",
    answers={204: None},
    refuses=(404, 409),
)
async def delete_subscription(
    services: SubscriptionDep, request: RequestDep, topic: PathTopic, subscription: PathSubscription
) -> Response:
    """Deletes a subscription and its cursors, but not the topic's messages. If the deletion is interrupted, repeat the
    request to finish it."""
    found = await services.catalog.require(topic)

    async def here(_: Target) -> Answer:
        await services.admin.delete(found, subscription)
        return Answer(204)

    search = services.finder.search(found, subscription, services.proxy.search_request(request))
    try:
        answer = await search.answer(here, partial(services.proxy.relay, request))
    except SubscriptionNotFound:
        if not search.in_doubt:
            raise
        return Response(status_code=204)
    if answer.status == 404 and search.in_doubt:  # an attempt without an answer has deleted it
        return Response(status_code=204)
    return Response(status_code=204) if answer.status == 204 else _response(answer)


async def _show(services: SubscriptionServices, request: Request, topic: Topic, name: str) -> Answer:
    async def here(_: Target) -> Answer:
        return Answer(200, await _encoded(services, topic, name))

    search = services.finder.search(topic, name, services.proxy.search_request(request))
    return await search.answer(here, partial(services.proxy.relay, request))


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


def _named(counted: LagCounts) -> dict[str, Any]:
    """Returns the members of an answer; all sizes are in bytes, so the name `bytes` is clear."""
    members = asdict(counted)
    return {"bytes": members.pop("size_bytes"), **members}
