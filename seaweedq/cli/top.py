"""`seaweedq top`: shows the busiest topics and segments live in the terminal. Ranking and layout are pure functions.

Each topic needs one request per refresh. If there are more topics than a refresh may request, half of the requests go
to the busiest topics and half to the next topics in turn, so every topic is refreshed sooner or later."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from seaweedq.cli.shared.common import DEFAULT_URL, Url, complain, connect, counted, duration, one_line, printable
from seaweedq.cli.shared.output import JSON, TABLE, Output, cut, drawing, say_json, with_whole_numbers
from seaweedq.cli.topic.lineage import Segment, share
from seaweedq.cli.topic.watch_picture import colour, short
from seaweedq.errors import ConnectionFailed, TopicNotFound, Unavailable

LOOKS = 100  # topics in a round


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """The load of a topic, with its open segments. Rates are the brokers' averages over the last 10 s."""

    name: str
    messages: int
    open: Sequence[Segment]

    @staticmethod
    def from_answer(name: str, answer: Iterable[Mapping[str, Any]]) -> "TopicLoad":
        """Computes the load of a topic from the segments that a broker lists."""
        listed = list(answer)
        found = [one for one in map(Segment.from_answer, listed) if one.is_open]
        return TopicLoad(name, sum(one["end_offset"] - one["start_offset"] for one in listed), found)

    def rate(self, minutes: bool = False) -> float:
        """Returns the messages per second over the last 10 s, or over the last minute."""
        return sum(one.messages_per_s[minutes] for one in self.open if len(one.messages_per_s) > minutes)

    @property
    def bytes_per_s(self) -> float:
        """Returns the bytes per second over the last 10 s."""
        return sum(one.bytes_per_s[0] for one in self.open if one.bytes_per_s)

    @property
    def owners(self) -> set[str]:
        """Returns the brokers that own the topic's open segments."""
        return {one.owner for one in self.open if one.owner}


@dataclass
class Loads:
    """The known load of each topic. `turn` is the position in the list of topics that are refreshed in turn."""

    known: dict[str, TopicLoad] = field(default_factory=dict)
    turn: int = 0

    def due(self, names: Sequence[str], most: int = LOOKS) -> list[str]:
        """Returns the topics to refresh next, and forgets deleted topics."""
        self.known = {name: load for name, load in self.known.items() if name in set(names)}
        if len(names) <= most:
            return list(names)
        busy = [load.name for load in self.busiest()[: most // 2] if load.rate()]
        rest = [name for name in [*names[self.turn :], *names[: self.turn]] if name not in busy][: most - len(busy)]
        self.turn = (names.index(rest[-1]) + 1) % len(names)
        return [*busy, *rest]

    def busiest(self) -> list[TopicLoad]:
        """Returns the topics in descending order of rate, then of messages."""
        return sorted(self.known.values(), key=lambda load: (-load.rate(), -load.messages, load.name))

    def segments(self) -> list[tuple[str, Segment]]:
        """Returns the open segments with messages, in descending order of rate."""
        every = [(load.name, one) for load in self.known.values() for one in load.open]
        some = [pair for pair in every if pair[1].messages_per_s and pair[1].messages_per_s[0] > 0]
        return sorted(some, key=lambda pair: (-pair[1].messages_per_s[0], pair[0], pair[1].id))


FIXED = 6  # lines beside those of the tables
FEWEST = 3  # rows of each
NAME = 32  # characters of a name in a terminal, which lacks its middle if it is longer


def picture(loads: Loads, topics: int, now: datetime, lines: int | None, trouble: str = "") -> RenderableType:
    """Returns the picture. `topics` is the number of topics, `lines` the available height, and `trouble` the reason if
    the figures are old."""
    busiest, segments = loads.busiest(), loads.segments()
    room = max(2 * FEWEST, lines - FIXED) if lines else len(busiest) + len(segments)
    for_segments = min(len(segments), max(FEWEST, room // 2, room - len(busiest)))
    shown = busiest[: room - for_segments]
    more = Text(
        f"and {counted(topics - len(shown), 'topic')} with less load" if topics > len(shown) else "", style="dim"
    )
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


if TYPE_CHECKING:
    from rich.console import Console

    from seaweedq.client import Client

EXAMPLES = "Examples: seaweedq top · seaweedq top --once · seaweedq top --every-s 10 | tee busy.txt"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the output once, and exit.")] = False,
    every_s: Annotated[float, duration("Refresh interval.", 0.5)] = 2.0,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the busiest topics and segments, with their owners and their rates over the last 10 s, until Ctrl-C. Each
    refresh covers at most 100 topics: the 50 busiest topics, and 50 other topics in rotation."""
    from seaweedq.cli.shared.process import Interrupts

    console, loads = drawing(), Loads()
    with connect(url) as client:
        count = _refresh(client, loads)
        if once:
            _show(console, loads, count, output=output)
            return
        with Interrupts() as interrupts:
            refreshes = interrupts.until_stopped(_refreshes(client, loads, count, every_s))
            if console.is_terminal and output != JSON:
                _live(console, loads, refreshes)
            else:
                for count, trouble in refreshes:
                    _show(console, loads, count, trouble, output)


def _live(console: "Console", loads: "Loads", refreshes: Iterator[tuple[int, str]]) -> None:
    from rich.live import Live

    count = 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for count, trouble in refreshes:
            live.update(picture(loads, count, datetime.now(UTC), console.height, trouble), refresh=True)
    _show(console, loads, count)


def _show(console: "Console", loads: "Loads", count: int, trouble: str = "", output: str = TABLE) -> None:
    if output == JSON:
        if trouble:
            complain(trouble)
        else:
            say_json({"time": datetime.now(UTC), "topics": count, "busiest": loads.busiest()})
        return

    console.print(picture(loads, count, datetime.now(UTC), console.height if console.is_terminal else None, trouble))


def _refreshes(client: "Client", loads: "Loads", count: int, every_s: float) -> Iterator[tuple[int, str]]:
    """Yields the number of topics, or the error of a request that may be repeated."""
    trouble = ""
    while True:
        yield count, trouble
        time.sleep(every_s)
        try:
            count, trouble = _refresh(client, loads), ""
        except (Unavailable, ConnectionFailed) as error:
            trouble = one_line(error)


def _refresh(client: "Client", loads: "Loads") -> int:
    """Requests the topics that are due. Returns the number of topics."""
    names = [topic["name"] for topic in client.topics()]
    for name in loads.due(names):
        with suppress(TopicNotFound):  # it was deleted meanwhile
            loads.known[name] = TopicLoad.from_answer(name, client.segments(name))
    return len(names)
