"""The picture of `topic watch`: head, bar, table and log as rich renderables. Also observes moves, and computes rates
from successive snapshots if the segment map has none. Pure: data and times are passed in.

The bar shows the key space as a row of terminal cells."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seaweedq.cli.shared.output import with_whole_numbers
from seaweedq.cli.topic.lineage import KEY_SPACE, LastHour, Segment, by_range, changes, share

# Colours of 0 (and below 1), 1, 10, 100, ... messages/s; between them they are mixed.
_COLOURS = ("#4a4f63", "#3b6fb6", "#2fa4c7", "#4cc38a", "#c9d64f", "#f2a83b", "#e2543a", "#c22f7d")
_SHADES = ((1, "·"), (100, "░"), (10_000, "▒"), (100_000, "▓"), (math.inf, "█"))  # below each rate
DIGITS = 2  # of the number in a broker's id are shown at least
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
COLOUR_LEGEND = ("0", "1", "10", "100", "1k", "10k", "100k", "1M")
SHADE_LEGEND = ("0", "1+", "100+", "10k+", "100k+")


@dataclass(frozen=True, slots=True)
class Block:
    """Adjacent cells of the bar, and the segments that they represent: one segment, or several that are too small to
    show."""

    first: int
    cells: int
    segments: tuple[Segment, ...]

    @property
    def label(self) -> str:
        """Returns the segment's id, or the first and last ids."""
        ids = [segment.id for segment in self.segments]
        return str(ids[0]) if len(ids) == 1 else f"{ids[0]}..{ids[-1]}"

    @property
    def owner(self) -> str | None:
        """Returns the segments' owner; None if there is no owner, or more than one."""
        owners = {segment.owner for segment in self.segments}
        return owners.pop() if len(owners) == 1 else None

    def rate(self, rates: Mapping[int, float | None]) -> float:
        """Returns the messages per second of the busiest segment."""
        return max((rates.get(segment.id) or 0.0 for segment in self.segments), default=0.0)


def blocks(segments: Sequence[Segment], width: int) -> list[Block]:
    """Returns a bar of `width` cells for segments in key order. Each segment's width is proportional to its key range,
    rounded to cells. A segment that is too small for a cell shares the cells of the next larger segment, or else of the
    last segment that has cells."""
    found: list[Block] = []
    waiting: list[Segment] = []
    for segment in segments:
        waiting.append(segment)
        begin, end = _cell(waiting[0].low, width), _cell(segment.high, width)
        if end > begin:
            found.append(Block(begin, end - begin, tuple(waiting)))
            waiting = []
    if waiting and found:
        last = found.pop()
        found.append(Block(last.first, last.cells, (*last.segments, *waiting)))
    return found


def _cell(key_hash: int, width: int) -> int:
    return (2 * key_hash * width + KEY_SPACE) // (2 * KEY_SPACE)


