"""The segment map: the position, the owner and the load of each segment of a topic; and one segment by itself, also
after retention has removed it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.api.asgi.parameters import MAX_NUMBER, check_name, whole_number
from seaweedq.api.asgi.services import given
from seaweedq.api.asgi.shown_values import DIGITS, moment
from seaweedq.api.openapi.document import described, json_answer
from seaweedq.balancer.rates import WINDOWS_S, Averages
from seaweedq.balancer.scaling import Measure
from seaweedq.broker.load.segment_rates import Observed
from seaweedq.broker.read.cluster_time import ClusterTime
from seaweedq.broker.read.local_positions import Position
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.tombstones import Tombstones
from seaweedq.coordination.records.topics import SegmentRecord, TombstoneRecord
from seaweedq.coordination.roster import Roster
from seaweedq.errors import SegmentNotFound
from seaweedq.segments.entry import EntryName

router = APIRouter(tags=["topics"])

Rate = Annotated[float, Meta(ge=0)]
ByWindow = Annotated[list[Rate], Meta(min_length=len(WINDOWS_S), max_length=len(WINDOWS_S))]


class Rates(Struct):
    """Averages over the last 10 s, 1, 10 and 20 minutes, as far back as the segment's owner has seen it."""

    messages_per_s: ByWindow
    bytes_per_s: ByWindow


class HotKey(Struct):
    """The hash of a key, and about which share of the segment's messages has that key, from 0 to 1."""

    hash: int
    share: float


class NextSplit(Struct):
    """The average by which an open segment is nearest to a split: of `messages_per_s` or `bytes_per_s`, over `window_s`
    seconds. It counts the time before the segment as idle, as the balancer does, so it is below that of `rates` at
    first. The segment is split when `now` is over `splits_at`; `held_by` says what holds that back: `hot_key` or
    `max_segments`."""

    measure: Measure
    window_s: float
    splits_at: float
    now: float
    held_by: Literal["hot_key", "max_segments"] | None


class SegmentAnswer(Struct):
    """A segment: the half-open range of key hashes, lineage, owner, offsets, rates while it is open.

    Retention has removed the messages below `start_offset`, the files whose names are below `start_file` (null: it has
    taken none), and all files of a sealed segment that is `emptied`; those below `flushed_offset` are in Parquet files,
    or were.
    `hot_key` is the key because of which a segment with too much load is not split. `next_split` is null where the
    topic does not split by itself.
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
    """A segment by itself, also one that retention has removed: `state` is open, sealed or removed.

    One that has `ended` gets no more messages: whoever has read it up to `end_offset` goes on with its `successors`,
    each from 0. Messages below `start_offset` are gone.
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
    """All segments of a topic, by id; `unreadable` has the ids of those that need a newer broker, if there are any.

    `now` is the time of the cluster: messages whose `_expires` it has reached have expired.
    """

    segments: list[SegmentAnswer]
    now: datetime
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
    tombstones: Tombstones
    time: ClusterTime


Services = Annotated[SegmentMapServices, given(SegmentMapServices)]


@router.get(
    "/v1/topics/{topic}/segments",
    **described(
        None, {200: SegmentMap}, (404, 409), shows={"segments": [_SEGMENT], "now": "2026-01-31T12:00:00.000000Z"}
    ),
)
async def segment_map(services: Services, topic: str) -> Response:
    """Returns the topic's segments: key ranges, lineage, owners, offsets, rates."""
    found = await services.catalog.known(check_name(topic))
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
    return json_answer(SegmentMap(answers, now, unreadable or UNSET))


@router.get(
    "/v1/topics/{topic}/segments/{segment}", **described(None, {200: OneSegment}, (400, 404, 409), shows=_REMOVED)
)
async def one_segment(services: Services, topic: str, segment: str) -> Response:
    """Returns one segment, also where retention has removed it: its end, and what it goes on with."""
    number = whole_number(segment, "segment", 0, MAX_NUMBER)
    found = await services.catalog.known(check_name(topic))
    try:
        await services.catalog.known_segment(found, number)
        return json_answer(await _standing(services, found, number))
    except SegmentNotFound:
        return json_answer(_removed(number, await services.tombstones.require(found, number)))


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


def _removed(number: int, grave: TombstoneRecord) -> OneSegment:
    return OneSegment(
        id=number,
        low=grave.low,
        high=grave.high,
        state="removed",
        ended=True,
        predecessors=grave.predecessors,
        successors=grave.successors,
        owner=None,
        owner_url=None,
        start_offset=grave.end_offset,
        end_offset=grave.end_offset,
        created_at=moment(grave.created_us),
        sealed_at=moment(grave.sealed_us),
        removed_at=moment(grave.removed_us),
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
        rates=_rates(observed) if observed else None,
        hot_key=_hot_key(observed) if observed else None,
        next_split=_next_split(observed) if observed else None,
        created_at=moment(record.created_us),
        sealed_at=None if record.sealed_us is None else moment(record.sealed_us),
    )


def _rates(observed: Observed) -> Rates:
    return Rates(_rounded(observed.messages_per_s), _rounded(observed.bytes_per_s))


def _hot_key(observed: Observed) -> HotKey | None:
    return HotKey(observed.hot_key[0], round(observed.hot_key[1], DIGITS)) if observed.hot_key else None


def _next_split(observed: Observed) -> NextSplit | None:
    found = observed.nearest
    if found is None:
        return None
    held: Literal["hot_key", "max_segments"] | None = None
    if found.now > found.splits_at:
        held = "hot_key" if observed.hot_key else "max_segments" if observed.is_full else None
    return NextSplit(found.measure, found.window_s, found.splits_at, round(found.now, DIGITS), held)


def _rounded(averages: Averages) -> list[float]:
    return [round(average, DIGITS) for average in averages]
