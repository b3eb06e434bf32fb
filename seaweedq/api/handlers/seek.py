"""Seeks: a subscription continues at another position.

If the client gave no id, the broker that receives a seek chooses one before it forwards the request. So if the
dispatcher's answer is lost and the broker repeats the request, the subscription seeks only once."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Self

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from seaweedq.access.rights import Action
from seaweedq.api.handlers.pulls import LeaseName
from seaweedq.api.parameters import PathSubscription, PathTopic, RequestDep, in_utc
from seaweedq.api.proxy import Proxy
from seaweedq.api.routes import OF_BODIES, SUBSCRIPTION, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.read import Target
from seaweedq.broker.subscriptions import AtOffsets, DispatcherFinder, Seeking, SeekPlace
from seaweedq.broker.topics import Catalog
from seaweedq.clock import Ids
from seaweedq.coordination.keys import ID_BOUND
from seaweedq.errors import InvalidRequest, TooManySegments

router = Router("subscriptions")
MAX_SEGMENTS = 10_000
MOST_OFFSET = 10**18
SegmentNumber = Annotated[int, Meta(ge=0, lt=ID_BOUND)]
Offset = Annotated[int, Meta(ge=0, le=MOST_OFFSET)]
Offsets = Annotated[dict[SegmentNumber, Offset], Meta(min_length=1, max_length=MAX_SEGMENTS)]


class SeekTo(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one of `timestamp` and `offsets`. `timestamp` (RFC 3339 with a UTC offset) means the first message with
    this timestamp or a later one. `offsets` by segment leaves all other segments unchanged."""

    timestamp: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    offsets: Offsets | UnsetType = UNSET


class SeekRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The position from which to continue: `earliest`, `latest`, a time or offsets. Requests with the same `id` seek
    only once. If `id` is left out, the broker chooses one."""

    to: Literal["latest", "earliest"] | SeekTo
    id: LeaseName | UnsetType = UNSET


class SoughtSegment(Struct, rename={"from_": "from"}):
    """A segment of the seek. Before the seek, all messages below `from` were acked; the next delivery starts at
    `to`."""

    segment: int
    from_: int
    to: int


class SeekAnswer(Struct):
    """The segments that the seek changed. Segments in `moved` start later than requested, because retention had already
    deleted messages. If a new dispatcher answers a repeated request, the answer has no segments."""

    id: str
    segments: list[SoughtSegment]
    moved: list[int]


@dataclass(frozen=True)
class SeekServices:
    """The services of this route."""

    catalog: Catalog
    seeking: Seeking
    finder: DispatcherFinder
    proxy: Proxy
    ids: Ids

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker, subscribing = parts.broker, parts.broker.subscribing
        finder, ids = subscribing.finder, broker.process.ids
        return cls(broker.catalog, subscribing.seeking, finder, parts.proxy, ids)


SeekDep = Annotated[SeekServices, given(SeekServices)]


@router.route(
    "POST",
    f"{SUBSCRIPTION}/seek",
    Action.SUBSCRIBE,
    "seekSubscription",
    "Move a subscription to another position",
    answers={200: SeekAnswer},
    refuses=(*OF_BODIES, 404, 409, 416, TooManySegments),
    shows={"id": "9f2c", "segments": [{"segment": 0, "from": 180, "to": 17}], "moved": []},
)
async def seek_subscription(
    services: SeekDep,
    request: RequestDep,
    topic: PathTopic,
    subscription: PathSubscription,
    wanted: Annotated[SeekRequest, body(SeekRequest, {"to": {"offsets": {"0": 17}}})],
) -> Response:
    """Moves a subscription to earlier or later messages. When the broker answers, the seek is durable.

    The seek ends all leases in all segments. Acks for earlier deliveries become `unknown`, and attempts are counted
    from 1 again. A paused subscription stays paused. If an offset is beyond a segment's end, the broker answers 416; if
    a segment is unknown, it answers 404; in both cases, nothing changes. You can repeat a request that has an `id`: the
    subscription remembers its last 16 ids. If a request has the same `id` as an earlier one but a different `to`, the
    broker answers 422.

    If a seek moves back into a segment that was replaced, the segment's successors deliver nothing until consumers have
    acked the older messages again.
    """
    place = _place_of(wanted.to)
    key = services.ids.nonce() if wanted.id is UNSET else wanted.id
    found = await services.catalog.require(topic)

    async def here(_: Target) -> Response:
        done = await services.seeking.seek(found, subscription, place, key)
        segments = [SoughtSegment(*one) for one in done.segments]
        sought = SeekAnswer(done.key, segments, list(done.moved))
        return Response(msgspec.json.encode(sought), media_type="application/json")

    async def there(target: Target) -> Response:
        answer = await services.proxy.relay(request, target, msgspec.json.encode(replace(wanted, id=key)))
        return Response(bytes(answer.body), answer.status, dict(answer.headers))

    return await services.finder.search(found, subscription, services.proxy.search_request(request)).answer(here, there)


def _place_of(to: Literal["latest", "earliest"] | SeekTo) -> SeekPlace:
    """Returns the position to continue at. Raises InvalidRequest."""
    if not isinstance(to, SeekTo):
        return to
    if (to.timestamp is UNSET) == (to.offsets is UNSET):
        raise InvalidRequest(
            "the field `to` must contain exactly one of the fields `timestamp` and `offsets`", field="to"
        )
    if to.offsets is not UNSET:
        return AtOffsets(to.offsets)
    assert to.timestamp is not UNSET
    return {"timestamp": in_utc(to.timestamp, "to.timestamp").isoformat()}
