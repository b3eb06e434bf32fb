"""`seaweedq dead-letters`: list dead letters, and publish them to their topics again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, complain, connect, say

if TYPE_CHECKING:
    from seaweedq.client import Client, Message

app = typer.Typer(no_args_is_help=True, help="List dead letters, and publish them to their topics again.")
LIST = """Examples: seaweedq dead-letters list lost · seaweedq dead-letters list lost --max 20 ·
seaweedq dead-letters list lost --json | jq 'select(.headers["dead-letter-reason"] == "rejected")'"""
REDRIVE = """Examples: seaweedq dead-letters redrive lost · seaweedq dead-letters redrive lost --max 1 ·
seaweedq subscription seek lost redrive --to earliest, to begin anew a day later"""
SUBSCRIPTION, IDLE_S, PAGE = "redrive", 1.0, 500
_SHOWN = ("reason", "attempts", "topic", "subscription", "id", "time", "detail")
Letters = Annotated[str, typer.Argument(help="Name of the topic for dead letters.", show_default=False)]
Most = Annotated[int | None, typer.Option("--max", min=1, help="End after this number of letters.")]


@app.command("list", epilog=LIST)
def list_letters(
    topic: Letters,
    max: Most = None,
    json: Annotated[bool, typer.Option("--json", help="Print whole messages as JSON, one a line.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List the dead letters that are in a topic: their id there, why and where they died. Nothing is acked."""
    with connect(url) as client:
        for number, message in enumerate(_all(client, topic), 1):
            about = message.headers
            line = "  ".join(about.get(f"dead-letter-{name}") or "-" for name in _SHOWN)
            say(message.json.decode() if json else f"{message.id}  {line}")
            if number == max:
                break


@app.command(epilog=REDRIVE)
def redrive(
    topic: Letters,
    subscription: Annotated[
        str,
        typer.Option("--subscription", "-s", help="Subscription that says what was done; it is created at need."),
    ] = SUBSCRIPTION,
    max: Most = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish dead letters to the topics that their headers name, without those headers, and ack them here.

    Ends after a second without letters. It can be interrupted, and called again: what was published within a day, and
    not acked, is not published twice. Run it once at a time, and seek its subscription back only a day later: till then
    letters before the newest published one count as published.
    """
    from seaweedq.cli.letters.redriving import Redriving

    with ExitStack() as stack:
        client = stack.enter_context(connect(url))
        told = _progress(stack, max)
        redriving = Redriving(client, url, topic, client.topic(topic)["format"] == "bytes")
        stack.callback(redriving.close)
        pulled = min(max or PAGE, PAGE)
        messages = client.subscribe(topic, subscription, "earliest", IDLE_S, max_messages=pulled, mode="ordered")
        stack.callback(messages.close)  # type: ignore[attr-defined]  # sends the acks, also of what an error ends
        done = again = left = 0
        for message in messages:
            outcome = redriving.redrive(message)
            done, again, left = done + (outcome == "published"), again + (outcome == "there"), left + (outcome is None)
            if outcome is None:
                complain(f"message {message.id} has no header dead-letter-topic, so it is no dead letter; it stays")
            else:
                message.ack()
            told(done)
            if done + again + left == max:
                break
    more = f"; {again:,} were there from an earlier run" if again else ""
    say(f"published {done:,} dead letters again{more}{f'; {left:,} stay' if left else ''}")


def _all(client: "Client", topic: str) -> Iterator["Message"]:
    """Yields all messages of a topic, segment by segment."""
    for segment in client.segments(topic):
        offset, before = int(segment.get("start_offset") or 0), -1
        while offset > before:  # a page may be empty, though there is more: its messages have expired
            page, before = client.fetch(topic, segment["id"], offset, PAGE), offset
            yield from page.messages
            offset = page.next_offset


def _progress(stack: ExitStack, most: int | None) -> Callable[[int], None]:
    """Returns a callback for the number of letters; it shows them where there is a terminal."""
    if not sys.stderr.isatty():
        return lambda done: None
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("publishing again"), TextColumn("{task.completed:,} letters"), TimeElapsedColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("letters", total=most)
    return lambda done: bar.update(task, completed=done)
