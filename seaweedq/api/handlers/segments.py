"""A topic's segments: the map with positions, owners and loads; a single segment, even after retention removed it; the
key space over the last hour, as the leader has recorded it; and manual changes: split, merge, roll, move."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.access.rights import Action
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.parameters import (
    DIGITS,
    MAX_NUMBER,
    TIME,
    PathSegment,
    PathTopic,
    RequestDep,
    integer,
    json_answer,
    moment,
    query,
    time_us,
)
from seaweedq.api.routes import OF_BODIES, OF_TOPIC, SEGMENT, TOPIC, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.balancer.history import KEPT_US, Cell
from seaweedq.balancer.load import WINDOWS_S, Averages
from seaweedq.balancer.scaling import Measure
from seaweedq.broker.load import Histories, SegmentRates
from seaweedq.broker.read import ClusterTime, Position, TopicPositions
from seaweedq.broker.reshape import MAX_SUCCESSORS, ChangeRequests
from seaweedq.broker.rpc import HistoryCall
from seaweedq.broker.topics import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.coordination.records import Intent, SegmentRecord, TombstoneRecord
from seaweedq.coordination.roster import Roster
from seaweedq.errors import InvalidRequest, SegmentConflict, SegmentNotFound, TooManySegments
from seaweedq.segments.entry import EntryName
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange

router = Router("segments")
_LISTED = {**OF_TOPIC, "segment": "$response.body#/segments/0/id"}

Rate = Annotated[float, Meta(ge=0)]
ByWindow = Annotated[list[Rate], Meta(min_length=len(WINDOWS_S), max_length=len(WINDOWS_S))]


class Rates(Struct):
    """Averages over the last 10 s, 1 minute, 10 minutes and 20 minutes, but not over the time before the current owner
    took over the segment."""

    messages_per_s: ByWindow
    bytes_per_s: ByWindow


class HotKey(Struct):
    """The hash of a key, and the approximate share (0 to 1) of the segment's messages that have this key."""

    hash: int
    share: float


class NextSplit(Struct):
    """The split threshold that the segment's load is nearest to reaching: `messages_per_s` or `bytes_per_s`, averaged
    over `window_s` seconds. The segment is split when `now` exceeds `splits_at`. `now` includes the time before the
    segment existed as idle time, so at first it is lower than the value in `rates`. `held_by` names the cause that
    prevents the split: `hot_key` or `max_segments`."""

    measure: Measure
    window_s: float
    splits_at: float
    now: float
    held_by: Literal["hot_key", "max_segments"] | None


class SegmentAnswer(Struct):
    """A segment: its half-open range of key hashes, lineage, owner and offsets, and its rates while it is open.

    Retention has deleted the messages below `start_offset` and the files whose names sort before `start_file` (null if
    it has deleted none). If a sealed segment is `emptied`, retention has deleted all its files. Messages below
    `flushed_offset` are in Parquet files, or were before retention deleted them. `hot_key` is the key that prevents an
    overloaded segment from being split. `next_split` is null if the topic does not split automatically.
    """

    id: int
    low: int
    high: int
    state: str
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]
    owner: str | None
    owner_url: str | None
    start_offset: int
    start_file: str | None
    flushed_offset: int
    end_offset: int
    emptied: bool
    rates: Rates | None
    hot_key: HotKey | None
    next_split: NextSplit | None
    created_at: datetime
    sealed_at: datetime | None


class OneSegment(Struct):
    """A single segment, even one that retention has removed. `state` is `open`, `sealed` or `removed`.

    A segment that has `ended` receives no more messages: after its `end_offset`, continue with each of its `successors`
    from offset 0. Messages below `start_offset` are deleted.
    """

    id: int
    low: int
    high: int
    state: str
    ended: bool
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]
    owner: str | None
    owner_url: str | None
    start_offset: int
    end_offset: int
    created_at: datetime
    sealed_at: datetime | None
    removed_at: datetime | None


