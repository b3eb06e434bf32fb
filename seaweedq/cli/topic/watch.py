"""`seaweedq topic watch`: shows a topic's segments live in the terminal."""

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, complain, connect, one_line, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, drawing, say_json
from seaweedq.errors import ConnectionFailed, RouteNotFound, Unavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from seaweedq.cli.topic.lineage import LastHour
    from seaweedq.cli.topic.watch_picture import Snapshot, WatchHistory
    from seaweedq.client import Client

EXAMPLES = "Examples: seaweedq topic watch flights · seaweedq topic watch flights --once"
EVERY_S = 1.0
HISTORY = 10  # snapshots, at one of which the leader is asked for the last minutes


def watch(
    topic: Topic,
    once: Annotated[bool, typer.Option("--once", help="Print the output once, and exit.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show a topic's segments live until Ctrl-C: their key ranges as a bar with rates and owners, and every split,
    merge and move."""
    from seaweedq.cli.shared.process import Interrupts
    from seaweedq.cli.topic.watch_picture import WatchHistory

    console = drawing()
    with ExitStack() as stack:
        client = stack.enter_context(connect(url))
        watched = WatchHistory(_snapshot(client, topic, history=output != JSON))
        snapshots = stack.enter_context(Interrupts()).until_stopped(_snapshots(client, topic))
        if output == JSON:
            _objects(topic, chain([watched.now], snapshots), once)
        elif once:
            if not all(segment.messages_per_s for segment in watched.now.segments.values() if segment.is_open):
                _add(watched, next(snapshots, ""))  # rates need a second look
            console.print(_picture(topic, watched, console, None))
        elif console.is_terminal:
            _live(topic, watched, snapshots, console)
        else:
            console.print(_picture(topic, watched, console, None))
            _lines(watched, snapshots)


def _objects(topic: str, snapshots: "Iterable[Snapshot | str]", once: bool) -> None:
    """Prints a JSON object per snapshot, with all segments."""
    for snapshot in snapshots:
        if isinstance(snapshot, str):
            complain(snapshot)
        else:
            say_json({"time": snapshot.at, "topic": topic, "segments": list(snapshot.segments.values())})
        if once:
            break


def _live(topic: str, watched: "WatchHistory", snapshots: "Iterator[Snapshot | str]", console: "Console") -> None:
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(_picture(topic, watched, console, console.height), refresh=True)
        for snapshot in snapshots:
            trouble = _add(watched, snapshot)
            live.update(_picture(topic, watched, console, console.height, trouble), refresh=True)
    console.print(_picture(topic, watched, console, console.height))


def _lines(watched: "WatchHistory", snapshots: "Iterator[Snapshot | str]") -> None:
    told = set(watched.log())
    for snapshot in snapshots:
        _add(watched, snapshot)
        for at, said in watched.log():
            if (at, said) not in told:
                say(f"{at:%H:%M:%S}  {said}")
        told.update(watched.log())


def _add(watched: "WatchHistory", snapshot: "Snapshot | str") -> str:
    """Adds a snapshot of the segment map. Returns the error if the map could not be read."""
    if isinstance(snapshot, str):
        return snapshot
    watched.add(snapshot)
    return ""


def _snapshots(client: "Client", topic: str) -> "Iterator[Snapshot | str]":
    """Yields a snapshot every second, or the error of a failed attempt that may be repeated."""
    for number in count(1):
        time.sleep(EVERY_S)
        try:
            yield _snapshot(client, topic, history=number % HISTORY == 0)
        except (Unavailable, ConnectionFailed) as error:
            yield one_line(error)


def _snapshot(client: "Client", topic: str, history: bool) -> "Snapshot":
    from seaweedq.cli.topic.lineage import Segment
    from seaweedq.cli.topic.watch_picture import Snapshot

    segments, now = map(Segment.from_answer, client.segments(topic)), datetime.now(UTC)
    hour = load_last_minutes(client, topic, now) if history else None
    return Snapshot(time.monotonic(), now, {segment.id: segment for segment in segments}, hour)


def load_last_minutes(client: "Client", topic: str, now: datetime) -> "LastHour | None":
    """Returns the leader's record, or None if no broker returns it. The picture works without the record."""
    from seaweedq.cli.topic.lineage import LastHour
    from seaweedq.cli.topic.watch_picture import PAST

    try:
        return LastHour.from_answer(client.history(topic, since=now - PAST))
    except (Unavailable, ConnectionFailed, RouteNotFound):
        return None


def _picture(
    topic: str, watched: "WatchHistory", console: "Console", lines: int | None, trouble: str = ""
) -> "RenderableType":
    from seaweedq.cli.topic.watch_picture import Frame, picture

    colours = console.is_terminal and not console.no_color
    return picture(topic, watched, Frame(shutil.get_terminal_size().columns, lines, colours), trouble)
