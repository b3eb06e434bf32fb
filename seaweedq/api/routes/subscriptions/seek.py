"""The seek of a subscription.

The broker that takes a request chooses the seek's id, unless the client did, before it hands the request on: so one
that it repeats, after an answer of the dispatcher was lost, seeks once.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from seaweedq.api.asgi.parameters import check_name, in_utc
from seaweedq.api.asgi.services import given
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.internal.proxy import Proxy
from seaweedq.api.openapi.document import Takes, described
from seaweedq.api.routes.subscriptions.pulls import LeaseName
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.subscriptions.admin import AtOffsets, Place, Seeking
from seaweedq.broker.subscriptions.relaying import DispatcherFinder
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Ids
from seaweedq.coordination.keys import ID_BOUND
from seaweedq.coordination.records.subscriptions import SUBSCRIPTION_LEVEL
from seaweedq.errors import InvalidRequest

router = APIRouter(tags=["subscriptions"])
PATH = "/v1/topics/{topic}/subscriptions/{subscription}/seek"
MAX_SEGMENTS = 10_000
MOST_OFFSET = 10**18
SegmentNumber = Annotated[int, Meta(ge=0, lt=ID_BOUND)]
Offset = Annotated[int, Meta(ge=0, le=MOST_OFFSET)]
Offsets = Annotated[dict[SegmentNumber, Offset], Meta(min_length=1, max_length=MAX_SEGMENTS)]


class SeekTo(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One of: the first message whose `timestamp` reaches this (RFC 3339, with an offset); `offsets` by segment, while
    other segments stay where they are."""

    timestamp: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    offsets: Offsets | UnsetType = UNSET


class SeekRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where to go on. A request that is repeated under its `id` seeks once; without one it gets one."""

    to: Literal["latest", "earliest"] | SeekTo
    id: LeaseName | UnsetType = UNSET


class SoughtSegment(Struct, rename={"from_": "from"}):
    """A segment: the offset below which everything was acked before, and the offset that is delivered next."""

    segment: int
    from_: int
    to: int


class SeekAnswer(Struct):
    """All segments that the seek moved; of those in `moved` retention had taken what was wanted. A repetition that
    another dispatcher answers names no segments."""

    id: str
    segments: list[SoughtSegment]
    moved: list[int]


_SEEK = msgspec.json.Decoder(SeekRequest)


@dataclass(frozen=True)
class SeekServices:
    """The services of this route."""

    catalog: Catalog
    seeking: Seeking
    finder: DispatcherFinder
    proxy: Proxy
    reader: RequestReader
    level: ClusterLevel
    ids: Ids


Services = Annotated[SeekServices, given(SeekServices)]


@router.post(
    PATH,
    **described(
        Takes(SeekRequest, {"to": {"offsets": {"0": 17}}}),
        {200: SeekAnswer},
        (400, 404, 408, 409, 413, 415, 416, 429),
        shows={"id": "9f2c", "segments": [{"segment": 0, "from": 180, "to": 17}], "moved": []},
    ),
)
async def seek_subscription(services: Services, request: Request, topic: str, subscription: str) -> Response:
    """Goes on at other messages: all leases end, and a new epoch begins."""
    check_name(topic)
    check_name(subscription, "subscription")
    wanted = await services.reader.json(request, _SEEK)
    place = _place_of(wanted.to)
    services.level.require(SUBSCRIPTION_LEVEL, "a seek")
    key = services.ids.nonce() if wanted.id is UNSET else wanted.id
    found = await services.catalog.known(topic)
    search = services.finder.search(found, subscription, services.proxy.asked(request.scope))
    while True:
        async with search as target:
            if not target.here:
                answer = await services.proxy.relay(request.scope, target, msgspec.json.encode(replace(wanted, id=key)))
                return Response(bytes(answer.body), answer.status, dict(answer.headers))
            done = await services.seeking.seek(found, subscription, place, key)
            services.finder.check_lease()
            segments = [SoughtSegment(*one) for one in done.segments]
            sought = SeekAnswer(done.key, segments, list(done.moved))
            return Response(msgspec.json.encode(sought), media_type="application/json")


def _place_of(to: Literal["latest", "earliest"] | SeekTo) -> Place:
    """Returns where to go on. Raises InvalidRequest."""
    if not isinstance(to, SeekTo):
        return to
    if (to.timestamp is UNSET) == (to.offsets is UNSET):
        raise InvalidRequest("to has both timestamp and offsets, or neither; it needs one of them", field="to")
    if to.offsets is not UNSET:
        return AtOffsets(to.offsets)
    assert to.timestamp is not UNSET
    return {"timestamp": in_utc(to.timestamp, "to.timestamp").isoformat()}