class SegmentMap(Struct, omit_defaults=True):
    """All segments of a topic, sorted by id. `unreadable` lists the ids of segments whose records only a newer broker
    can read.

    `now` is the cluster's time: a message has expired once its `_expires` is not later than `now`. `schema_id` is the
    newest version of a typed topic's schema.
    """

    segments: list[SegmentAnswer]
    now: datetime
    schema_id: int | UnsetType = UNSET
    unreadable: list[int] | UnsetType = UNSET


_SEGMENT = {
    "id": 0,
    "low": 0,
    "high": 2**31 - 1,
    "state": "open",
    "predecessors": [],
    "successors": [],
    "owner": "broker.1f2e",
    "owner_url": "http://127.0.0.1:8080",
    "start_offset": 0,
    "start_file": None,
    "flushed_offset": 0,
    "end_offset": 18,
    "emptied": False,
    "rates": {"messages_per_s": [1.5, 0.9, 0.9, 0.9], "bytes_per_s": [78.0, 46.8, 46.8, 46.8]},
    "hot_key": None,
    "next_split": {
        "measure": "messages_per_s",
        "window_s": 600.0,
        "splits_at": 200000.0,
        "now": 0.7,
        "held_by": None,
    },
    "created_at": "2026-01-31T12:00:00Z",
    "sealed_at": None,
}
_REMOVED = {
    "id": 0,
    "low": 0,
    "high": 2**31 - 1,
    "state": "removed",
    "ended": True,
    "predecessors": [],
    "successors": [1, 2],
    "owner": None,
    "owner_url": None,
    "start_offset": 18,
    "end_offset": 18,
    "created_at": "2026-01-31T12:00:00Z",
    "sealed_at": "2026-02-01T12:00:00Z",
    "removed_at": "2026-03-01T12:00:00Z",
}


@dataclass(frozen=True)
class SegmentMapServices:
    """The services of these routes."""

    catalog: Catalog
    positions: TopicPositions
    roster: Roster
    time: ClusterTime

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker, reading = parts.broker, parts.broker.reading
        return cls(broker.catalog, reading.positions, broker.roster, reading.readables.time)


SegmentMapDep = Annotated[SegmentMapServices, given(SegmentMapServices)]


@router.route(
    "GET",
    f"{TOPIC}/segments",
    Action.DESCRIBE,
    "listSegments",
    "List a topic's segments",
    answers={200: SegmentMap},
    refuses=(404, 409),
    shows={"segments": [_SEGMENT], "now": "2026-01-31T12:00:00.000000Z"},
    leads=(
        Lead(("getSegment", "fetchMessages", "rollSegment", "splitSegment"), _LISTED),
        Lead(("mergeSegments",), _LISTED, {"with": "$response.body#/segments/1/id"}),
    ),
)
async def segment_map(services: SegmentMapDep, topic: PathTopic) -> Response:
    """Returns all segments of a topic, including replaced segments: key ranges, lineage, owners, offsets, rates.

    The averages of the rates begin no earlier than the time at which the current owner took over the segment; after a
    move, all four rates therefore cover only the time since the move. Bytes are counted as in the journal, before
    compression."""
    found = await services.catalog.require(topic)
    positions = await services.positions.positions(found)
    records = services.catalog.segments(found)
    there = [(record, positions[number]) for number, record in records.items() if number in positions]
    starts = services.catalog.start_names(found)
    answers = [
        _answer(
            record,
            position,
            starts.get(position.segment),
            services.catalog.is_emptied(found, position.segment),
            services.roster.url(record.owner),
        )
        for record, position in there
    ]
    unreadable = sorted(services.catalog.unreadable_of(found))
    now = moment(await services.time.now_us())
    version = found.layout.schema_id if found.record.config.schema else UNSET  # of no row that the map counts is later
    return json_answer(SegmentMap(answers, now, version, unreadable or UNSET))


