"""`seaweedq topic`: list, show, files, flush, delete; other modules have the commands that create and change topics, or
work on segments."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, counted, first_url, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_table
from seaweedq.cli.topic import configure, history, reshape, tail, watch
from seaweedq.errors import TopicNotFound

if TYPE_CHECKING:
    from seaweedq.client.core.calls import TopicFile

app = typer.Typer(
    no_args_is_help=True, help="Create, change, list, show, flush and delete topics; change their segments."
)

FILES = "Examples: seaweedq topic files flights · seaweedq topic files flights --segment 3 -o json | jq .bytes"
_FILES = columns("segment, name, offsets, rows, bytes", numbers="segment, offsets, rows, bytes")
MEASURED = 100  # topics of a table; each takes three requests


app.command(epilog=configure.CREATE)(configure.create)
app.command("set", epilog=configure.SET)(configure.change)


@app.command("list", epilog="Examples: seaweedq topic list · seaweedq topic list -o json | jq .name")
def list_topics(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all topics with their messages, sizes, rates and segments, and how far behind the subscription is that is
    furthest behind."""
    from seaweedq.cli.topic.topic_page import HEAD, measure

    with connect(url) as client:
        names, unreadable = [topic["name"] for topic in client.topics()], client.unreadable_topics()
        if unreadable:
            typer.echo(f"left out, since they need a newer broker: {', '.join(unreadable)}", err=True)
        found = []
        for name in names if output != TABLE else names[:MEASURED]:
            with suppress(TopicNotFound):  # it was deleted meanwhile
                found.append(measure(client, name))
    if output == JSON:
        for one in found:
            say_json(one.summary())
        return
    say_table(output, HEAD, (one.row() for one in found), "no topic yet; seaweedq topic create NAME makes one")
    if len(found) < len(names):
        typer.echo(f"these are the first {len(found):,} of {counted(len(names), 'topic')}; -o wide has all", err=True)


@app.command(epilog="Examples: seaweedq topic show flights · seaweedq topic show flights --config")
def show(
    topic: Topic,
    config: Annotated[bool, typer.Option("--config", help="Show the configuration instead.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show a topic: its rates, segments and subscriptions, and commands to paste for curl, DuckDB and Spark."""
    from seaweedq.cli.topic.topic_page import measure, print_config, print_page

    with connect(url) as client:
        if config and output != JSON:
            print_config(client.topic(topic))
            return
        found = measure(client, topic)
    if output == JSON:
        say_json({**found.topic, "segments": found.segments, "subscriptions": found.subscriptions})
        return
    print_page(found, output)
    from seaweedq.cli.shared.shell_hints import header_of, lines

    value = '{"n": 1}' if found.topic["format"] == "json" else ""
    say("\n" + "\n".join(lines(first_url(url), topic, found.topic["path"], value, header_of(os.environ))))


@app.command(epilog="Example: seaweedq topic flush flights")
def flush(topic: Topic, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Write all messages acknowledged so far to Parquet files."""
    with connect(url) as client:
        client.flush(topic)
    say_done(output, f"all messages of topic {topic} are in files", topic=topic, flushed=True)


@app.command(epilog="Example: seaweedq topic delete flights --yes")
def delete(
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a topic with all its messages."""
    with connect(url) as client:
        client.topic(topic)
        if not yes:
            typer.confirm(f"Delete topic {topic} with all its messages?", abort=True, err=True)
        client.delete_topic(topic)
    say_done(output, f"topic {topic} was deleted", topic=topic, deleted=True)


def files(
    topic: Topic,
    segment: Annotated[int | None, typer.Option(min=0, help="List the files of this segment alone.")] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """List the files of a topic: the rows that they have, and their sizes. Messages in no file yet are not in it."""
    with connect(url) as client:
        found, facts = client.files(topic, segment), client.topic(topic)
    if output == JSON:
        for one in found:
            say_json(one)
        return
    say_table(output, _FILES, map(_row, found), f"topic {topic} has no file yet")
    rows, size = sum(one.next_offset - one.first_offset for one in found), sum(one.bytes for one in found)
    say(f"{counted(len(found), 'file')}, {counted(rows, 'row')}, {counted(size, 'byte')} in {facts['path']}")


def _row(file: "TopicFile") -> tuple[str, ...]:
    rows = file.next_offset - file.first_offset
    offsets = f"{file.first_offset:,} - {file.next_offset - 1:,}"
    return str(file.segment), file.name, offsets, f"{rows:,}", f"{file.bytes:,}"


app.command(epilog=reshape.SPLIT)(reshape.split)
app.command(epilog=reshape.MERGE)(reshape.merge)
app.command(epilog=reshape.ROLL)(reshape.roll)
app.command(epilog=reshape.MOVE)(reshape.move)
app.command(epilog=watch.EXAMPLES)(watch.watch)
app.command(epilog=tail.EXAMPLES)(tail.tail)
app.command(epilog=FILES)(files)
app.command(epilog=history.EXAMPLES)(history.history)
