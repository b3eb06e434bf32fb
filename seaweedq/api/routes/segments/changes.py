"""Segments changed by hand: split, merged, rolled, moved to another broker."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.api.access.rates import spend
from seaweedq.api.asgi.parameters import MAX_NUMBER, check_name, whole_number
from seaweedq.api.asgi.services import given
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.openapi.document import Takes, described, json_answer, schema_ref
from seaweedq.broker.reshape.change_requests import ChangeRequests
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.intents import MAX_SUCCESSORS
from seaweedq.coordination.records.topics import Intent
from seaweedq.coordination.roster import Roster
from seaweedq.errors import InvalidRequest
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

router = APIRouter(tags=["segments"])
SEGMENT = "/v1/topics/{topic}/segments/{segment}"
NAMED = 100  # brokers that an error names

Hash = Annotated[int, Meta(ge=1, lt=KEY_SPACE)]


class SplitRequest(Struct, forbid_unknown_fields=True):
    """The ranges to split into: `parts` equal ones, or cut `at` rising key hashes of the segment; halves by default."""

    parts: Annotated[int, Meta(ge=2, le=MAX_SUCCESSORS)] | UnsetType = UNSET
    at: Annotated[list[Hash], Meta(min_length=1, max_length=MAX_SUCCESSORS - 1)] | UnsetType = UNSET


class MergeRequest(Struct, forbid_unknown_fields=True):
    """The neighbour `with` which the segment is to be merged."""

    neighbour: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] = msgspec.field(name="with")


class MoveRequest(Struct, forbid_unknown_fields=True):
    """The broker that is to own the segment: its id, or its given name where no other living broker has that name."""

    to: Annotated[str, Meta(min_length=1, max_length=127)]


class SuccessorAnswer(Struct):
    """A new segment: the half-open range of key hashes, and its owner, null while it has none."""

    id: int
    low: int
    high: int
    owner: str | None


class Replaced(Struct):
    """The segments that are sealed, and those that have their range now."""

    sealed: tuple[int, ...]
    successors: list[SuccessorAnswer]


class Planned(Struct):
    """The segments that will be sealed, and those that will have their range."""

    planned: tuple[int, ...]
    successors: list[SuccessorAnswer]


class Moved(Struct):
    """A segment and its owner."""

    segment: int
    owner: str


class Moving(Struct):
    """A segment that its owner is still moving `to` another broker."""

    segment: int
    owner: str | None
    to: str


_SPLIT, _MERGE, _MOVE = map(msgspec.json.Decoder, (SplitRequest, MergeRequest, MoveRequest))
_MIDDLE = KEY_SPACE // 2
_HALVES = [
    {"id": 4, "low": 0, "high": _MIDDLE, "owner": "broker.1f2e"},
    {"id": 5, "low": _MIDDLE, "high": KEY_SPACE, "owner": "broker.1f2e"},
]
_WHOLE = [{"id": 6, "low": 0, "high": KEY_SPACE, "owner": "broker.1f2e"}]
_REFUSES = (400, 404, 408, 409, 413, 415)


def _shown(kind: type, example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema_ref(kind), "example": example}}


def _replaces(sealed: list[int], successors: list[dict[str, Any]]) -> dict[int, Any]:
    return {
        200: _shown(Replaced, {"sealed": sealed, "successors": successors}),
        202: _shown(Planned, {"planned": sealed, "successors": [{**one, "owner": None} for one in successors]}),
    }


@dataclass(frozen=True)
class ChangeServices:
    """The services of these routes."""

    catalog: Catalog
    roster: Roster
    changes: ChangeRequests
    reader: RequestReader


Services = Annotated[ChangeServices, given(ChangeServices)]


@router.post(f"{SEGMENT}/split", **described(Takes(SplitRequest, {"parts": 2}), _replaces([0], _HALVES), _REFUSES))
async def split(services: Services, request: Request, topic: str, segment: str) -> Response:
    """Replaces a segment by several on parts of its range: 200 once that is done, 202 while it is under way."""
    number = _number(topic, segment)
    wanted = await services.reader.json(request, _SPLIT)
    found = await services.catalog.known(topic)
    await services.catalog.look(topic, number)
    record = services.catalog.segment(found, number).record
    points = _points(number, KeyRange(record.low, record.high), wanted)
    spend(request.scope, "changes", len(points))
    return await _replace(services, found, [number], points)


@router.post(
    f"{SEGMENT}/merge",
    **described(Takes(MergeRequest, {"with": 5}, required=True), _replaces([4, 5], _WHOLE), _REFUSES),
)
async def merge(services: Services, request: Request, topic: str, segment: str) -> Response:
    """Replaces a segment and a neighbour by one on the range of both. A neighbour that another broker owns is moved
    first. 200 once that is done, 202 while it is under way."""
    number = _number(topic, segment)
    wanted = await services.reader.json(request, _MERGE)
    spend(request.scope, "changes", 1)
    return await _replace(services, await services.catalog.known(topic), [number, wanted.neighbour], [])


@router.post(f"{SEGMENT}/roll", **described(None, _replaces([0], _WHOLE), _REFUSES))
async def roll(services: Services, request: Request, topic: str, segment: str) -> Response:
    """Replaces a segment by one on the same range: 200 once that is done, 202 while it is under way."""
    number = _number(topic, segment)
    await services.reader.nothing(request)
    return await _replace(services, await services.catalog.known(topic), [number], [])


@router.post(
    f"{SEGMENT}/move",
    **described(
        Takes(MoveRequest, {"to": "broker.1f2e"}, required=True),
        {
            200: _shown(Moved, {"segment": 0, "owner": "broker.1f2e"}),
            202: _shown(Moving, {"segment": 0, "owner": "broker.77aa", "to": "broker.1f2e"}),
        },
        _REFUSES,
    ),
)
async def move(services: Services, request: Request, topic: str, segment: str) -> Response:
    """Moves a segment to another broker: 200 once that broker owns it, 202 while its owner is moving it."""
    number = _number(topic, segment)
    wanted = await services.reader.json(request, _MOVE)
    found = await services.catalog.known(topic)
    target = await _target(services.roster, wanted.to)
    if await services.changes.move(found, number, target):
        return json_answer(Moved(number, target))
    return json_answer(Moving(number, services.catalog.segment(found, number).record.owner, target), 202)


def _number(topic: str, segment: str) -> int:
    check_name(topic)
    return whole_number(segment, "segment", 0, MAX_NUMBER)


def _points(number: int, whole: KeyRange, wanted: SplitRequest) -> list[int]:
    """Returns the key hashes at which a range is cut. Raises InvalidRequest."""
    if wanted.at is not UNSET:
        if wanted.parts is not UNSET:
            raise InvalidRequest("parts and at cannot be combined", field="at", value=wanted.at)
        return wanted.at
    parts = wanted.parts or 2
    if len(whole) < parts:
        raise InvalidRequest(
            f"segment {number} has {len(whole)} key hashes, too few for {parts} parts",
            field="parts",
            value=parts,
            bound=len(whole),
        )
    return [whole.low + len(whole) * at // parts for at in range(1, parts)]


def _broker_meant(roster: Roster, to: str) -> str | None:
    """Returns the living broker with that id, or else with that given name. Raises InvalidRequest where it receives no
    segments, or several brokers have the name."""
    named = [to] if to in roster.brokers else [id for id, known in roster.brokers.items() if known.record.name == to]
    if len(named) > 1:
        brokers = sorted(named)[:NAMED]
        detail = f"{len(named)} brokers have the name {to!r}: {', '.join(brokers)}"
        raise InvalidRequest(detail, field="to", value=to, brokers=brokers)
    if named and not roster.brokers[named[0]].record.takes_more:
        raise InvalidRequest(
            f"broker {named[0]} is starting or draining, and receives no segments", field="to", value=to
        )
    return named[0] if named else None


async def _target(roster: Roster, to: str) -> str:
    """Returns the id of the living broker that a request names. Raises InvalidRequest."""
    target = _broker_meant(roster, to)
    if target is None:
        await roster.load()
        target = _broker_meant(roster, to)
    if target is None:
        brokers = sorted(roster.brokers)[:NAMED]
        detail = f"there is no broker {to!r}; these are living: {', '.join(brokers)}"
        raise InvalidRequest(detail, field="to", value=to, brokers=brokers)
    return target


async def _replace(services: ChangeServices, topic: Topic, segments: list[int], points: list[int]) -> Response:
    intent, done = await services.changes.replace(topic, segments, points)
    successors = _successors(services.catalog, topic, intent)
    if done:
        return json_answer(Replaced(intent.segments, successors))
    return json_answer(Planned(intent.segments, successors), 202)


def _successors(catalog: Catalog, topic: Topic, intent: Intent) -> list[SuccessorAnswer]:
    there = catalog.segments(topic)
    owners = {one.id: there[one.id].owner if one.id in there else one.owner for one in intent.successors}
    return [SuccessorAnswer(one.id, one.low, one.high, owners[one.id]) for one in intent.successors]
