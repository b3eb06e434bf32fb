"""`seaweedq top`: shows the busiest topics and segments, live in the terminal."""

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, complain, connect, one_line
from seaweedq.cli.shared.output import JSON, TABLE, Output, drawing, say_json
from seaweedq.cli.shared.units import duration
from seaweedq.errors import ConnectionFailed, TopicNotFound, Unavailable

if TYPE_CHECKING:
    from rich.console import Console

    from seaweedq.cli.top.busiest import Loads
    from seaweedq.client import Client

EXAMPLES = "Examples: seaweedq top · seaweedq top --once · seaweedq top --every-s 10 | tee busy.txt"


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    every_s: Annotated[float, duration("Time between two looks.", 0.5)] = 2.0,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the busiest topics and segments with their rates and owners, until Ctrl-C."""
    from seaweedq.cli.data.pull import Interrupts
    from seaweedq.cli.top.busiest import Loads

    console, loads = drawing(), Loads()
    with connect(url) as client:
        count = _look(client, loads)
        if once:
            _show(console, loads, count, output=output)
            return
        with Interrupts() as interrupts:
            looks = interrupts.until_stopped(_looks(client, loads, count, every_s))
            if console.is_terminal and output != JSON:
                _live(console, loads, looks)
            else:
                for count, trouble in looks:
                    _show(console, loads, count, trouble, output)


def _live(console: "Console", loads: "Loads", looks: Iterator[tuple[int, str]]) -> None:
    from rich.live import Live

    from seaweedq.cli.top.top_picture import picture

    count = 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for count, trouble in looks:
            live.update(picture(loads, count, datetime.now(UTC), console.height, trouble), refresh=True)
    _show(console, loads, count)


def _show(console: "Console", loads: "Loads", count: int, trouble: str = "", output: str = TABLE) -> None:
    from seaweedq.cli.top.top_picture import picture

    if output == JSON:
        if trouble:
            complain(trouble)
        else:
            say_json({"time": datetime.now(UTC), "topics": count, "busiest": loads.busiest()})
        return

    console.print(picture(loads, count, datetime.now(UTC), console.height if console.is_terminal else None, trouble))


def _looks(client: "Client", loads: "Loads", count: int, every_s: float) -> Iterator[tuple[int, str]]:
    """Yields how many topics there are, and the error of a look that may be repeated."""
    trouble = ""
    while True:
        yield count, trouble
        time.sleep(every_s)
        try:
            count, trouble = _look(client, loads), ""
        except (Unavailable, ConnectionFailed) as error:
            trouble = one_line(error)


def _look(client: "Client", loads: "Loads") -> int:
    """Asks for the topics that are due. Returns how many topics there are."""
    from seaweedq.cli.top.busiest import TopicLoad

    names = [topic["name"] for topic in client.topics()]
    for name in loads.due(names):
        with suppress(TopicNotFound):  # it was deleted meanwhile
            loads.known[name] = TopicLoad.of(name, client.segments(name))
    return len(names)
