"""`seaweedq dead-letters`: list dead letters, and publish them to their topics again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, connect, counted, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_table
from seaweedq.clock import SystemIds

if TYPE_CHECKING:
    from seaweedq.client import Client, Message

app = typer.Typer(no_args_is_help=True, help="List dead letters, or republish them to their original topics.")
LIST = """Examples: seaweedq dead-letters list lost · seaweedq dead-letters list lost --max 20 ·
seaweedq dead-letters list lost -o json | jq 'select(.headers["dead-letter-reason"] == "rejected")'"""
REDRIVE = """Examples: seaweedq dead-letters redrive lost · seaweedq dead-letters redrive lost --max 1"""
SUBSCRIPTION, PAGE = "redrive", 500
PREFIX = "dead-letter-"
_LISTED = columns("id, reason, attempts, topic, subscription, message, time, detail", numbers="attempts")
_SHOWN = ("reason", "attempts", "topic", "subscription", "id", "time", "detail")
Letters = Annotated[str, typer.Argument(help="Name of the dead-letter topic.", show_default=False)]
Most = Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this number of dead letters.")]


@app.command("list", epilog=LIST)
def list_letters(
    topic: Letters,
    max: Most = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """List the dead letters in a topic, with their IDs, reasons and origins, without acking them."""
    with connect(url) as client:
        letters = islice((one for one in read_letters(client, topic) if f"{PREFIX}topic" in one.headers), max)
        if output == JSON:
            for letter in letters:
                say(letter.json.decode())
            return
        rows = ([one.id, *(one.headers.get(f"{PREFIX}{name}") or "-" for name in _SHOWN)] for one in letters)
        say_table(output, _LISTED, rows, f"topic {topic} has no dead letters")


@app.command(epilog=REDRIVE)
def redrive(
    topic: Letters,
    subscription: Annotated[
        str,
        typer.Option(
            "--subscription",
            "-s",
            help="Subscription that stores the progress; if it does not exist, the command creates it.",
        ),
    ] = SUBSCRIPTION,
    max: Most = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Republish dead letters to their original topics, without the dead-letter headers, and ack them in the
    dead-letter topic.

    The command ends when no dead letter has arrived for one second. If you interrupt the command and run it again
    within a day, it publishes no dead letter twice, unless you have moved the command's subscription
    (--subscription) to an earlier position. Do not run the command twice at the same time."""
    from seaweedq.cli.redriving import Redriver, RedriveRun

    with ExitStack() as stack:
        client = stack.enter_context(connect(url))
        redriving = stack.enter_context(closing(Redriver(client, url, topic, subscription)))
        run = RedriveRun(client, redriving, max, _progress(stack, max), SystemIds().nonce())
        run.run()
    told = f"republished {counted(run.done, 'dead letter')}"
    told += f"; an earlier run had already published {run.again:,}" if run.again else ""
    told += f"; left {counted(len(run.left), 'message')} that no subscription rejected" if run.left else ""
    told += f"; {run.held:,} are delayed, or leased by other consumers: run the command again later" if run.held else ""
    facts = {"published": run.done, "published_before": run.again, "not_letters": len(run.left), "leased": run.held}
    say_done(output, told, topic=topic, **facts)


def read_letters(client: "Client", topic: str) -> Iterator["Message"]:
    """Yields all messages of a topic, segment by segment."""
    for segment in client.segments(topic):
        offset, before = int(segment.get("start_offset") or 0), -1
        while offset > before:  # a page may be empty, though there is more: its messages have expired
            page, before = client.fetch(topic, segment["id"], offset, PAGE), offset
            yield from page.messages
            offset = page.next_offset


def _progress(stack: ExitStack, most: int | None) -> Callable[[int], None]:
    """Returns a callback that shows the number of letters, if there is a terminal."""
    if not sys.stderr.isatty():
        return lambda done: None
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("publishing again"), TextColumn("{task.completed:,} letters"), TimeElapsedColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("letters", total=most)
    return lambda done: bar.update(task, completed=done)