@router.route(
    "GET",
    SEGMENT,
    Action.DESCRIBE,
    "getSegment",
    "Get a segment",
    answers={200: OneSegment},
    refuses=(400, 404, 409),
    shows=_REMOVED,
    leads=(Lead(("moveSegment",), {**OF_TOPIC, "segment": "$request.path.segment"}),),
)
async def one_segment(services: SegmentMapDep, topic: PathTopic, segment: PathSegment) -> Response:
    """Returns one segment, even a segment that retention has removed, which the list omits.

    The cluster remembers a removed segment for at least 30 days. It remembers the segment longer if an open segment
    descends from it within 10 generations. After that, the answer is 404."""
    found = await services.catalog.require(topic)
    try:
        await services.catalog.require_segment(found, segment)
        return json_answer(await _standing(services, found, segment))
    except SegmentNotFound:
        return json_answer(_removed(segment, await services.catalog.tombstone(found, segment)))


async def _standing(services: SegmentMapServices, topic: Topic, number: int) -> OneSegment:
    record = services.catalog.segment(topic, number).record
    end = record.end_offset
    if end is None:
        positions = await services.positions.positions(topic)
        record = services.catalog.segment(topic, number).record
        end = positions[number].end
    return OneSegment(
        id=number,
        low=record.low,
        high=record.high,
        state=record.state,
        ended=record.state == "sealed",
        predecessors=record.predecessors,
        successors=record.successors,
        owner=record.owner,
        owner_url=services.roster.url(record.owner),
        start_offset=services.catalog.start_offsets(topic).get(number, 0),
        end_offset=end,
        created_at=moment(record.created_us),
        sealed_at=None if record.sealed_us is None else moment(record.sealed_us),
        removed_at=None,
    )


def _removed(number: int, tombstone: TombstoneRecord) -> OneSegment:
    return OneSegment(
        id=number,
        low=tombstone.low,
        high=tombstone.high,
        state="removed",
        ended=True,
        predecessors=tombstone.predecessors,
        successors=tombstone.successors,
        owner=None,
        owner_url=None,
        start_offset=tombstone.end_offset,
        end_offset=tombstone.end_offset,
        created_at=moment(tombstone.created_us),
        sealed_at=moment(tombstone.sealed_us),
        removed_at=moment(tombstone.removed_us),
    )


def _answer(
    record: SegmentRecord, position: Position, start: EntryName | None, emptied: bool, owner_url: str | None
) -> SegmentAnswer:
    observed = position.observed
    return SegmentAnswer(
        id=position.segment,
        low=record.low,
        high=record.high,
        state=record.state,
        predecessors=record.predecessors,
        successors=record.successors,
        owner=record.owner,
        owner_url=owner_url,
        start_offset=start.first_offset if start else 0,
        start_file=str(start) if start else None,
        flushed_offset=position.flushed,
        end_offset=position.end,
        emptied=emptied,
        rates=Rates(_rounded(observed.messages_per_s), _rounded(observed.bytes_per_s)) if observed else None,
        hot_key=_hot_key(observed) if observed else None,
        next_split=_next_split(observed) if observed else None,
        created_at=moment(record.created_us),
        sealed_at=None if record.sealed_us is None else moment(record.sealed_us),
    )


def _hot_key(observed: SegmentRates) -> HotKey | None:
    return HotKey(observed.hot_key[0], round(observed.hot_key[1], DIGITS)) if observed.hot_key else None


def _next_split(observed: SegmentRates) -> NextSplit | None:
    found = observed.nearest
    if found is None:
        return None
    held: Literal["hot_key", "max_segments"] | None = None
    if found.now > found.splits_at:
        held = "hot_key" if observed.hot_key else "max_segments" if observed.is_full else None
    return NextSplit(found.measure, found.window_s, found.splits_at, round(found.now, DIGITS), held)


def _rounded(averages: Averages) -> list[float]:
    return [round(average, DIGITS) for average in averages]


FEWEST, CELLS, MOST = 100, 2_000, 20_000


