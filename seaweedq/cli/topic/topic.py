"""`seaweedq topic`: list, show, flush, delete; other modules have the commands that create and change topics, and those
of segments."""

import os
from typing import Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, first_url, printable, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_done, say_json, say_page, say_table
from seaweedq.cli.topic import configure, files, history, reshape, tail, watch
from seaweedq.cli.topic.lineage import NextSplit

app = typer.Typer(
    no_args_is_help=True, help="Create, change, list, show, flush and delete topics; change their segments."
)

_LISTED = columns("name, format, state, created_at")


app.command(epilog=configure.CREATE)(configure.create)
app.command("set", epilog=configure.SET)(configure.change)


@app.command("list", epilog="Example: seaweedq topic list -o json | jq .name")
def list_topics(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all topics."""
    with connect(url) as client:
        topics, unreadable = client.topics(), client.unreadable_topics()
    if unreadable:
        typer.echo(f"left out, since they need a newer broker: {', '.join(unreadable)}", err=True)
    if output == JSON:
        for topic in topics:
            say_json(topic)
        return
    rows = [[_text(topic[column.name]) for column in _LISTED] for topic in topics]
    say_table(output, _LISTED, rows, "no topic yet; seaweedq topic create NAME makes one")


@app.command(epilog="Example: seaweedq topic show flights")
def show(topic: Topic, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Show a topic's configuration and segments, and commands to paste for curl, DuckDB and Spark."""
    with connect(url) as client:
        facts, segments = client.topic(topic), client.segments(topic)
    if output == JSON:
        say_json({**facts, "segments": segments})
        return
    say_page((name, _text(value)) for name, value in facts.items())
    for segment in segments:
        say(_segment(segment))
    from seaweedq.cli.shared.shell_hints import header_of, lines

    value = '{"n": 1}' if facts["format"] == "json" else ""
    say("\n" + "\n".join(lines(first_url(url), topic, facts["path"], value, header_of(os.environ))))


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


app.command(epilog=reshape.SPLIT)(reshape.split)
app.command(epilog=reshape.MERGE)(reshape.merge)
app.command(epilog=reshape.ROLL)(reshape.roll)
app.command(epilog=reshape.MOVE)(reshape.move)
app.command(epilog=watch.EXAMPLES)(watch.watch)
app.command(epilog=tail.EXAMPLES)(tail.tail)
app.command(epilog=files.EXAMPLES)(files.files)
app.command(epilog=history.EXAMPLES)(history.history)


def _segment(segment: dict[str, Any]) -> str:
    said = (
        f"segment {segment['id']}: {segment['state']}, keys {segment['low']} to {segment['high']}, "
        f"offsets {segment['start_offset']} to {segment['end_offset']}"
    )
    if rates := segment.get("rates"):
        said += f", {rates['messages_per_s'][0]:,.1f} messages/s"
    if split := segment.get("next_split"):
        said += f", {NextSplit.of(split)}"
    if hot := segment.get("hot_key"):
        said += f", over the target but not split: one key, of hash {hot['hash']}, has {hot['share']:.0%} of it"
    return said


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items() if item is not None)
    return "" if value is None else printable(str(value))