def colour(rate: float) -> str:
    """Returns the colour for a rate in messages/s, as #rrggbb, on a logarithmic scale."""
    at = 0.0 if rate < 1 else min(1 + math.log10(rate), len(_COLOURS) - 1.0)
    low = min(int(at), len(_COLOURS) - 2)
    pairs = zip(_parts(_COLOURS[low]), _parts(_COLOURS[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in pairs)


def shade(rate: float) -> str:
    """Returns the character for a rate in messages/s, for output without colours."""
    return next(character for below, character in _SHADES if rate < below)


def legend(colours: bool) -> list[tuple[str, str, str]]:
    """Returns the legend of the bar: character, colour and rate of each step."""
    if colours:
        return [("█", colour, rate) for colour, rate in zip(_COLOURS, COLOUR_LEGEND, strict=True)]
    return [(character, "", rate) for (_, character), rate in zip(_SHADES, SHADE_LEGEND, strict=True)]


def short(value: float) -> str:
    """Formats a number in at most five characters: 950, 1.2k, 34.5M."""
    for unit, letter in _UNITS:
        if value >= unit * 0.9995:
            return f"{value / unit:.0f}{letter}" if value >= 99.95 * unit else f"{value / unit:.1f}{letter}"
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def short_names(brokers: Sequence[str]) -> dict[str, str]:
    """Returns each broker's name, with as many digits of its random number as are needed to distinguish it from the
    others."""
    named: dict[str, list[str]] = {}
    for broker in brokers:
        named.setdefault(broker.rpartition(".")[0], []).append(broker)
    return {
        broker: name or broker if len(same) == 1 else _distinct_name(broker, same)
        for name, same in named.items()
        for broker in same
    }


def _distinct_name(broker: str, same: Sequence[str]) -> str:
    for length in range(broker.rfind(".") + 1 + DIGITS, len(broker)):
        if sum(other.startswith(broker[:length]) for other in same) == 1:
            return broker[:length]
    return broker


def _parts(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


WINDOW_S = 10.0
MOVES = 100


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The segment map by id at one moment (monotonic and wall-clock time), and the leader's record if it was
    requested."""

    monotonic_s: float
    at: datetime
    segments: Mapping[int, Segment]
    hour: LastHour | None = None


class WatchHistory:
    """The snapshots of the last seconds (newest last), and all observed moves."""

    def __init__(self, first: Snapshot) -> None:
        self.hour = first.hour
        self._snapshots = deque([first])
        self._moves: deque[tuple[datetime, str]] = deque(maxlen=MOVES)

    @property
    def now(self) -> Snapshot:
        """Returns the newest snapshot."""
        return self._snapshots[-1]

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot."""
        self.hour = snapshot.hour or self.hour
        self._moves.extend((snapshot.at, said) for said in moves(self.now.segments, snapshot.segments))
        self._snapshots.append(snapshot)
        while snapshot.monotonic_s - self._snapshots[0].monotonic_s > WINDOW_S and len(self._snapshots) > 2:
            self._snapshots.popleft()

    def rates(self) -> dict[int, float | None]:
        """Returns the messages per second of each open segment over the last seconds; None if not known yet."""
        return {segment.id: self._rate(segment) for segment in self.now.segments.values() if segment.is_open}

    def log(self) -> list[tuple[datetime, str]]:
        """Returns all replacements and observed moves, oldest first."""
        replaced = [(change.at, str(change)) for change in changes(self.now.segments.values())]
        return sorted([*replaced, *self._moves], key=lambda entry: entry[0])

    def _rate(self, segment: Segment) -> float | None:
        if segment.messages_per_s:
            return segment.messages_per_s[0]
        for one in self._snapshots:
            passed_s = self.now.monotonic_s - one.monotonic_s
            then = one.segments.get(segment.id)
            if then and passed_s > 0:
                return max(0, segment.end_offset - then.end_offset) / passed_s
        if len(self._snapshots) == 1:
            return None
        return segment.end_offset / (self.now.monotonic_s - self._snapshots[-2].monotonic_s)  # it is new


def moves(before: Mapping[int, Segment], after: Mapping[int, Segment]) -> list[str]:
    """Returns the open segments whose owner has changed."""
    both = [(before[number], now) for number, now in after.items() if now.is_open and number in before]
    return [
        f"move {now.id}: {then.owner or 'nobody'} → {now.owner or 'nobody'}"
        for then, now in both
        if then.owner != now.owner
    ]


OWNERS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta", "bright_green")
WIDE = 120  # columns from which there is room for what leads to a split, bytes and age
WIDEST = 150  # columns from which there is room for the hashes, too
HOT = 3  # segments with a hot key, or near a split, are named at most
NEAR = 0.5  # a share of the load that splits a segment
PAST, PAST_LINES = timedelta(minutes=10), 5  # above the bar, and a line that says so
ROOMY = 32  # lines from which there is room for it
FIXED = 12  # lines beside those of table and log


@dataclass(frozen=True, slots=True)
class Frame:
    """The space for the picture: columns, lines (None: no limit), and whether colours are available."""

    columns: int
    lines: int | None
    colours: bool


def picture(topic: str, watched: WatchHistory, frame: Frame, trouble: str = "") -> RenderableType:
    """Returns the picture of a topic. `trouble` explains why there is no newer snapshot, if there is none."""
    segments = by_range(watched.now.segments.values())
    rates = watched.rates()
    owners = sorted({segment.owner for segment in segments if segment.owner})
    styles = {owner: OWNERS[at % len(OWNERS)] if frame.colours else "" for at, owner in enumerate(owners)}
    told = [*_log(watched.log()), *_hot(segments), *(_near(segments) if frame.columns < WIDE else ())]
    rows, lines = _room(frame, len(segments), len(told), len(_past(watched, frame)))
    shown = _hottest(segments, rates, rows)
    return Group(
        _head(topic, watched, segments, rates, len(owners)),
        Text(trouble, style="red"),
        *_past(watched, frame),
        *_bar(blocks(segments, frame.columns), rates, styles, frame),
        _legend(frame.colours),
        Text(),
        _table(shown, watched, rates, styles, frame),
        Text(f"and {len(segments) - len(shown)} less busy segments" if len(shown) < len(segments) else "", style="dim"),
        *told[len(told) - lines :],
    )


def _room(frame: Frame, rows: int, lines: int, past: int) -> tuple[int, int]:
    """Returns the numbers of table rows and log lines. The log gets a third of the space, or what is left."""
    if frame.lines is None:
        return rows, lines
    free = max(2, frame.lines - FIXED - past)
    lines = min(lines, max(free // 3, free - rows))
    return min(rows, free - lines), lines


def _hottest(segments: Sequence[Segment], rates: dict[int, float | None], most: int) -> list[Segment]:
    hot = sorted(segments, key=lambda segment: -(rates[segment.id] or 0.0))[:most]
    chosen = {segment.id for segment in hot}
    return [segment for segment in segments if segment.id in chosen]


def _head(
    topic: str, watched: WatchHistory, segments: Sequence[Segment], rates: dict[int, float | None], brokers: int
) -> Text:
    known = [rate for rate in rates.values() if rate is not None]
    everything = watched.now.segments.values()
    facts = [
        f"{len(segments):,} open",
        f"{len(everything) - len(segments):,} sealed",
        f"{brokers} broker{'' if brokers == 1 else 's'}",
        f"{short(sum(segment.end_offset for segment in everything))} messages"
        + (f", {short(sum(known))}/s" if known else ""),
    ]
    when = f"  {_clock(watched.now.at)} UTC  "
    return Text.assemble((topic, "bold"), (when, "dim"), " · ".join(facts), no_wrap=True, overflow="ellipsis")


def _past(watched: WatchHistory, frame: Frame) -> list[RenderableType]:
    """Returns the rates of the last minutes, newest at the bottom, if the leader has recorded them and there is
    space."""
    if watched.hour is None or (frame.lines or 0) < ROOMY:
        return []
    now = watched.now.at
    found: list[RenderableType] = [
        _line(Text(f"the last {PAST // timedelta(minutes=1)} min, newest at the bottom", "dim"))
    ]
    for rates in watched.hour.rates(now - PAST, now, PAST_LINES, frame.columns):
        line = Text()
        for rate, same in groupby(rates):
            line.append(
                ("█" if frame.colours else shade(rate)) * len(list(same)), colour(rate) if frame.colours else ""
            )
        found.append(_line(line))
    return found


def _bar(
    row: Sequence[Block], rates: dict[int, float | None], styles: dict[str, str], frame: Frame
) -> list[RenderableType]:
    names = short_names(list(styles))
    labels, heat, owners = Text(), Text(), Text()
    for block in row:
        rate, owner = block.rate(rates), block.owner or ""
        gap = " " if block.cells > 1 else ""
        room = block.cells - len(gap)
        labels.append(_fitted(block.label, room) + gap, "bold")
        heat.append(("█" if frame.colours else shade(rate)) * room, colour(rate) if frame.colours else "")
        heat.append(gap)
        name = names.get(owner, "" if owner else "-")
        owners.append(_fitted(name, room, fill="▔" if owner else " ") + gap, styles.get(owner, ""))
    return [_line(labels), _line(heat), _line(heat), _line(owners), _axis(frame.columns)]


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "crop"
    return text


def _fitted(text: str, room: int, fill: str = " ") -> str:
    """Centres a text, or fills the space if the text does not fit."""
    return text.center(room) if len(text) <= room else fill * room


def _axis(columns: int) -> Text:
    ticks = [" "] * columns
    for percent in (0, 25, 50, 75, 100):
        text = f"{percent}%"
        at = min(max(0, columns * percent // 100 - len(text) // 2 * (percent > 0)), columns - len(text))
        ticks[at : at + len(text)] = text
    return _line(Text("".join(ticks), style="dim"))


def _legend(colours: bool) -> Text:
    text = _line(Text.assemble(("messages/s ", "dim")))
    for character, style, rate in legend(colours):
        text.append(f" {character}", style)
        text.append(f" {rate}", "dim")
    return text


def _table(
    segments: Sequence[Segment],
    watched: WatchHistory,
    rates: dict[int, float | None],
    styles: dict[str, str],
    frame: Frame,
) -> Table:
    wide, widest = frame.columns >= WIDE, frame.columns >= WIDEST
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("segment", "keys", "messages/s", *(("MB/s", "nearest split") if wide else ()), "end offset"):
        table.add_column(name, justify="left" if name in ("keys", "nearest split") else "right", no_wrap=True)
    if wide:
        table.add_column("age", justify="right", no_wrap=True)
    if widest:
        table.add_column("key hashes", no_wrap=True)
    table.add_column("owner", no_wrap=True, overflow="ellipsis")
    for segment in segments:
        table.add_row(*_cells(segment, watched.now.at, rates[segment.id], styles, frame.colours, wide, widest))
    return with_whole_numbers(table)


def _cells(
    segment: Segment,
    now: datetime,
    rate: float | None,
    styles: dict[str, str],
    colours: bool,
    wide: bool,
    widest: bool,
) -> list[Text]:
    said = Text("" if rate is None else short(rate), style=colour(rate or 0.0) if colours else "")
    cells = [Text(str(segment.id)), Text(f"{share(segment.low)} - {share(segment.high)}"), said]
    if wide:
        mb = f"{segment.bytes_per_s[0] / 1e6:.2f}" if segment.bytes_per_s else ""
        cells += [Text(mb), Text(str(segment.next_split or ""))]
    cells.append(Text(f"{segment.end_offset:,}"))
    if wide:
        cells.append(Text(_age(segment.lived_s(now))))
    if widest:
        cells.append(Text(f"{segment.low} - {segment.high}"))
    owner = segment.owner or "nobody"
    return [*cells, Text(owner, style=styles.get(owner, "red" if colours else ""))]


def _log(entries: Sequence[tuple[datetime, str]]) -> list[Text]:
    return [Text.assemble((_clock(at), "dim"), "  ", said, no_wrap=True, overflow="ellipsis") for at, said in entries]


def _hot(segments: Sequence[Segment]) -> list[Text]:
    return [
        _line(
            Text(f"segment {one.id} is not split: key hash {one.hot_key[0]} has {one.hot_key[1]:.0%} of its messages")
        )
        for one in segments
        if one.hot_key
    ][:HOT]


def _near(segments: Sequence[Segment]) -> list[Text]:
    """Names the segments that are closest to a split, if the table has no space for this column."""
    near = [(one.next_split.nearness, one) for one in segments if one.next_split and not one.hot_key]
    nearest = sorted((one for one in near if one[0] >= NEAR), key=lambda one: -one[0])[:HOT]
    return [_line(Text(f"segment {one.id} {one.next_split}")) for _, one in nearest]


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def _age(seconds: float) -> str:
    for unit, letter in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {letter}"
    return f"{seconds:.0f} s"