class CellAnswer(Struct, omit_defaults=True):
    """The load of a half-open range of key hashes from `time` on, for `seconds` seconds. When a segment is split or
    merged, its cell ends and the cells of its successors begin. `segment` is null if the cell spans several adjacent
    segments. `hot_key` is present if one key's share of the load was too large for a split to help."""

    time: datetime
    seconds: float
    low: int
    high: int
    segment: int | None
    messages_per_s: float
    bytes_per_s: float
    hot_key: HotKey | UnsetType = UNSET


class HistoryAnswer(Struct):
    """The cells of a topic in time order. Ranges without load have no cell. The `leader` has recorded all load between
    `from` and `until`: at most an hour, and less after a change of leader."""

    since: datetime = msgspec.field(name="from")
    until: datetime
    leader: str
    cells: list[CellAnswer]


_SHOWN = {
    "from": "2026-01-31T11:00:00Z",
    "until": "2026-01-31T12:00:00Z",
    "leader": "broker.1f2e",
    "cells": [
        {
            "time": "2026-01-31T11:59:50Z",
            "seconds": 10.0,
            "low": 0,
            "high": 2**31 - 1,
            "segment": 0,
            "messages_per_s": 1.8,
            "bytes_per_s": 93.6,
        }
    ],
}


@dataclass(frozen=True)
class HistoryServices:
    """The services of this route."""

    catalog: Catalog
    histories: Histories
    clock: Clock

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        return cls(broker.catalog, broker.load.histories, broker.process.clock)


HistoryDep = Annotated[HistoryServices, given(HistoryServices)]


@router.route(
    "GET",
    f"{TOPIC}/history",
    Action.DESCRIBE,
    "getHistory",
    "Get the load of key ranges over time",
    answers={200: HistoryAnswer},
    refuses=(400, 404, 409),
    shows=_SHOWN,
)
async def history(
    services: HistoryDep,
    topic: PathTopic,
    since: Annotated[
        str | None,
        query("since", "RFC 3339 with a UTC offset, or an age such as 5m; an hour before `until` by default", TIME),
    ],
    until: Annotated[
        str | None, query("until", "RFC 3339 with a UTC offset, or an age such as 5m; now by default", TIME)
    ],
    most: Annotated[int, integer("cells", FEWEST, MOST, "maximum number of cells", CELLS)],
) -> Response:
    """Returns the load of each range of key hashes in the last hour, in cells of ten seconds or longer.

    If there are more cells than requested, the broker combines cells in time and in key space without changing their
    sums. Request a shorter time to get finer cells. Message counts are exact. Byte counts between an owner's last
    report and the sealing of a segment are estimates. The leader keeps the history only in memory, at most 32 MiB for
    all topics, so a new leader starts with an empty history. If there is no leader, the answer is 503 `unavailable`.
    """
    now_us = services.clock.now_us()
    until_us = now_us if until is None else time_us(until, "until", now_us)
    since_us = until_us - KEPT_US if since is None else time_us(since, "since", now_us)
    if since_us >= until_us:
        end = "until" if until is not None else f"now, which is {moment(now_us).isoformat()} at this broker"
        raise InvalidRequest(f"since must be before {end}", field="since", value=since)
    found = await services.catalog.require(topic)
    call = HistoryCall(found.name, found.record.incarnation, since_us, until_us, most)
    told = await services.histories.find(call)
    cells = [_cell(one) for one in told.cells]
    return json_answer(HistoryAnswer(moment(told.begin_us), moment(told.end_us), told.leader, cells))


def _cell(cell: Cell) -> CellAnswer:
    seconds = max(cell.end_us - cell.begin_us, 1000) / 1e6
    return CellAnswer(
        moment(cell.begin_us),
        seconds,
        cell.low,
        cell.high,
        cell.segment,
        round(cell.messages / seconds, DIGITS),
        round(cell.size_bytes / seconds, DIGITS),
        HotKey(cell.hot_key[0], round(cell.hot_key[1], DIGITS)) if cell.hot_key else UNSET,
    )


NAMED = 100  # brokers that an error names

Hash = Annotated[int, Meta(ge=1, lt=KEY_SPACE)]


