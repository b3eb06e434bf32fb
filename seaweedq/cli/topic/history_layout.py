"""The layout of `topic history`: a rectangle per segment, key ranges over time, and a row of the table. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from seaweedq.cli.shared.common import counted
from seaweedq.cli.topic.last_hour import Cell, LastHour
from seaweedq.cli.topic.lineage import KEY_SPACE, Segment, changes, share
from seaweedq.cli.topic.watch_bar import short

HOUR_HEAD = ("last hour", "highest", "hot key")  # of the rates that the leader has recorded
HEAD = ("segment", "keys", "from", "to", "after", "before", "messages", "messages/s")
COARSE = timedelta(days=1)  # times of a longer history are told with their days


@dataclass(frozen=True, slots=True)
class Box:
    """A segment in the plane: times on x, shares of the key space, from 0 to 1, on y."""

    segment: int
    begin: datetime
    end: datetime
    low: float
    high: float
    rate: float
    is_open: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The boxes, and a time span that contains all of them, with some room; and the cells of the last hour, which are
    drawn over them."""

    boxes: tuple[Box, ...]
    begin: datetime
    end: datetime
    title: str
    cells: tuple[Box, ...] = ()

    @property
    def rates(self) -> tuple[float, float]:
        """Returns the ends of the colour scale: from the least to the largest rate, but one to four decades."""
        rates = [box.rate for box in (*self.boxes, *self.cells) if box.rate > 0] or [1.0]
        most = max(rates)
        return min(max(min(rates), most / 10_000), most / 10), most

    def has_room(self, box: Box, width: float, height: float) -> bool:
        """Tells whether a text of that share of the picture's width and height fits in a box."""
        span = (self.end - self.begin) / timedelta(seconds=1)
        return (box.end - box.begin).total_seconds() >= width * span and box.high - box.low >= height


def lay_out(topic: str, segments: Sequence[Segment], now: datetime, hour: LastHour | None = None) -> Layout:
    """Returns the layout of a topic's segments, from their creation to their seal, or until now. Raises ValueError for
    none."""
    if not segments:
        raise ValueError(f"topic {topic} has no segments")
    begin = min(segment.created_at for segment in segments)
    end = max([now, *(segment.sealed_at for segment in segments if segment.sealed_at)])
    boxes = (
        Box(
            segment=segment.id,
            begin=segment.created_at,
            end=segment.sealed_at or end,
            low=segment.low / KEY_SPACE,
            high=segment.high / KEY_SPACE,
            rate=segment.mean_rate(end),
            is_open=segment.is_open,
        )
        for segment in sorted(segments, key=lambda segment: segment.id)
    )
    cells = tuple(_box(cell) for cell in hour.cells) if hour else ()
    return Layout(tuple(boxes), begin, max(end, begin + timedelta(seconds=1)), title(topic, segments), cells)


def _box(cell: Cell) -> Box:
    return Box(-1, cell.begin, cell.end, cell.low / KEY_SPACE, cell.high / KEY_SPACE, cell.rate, is_open=False)


def title(topic: str, segments: Sequence[Segment]) -> str:
    """Returns the numbers of segments and messages, and of each kind of change."""
    counts: dict[str, int] = {}
    for change in changes(segments):
        counts[change.kind] = counts.get(change.kind, 0) + 1
    told = [counted(count, kind) for kind, count in sorted(counts.items(), reverse=True)]
    opened = sum(segment.is_open for segment in segments)
    messages = sum(segment.end_offset for segment in segments)
    held = [counted(messages, "message"), counted(len(segments), "segment"), f"{opened:,} open"]
    return f"{topic}: {', '.join([*held, *told])}"


def rows(segments: Iterable[Segment], now: datetime, hour: LastHour | None = None) -> list[tuple[str, ...]]:
    """Returns the table's cells, a row per segment by id; times are UTC. With the last hour each row has its columns,
    too."""
    known = sorted(segments, key=lambda segment: segment.id)
    days = bool(known) and now - min(segment.created_at for segment in known) >= COARSE
    return [
        (
            str(segment.id),
            f"{share(segment.low)} - {share(segment.high)}",
            moment(segment.created_at, days),
            moment(segment.sealed_at, days) if segment.sealed_at else "",
            " ".join(map(str, segment.predecessors)),
            " ".join(map(str, segment.successors)),
            f"{segment.end_offset:,}",
            short(segment.mean_rate(now)),
            *(_took(hour, segment, now) if hour else ()),
        )
        for segment in known
    ]


def _took(hour: LastHour, segment: Segment, now: datetime) -> tuple[str, str, str]:
    took = hour.took(segment, now)
    if took is None:
        return "", "", ""
    hot = f"hash {took.hot_key[0]}: {took.hot_key[1]:.0%}" if took.hot_key else ""
    return short(took.mean), short(took.highest), hot


def moment(at: datetime, days: bool) -> str:
    """Returns a time, with its date if there are several days."""
    return f"{at:%Y-%m-%d %H:%M:%S}" if days else f"{at:%H:%M:%S}"
