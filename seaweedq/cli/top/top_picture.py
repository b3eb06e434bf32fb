"""The picture of `seaweedq top`: sums, the busiest topics, the busiest segments. Pure: its data are passed in."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seaweedq.cli.shared.common import counted, printable
from seaweedq.cli.shared.output import cut, with_whole_numbers
from seaweedq.cli.top.busiest import Loads, TopicLoad
from seaweedq.cli.topic.lineage import Segment, share
from seaweedq.cli.topic.watch_bar import colour, short

FIXED = 6  # lines beside those of the tables
FEWEST = 3  # rows of each
NAME = 32  # characters of a name in a terminal, which lacks its middle if it is longer


def picture(loads: Loads, topics: int, now: datetime, lines: int | None, trouble: str = "") -> RenderableType:
    """Returns the picture. `topics` is how many there are, `lines` the room, `trouble` why there is nothing newer."""
    busiest, segments = loads.busiest(), loads.segments()
    room = max(2 * FEWEST, lines - FIXED) if lines else len(busiest) + len(segments)
    for_segments = min(len(segments), max(FEWEST, room // 2, room - len(busiest)))
    shown = busiest[: room - for_segments]
    more = Text(f"and {counted(topics - len(shown), 'topic')} with less" if topics > len(shown) else "", style="dim")
    return Group(
        _head(loads, topics, now),
        Text(trouble, style="red"),
        _topics(shown, lines is not None),
        more,
        *([_segments(segments[:for_segments], lines is not None)] if for_segments else []),
    )


def _head(loads: Loads, topics: int, now: datetime) -> Text:
    known = loads.known.values()
    owners = set().union(*(load.owners for load in known))
    messages, size = sum(load.rate() for load in known), sum(load.bytes_per_s for load in known)
    facts = (
        f"{counted(topics, 'topic')}, {counted(sum(len(load.open) for load in known), 'open segment')}, "
        f"{counted(len(owners), 'owner')}, "
        f"{short(messages)} messages/s, {size / 1e6:.2f} MB/s"
    )
    return Text.assemble((f"{now:%H:%M:%S} UTC  ", "dim"), facts, no_wrap=True, overflow="ellipsis")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="left" if name in ("topic", "owner", "keys", "") else "right", no_wrap=True)
    return table


def _topics(loads: Sequence[TopicLoad], cuts: bool) -> Table:
    table = _table("topic", "messages/s", "1 min", "MB/s", "segments", "owners", "messages")
    for load in loads:
        table.add_row(
            Text(cut(printable(load.name), NAME) if cuts else printable(load.name)),
            Text(short(load.rate()), style=colour(load.rate())),
            short(load.rate(minutes=True)),
            f"{load.bytes_per_s / 1e6:.2f}",
            f"{len(load.open):,}",
            f"{len(load.owners):,}",
            f"{load.messages:,}",
        )
    return with_whole_numbers(table)


def _segments(segments: Sequence[tuple[str, Segment]], cuts: bool) -> Table:
    table = _table("topic", "segment", "messages/s", "MB/s", "keys", "owner", "")
    for topic, one in segments:
        rate = one.messages_per_s[0]
        table.add_row(
            Text(cut(printable(topic), NAME) if cuts else printable(topic)),
            str(one.id),
            Text(short(rate), style=colour(rate)),
            f"{one.bytes_per_s[0] / 1e6:.2f}",
            f"{share(one.low)} - {share(one.high)}",
            Text(one.owner or "nobody"),
            f"one key has {one.hot_key[1]:.0%}" if one.hot_key else str(one.next_split or ""),
        )
    return with_whole_numbers(table)