class SplitRequest(Struct, forbid_unknown_fields=True):
    """The ranges to split into: either `parts` equal ranges (2 to 32), or cuts `at` ascending key hashes of the segment
    (1 to 31). By default the segment is halved."""

    parts: Annotated[int, Meta(ge=2, le=MAX_SUCCESSORS)] | UnsetType = UNSET
    at: Annotated[list[Hash], Meta(min_length=1, max_length=MAX_SUCCESSORS - 1)] | UnsetType = UNSET


class MergeRequest(Struct, forbid_unknown_fields=True):
    """`with` is the adjacent segment to merge with."""

    neighbour: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] = msgspec.field(name="with")


class MoveRequest(Struct, forbid_unknown_fields=True):
    """The new owner: a broker id, or a broker name if no other running broker has the same name."""

    to: Annotated[str, Meta(min_length=1, max_length=127)]


class SuccessorAnswer(Struct):
    """A new segment: its half-open range of key hashes, and its owner (null until it has one)."""

    id: int
    low: int
    high: int
    owner: str | None


class Replaced(Struct):
    """The sealed segments, and the segments that now cover their range."""

    sealed: tuple[int, ...]
    successors: list[SuccessorAnswer]


class Planned(Struct):
    """The segments to be sealed, and the segments that will cover their range."""

    planned: tuple[int, ...]
    successors: list[SuccessorAnswer]


class Moved(Struct):
    """A segment and its owner."""

    segment: int
    owner: str


class Moving(Struct):
    """A segment that its owner is still moving to the broker `to`."""

    segment: int
    owner: str | None
    to: str


_MIDDLE = KEY_SPACE // 2
_HALVES = [
    {"id": 4, "low": 0, "high": _MIDDLE, "owner": "broker.1f2e"},
    {"id": 5, "low": _MIDDLE, "high": KEY_SPACE, "owner": "broker.1f2e"},
]
_WHOLE = [{"id": 6, "low": 0, "high": KEY_SPACE, "owner": "broker.1f2e"}]


def _shown(kind: type, example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": kind, "example": example}}


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

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        return cls(broker.catalog, broker.roster, broker.reshaping.changes, parts.reader)


ChangeDep = Annotated[ChangeServices, given(ChangeServices)]


@router.route(
    "POST",
    f"{SEGMENT}/split",
    Action.RESHAPE,
    "splitSegment",
    "Split a segment",
    answers=_replaces([0], _HALVES),
    refuses=(*OF_BODIES, 404, SegmentConflict, TooManySegments),
)
async def split(
    services: ChangeDep,
    request: RequestDep,
    topic: PathTopic,
    segment: PathSegment,
    wanted: Annotated[SplitRequest, body(SplitRequest, {"parts": 2})],
) -> Response:
    """Replaces a segment by several segments, each with a part of the key range.

    The answer is 200 once the split is done. After `publish_timeout_s` the answer is 202: the broker then completes or
    undoes the split in the background, and the list of segments shows the outcome. If you repeat a successful request,
    the broker answers 409 `segment-conflict`, with the new segments in `successors`. 503 `not-owner` means that the
    segment's owner is not running. After 503 `coordination-unavailable` the split may still happen: list the segments.
    Publishers and readers see no error."""
    found = await services.catalog.require(topic)
    await services.catalog.refresh(topic, segment)
    record = services.catalog.segment(found, segment).record
    points = _points(segment, KeyRange(record.low, record.high), wanted)
    request.spend("changes", len(points))
    return await _replace(services, found, [segment], points)


@router.route(
    "POST",
    f"{SEGMENT}/merge",
    Action.RESHAPE,
    "mergeSegments",
    "Merge adjacent segments",
    answers=_replaces([4, 5], _WHOLE),
    refuses=(*OF_BODIES, 404, SegmentConflict, TooManySegments),
)
async def merge(
    services: ChangeDep,
    request: RequestDep,
    topic: PathTopic,
    segment: PathSegment,
    wanted: Annotated[MergeRequest, body(MergeRequest, {"with": 5}, required=True)],
) -> Response:
    """Replaces two adjacent segments by one segment with their combined key range. If different brokers own the two
    segments, the second segment (`with`) first moves to the owner of the first one.

    If merges have combined the range from more than 64 parts, the answer is 409. All other answers are the same as for
    a split."""
    request.spend("changes", 1)
    return await _replace(services, await services.catalog.require(topic), [segment, wanted.neighbour], [])


@router.route(
    "POST",
    f"{SEGMENT}/roll",
    Action.RESHAPE,
    "rollSegment",
    "Roll a segment: replace it with a new segment",
    answers=_replaces([0], _WHOLE),
    refuses=(*OF_BODIES, 404, SegmentConflict, TooManySegments),
)
async def roll(services: ChangeDep, request: RequestDep, topic: PathTopic, segment: PathSegment) -> Response:
    """Replaces a segment by a new segment with the same key range and its own chain of files. The answers are the same
    as for a split."""
    await services.reader.nothing(request)
    return await _replace(services, await services.catalog.require(topic), [segment], [])


@router.route(
    "POST",
    f"{SEGMENT}/move",
    Action.RESHAPE,
    "moveSegment",
    "Move a segment to another broker",
    answers={
        200: _shown(Moved, {"segment": 0, "owner": "broker.1f2e"}),
        202: _shown(Moving, {"segment": 0, "owner": "broker.77aa", "to": "broker.1f2e"}),
    },
    refuses=(*OF_BODIES, 404, SegmentConflict),
)
async def move(
    services: ChangeDep,
    topic: PathTopic,
    segment: PathSegment,
    wanted: Annotated[MoveRequest, body(MoveRequest, {"to": "broker.1f2e"}, required=True)],
) -> Response:
    """Moves a segment to another broker. The answer is 200 once that broker owns it, or 202 while the owner is still
    moving it.

    Moving a segment to its current owner is not an error. The leader keeps balancing load, and may move the segment
    again."""
    found = await services.catalog.require(topic)
    target = await _target(services.roster, wanted.to)
    if await services.changes.move(found, segment, target):
        return json_answer(Moved(segment, target))
    return json_answer(Moving(segment, services.catalog.segment(found, segment).record.owner, target), 202)


def _points(number: int, whole: KeyRange, wanted: SplitRequest) -> list[int]:
    """Returns the key hashes at which a range is cut. Raises InvalidRequest."""
    if wanted.at is not UNSET:
        if wanted.parts is not UNSET:
            raise InvalidRequest("the fields `parts` and `at` cannot be combined", field="at", value=wanted.at)
        return wanted.at
    parts = wanted.parts or 2
    if len(whole) < parts:
        raise InvalidRequest(
            f"segment {number} covers only {len(whole)} key hashes, too few to split it into {parts} parts",
            field="parts",
            value=parts,
            bound=len(whole),
        )
    return [whole.low + len(whole) * at // parts for at in range(1, parts)]


def _broker_meant(roster: Roster, to: str) -> str | None:
    """Returns the running broker with that id, or else with that name. Raises InvalidRequest if the broker accepts no
    segments, or if several brokers have the name."""
    named = [to] if to in roster.brokers else [id for id, known in roster.brokers.items() if known.record.name == to]
    if len(named) > 1:
        brokers = sorted(named)[:NAMED]
        detail = f"{len(named)} brokers have the name {to!r}: {', '.join(brokers)}"
        raise InvalidRequest(detail, field="to", value=to, brokers=brokers)
    if named and not roster.brokers[named[0]].record.takes_more:
        raise InvalidRequest(
            f"broker {named[0]} cannot accept segments, because it is starting or draining", field="to", value=to
        )
    return named[0] if named else None


async def _target(roster: Roster, to: str) -> str:
    """Returns the id of the running broker that a request names. Raises InvalidRequest."""
    target = _broker_meant(roster, to)
    if target is None:
        await roster.load()
        target = _broker_meant(roster, to)
    if target is None:
        brokers = sorted(roster.brokers)[:NAMED]
        detail = f"no broker {to!r} is running; running brokers: {', '.join(brokers)}"
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
