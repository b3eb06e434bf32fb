"""`seaweedq topic`: list, show, files, flush, delete. Other modules have the commands that create and change topics,
and that change segments.

`show` prints a topic's figures (messages, sizes, rates, the largest subscription lag), its segments, and its
subscriptions with their lag; or its configuration."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, counted, first_url, header_of, lines, say
from seaweedq.cli.shared.output import JSON, TABLE, WIDE, Output, columns, say_done, say_json, say_page, say_table
from seaweedq.cli.subscription import print_list
from seaweedq.cli.topic import configure, directory, history, tail, watch
from seaweedq.cli.topic.lineage import NextSplit, share
from seaweedq.errors import TopicNotFound

if TYPE_CHECKING:
    from seaweedq.client import Client
    from seaweedq.client.core.calls import TopicFile

Facts = Mapping[str, Any]
HEAD = columns(
    "name, messages, size, unflushed, messages/s, segments, behind, subscription, format, state, created",
    numbers="messages, size, unflushed, messages/s, segments, behind",
    wide="subscription, format, state, created",
)


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Brokers' answers about one topic."""

    topic: Facts
    segments: Sequence[Facts]
    subscriptions: Sequence[Facts]

    def rate(self, name: str = "messages_per_s") -> float:
        """Returns the messages or bytes per second over the last 10 s, summed over all segments."""
        return float(sum(one["rates"][name][0] for one in self.segments if one["rates"]))

    @property
    def behind(self) -> Facts | None:
        """Returns the subscription with the most unacked messages; None without subscriptions."""
        lag = ((one["lag_total"]["messages"], one["lag_total"]["seconds"], one) for one in self.subscriptions)
        return max(lag, key=lambda found: found[:2], default=(0, 0, None))[2]

    @property
    def open(self) -> list[Facts]:
        """Returns the segments that receive messages."""
        return [one for one in self.segments if one["state"] == "open"]

    def row(self) -> tuple[str, ...]:
        """Returns the topic's row in the table of topics."""
        facts, behind = self.topic, self.behind
        return (
            facts["name"],
            f"{facts['messages']:,}",
            size(facts["bytes"]),
            size(facts["tail_bytes"]),
            f"{self.rate():,.1f}",
            f"{facts['segments']:,}",
            f"{behind['lag_total']['messages']:,}" if behind else "-",
            behind["name"] if behind else "-",
            facts["format"],
            facts["state"],
            moment(facts["created_at"]),
        )

    def summary(self) -> dict[str, Any]:
        """Returns the topic's object in the JSON list of topics."""
        named = ("name", "format", "state", "created_at", "messages", "bytes", "tail_bytes", "segments")
        behind = self.behind
        furthest = {"subscription": behind["name"], **behind["lag_total"]} if behind else None
        rates = {name: self.rate(name) for name in ("messages_per_s", "bytes_per_s")}
        return {**{name: self.topic[name] for name in named}, **rates, "behind": furthest}


def size(count: float) -> str:
    """Formats a number of bytes for people: `936 bytes`, `1.2 MB`."""
    from rich.filesize import decimal

    return decimal(int(count))


def moment(text: str) -> str:
    """Formats a time in UTC, without a fraction."""
    return f"{text[:19]}Z"


def measure(client: "Client", topic: str) -> TopicFigures:
    """Requests a topic's figures. Raises TopicNotFound."""
    return TopicFigures(client.topic(topic), client.segments(topic), client.subscriptions(topic))


_SEGMENTS = columns(
    "segment, state, keys, messages, offsets, unflushed, messages/s, MB/s, nearest split, owner, note",
    numbers="segment, keys, messages, offsets, unflushed, messages/s, MB/s",
    wide="state, offsets, unflushed",
)
_FIGURES = frozenset(
    {
        "name",
        "state",
        "bounds",
        "created_at",
        "segments",
        "hot_segments",
        "messages",
        "bytes",
        "tail_bytes",
        "start_offsets",
        "newest_file_at",
        "path",
        "store_endpoint",
    }
)


def print_page(found: TopicFigures, output: str) -> None:
    """Prints a topic for people."""
    facts, sealed = found.topic, len(found.segments) - len(found.open)
    key = f", key in {facts['key_field']}" if facts["key_field"] else ""
    unflushed = f", and {size(facts['tail_bytes'])} not in files yet" if facts["tail_bytes"] else ""
    say_page(
        [
            ("topic", f"{facts['name']}: {facts['format']}{key}, {facts['state']} since {moment(facts['created_at'])}"),
            ("messages", f"{facts['messages']:,}"),
            ("size", f"{size(facts['bytes'])} in files{unflushed}"),
            ("rate", f"{found.rate():,.1f} messages/s, {size(found.rate('bytes_per_s'))}/s, over the last 10 s"),
            ("files", facts["path"]),
            ("segments", f"{len(found.open):,} open" + (f", {sealed:,} sealed" if sealed else "")),
        ]
    )
    say()
    shown = found.segments if output == WIDE else found.open
    say_table(output, _SEGMENTS, map(_segment, shown))
    if sealed and output != WIDE:
        say(
            f"-o wide also shows {counted(sealed, 'sealed segment')}; topic history shows what replaced sealed segments"
        )
    say()
    if found.subscriptions:
        print_list(facts["name"], found.subscriptions, output)
    else:
        say("no subscription")


def print_config(topic: Facts) -> None:
    """Prints a topic's configuration."""
    config = {name: value for name, value in topic.items() if name not in _FIGURES}
    say_page(_flat("", config))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields the members of a configuration with their paths, as the API and the options name them."""
    if isinstance(value, Mapping) and path != "schema" and value:
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    else:
        yield path, "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _segment(one: Facts) -> tuple[str, ...]:
    rates = one["rates"] or {"messages_per_s": [], "bytes_per_s": []}
    hot, split = one["hot_key"], one.get("next_split")
    note = f"not split: one key (hash {hot['hash']}) has {hot['share']:.0%} of its messages" if hot else ""
    return (
        str(one["id"]),
        one["state"],
        f"{share(one['low'])} - {share(one['high'])}",
        f"{one['end_offset'] - one['start_offset']:,}",
        f"{one['start_offset']:,} to {one['end_offset']:,}",
        f"{one['end_offset'] - max(one['flushed_offset'], one['start_offset']):,}",
        f"{rates['messages_per_s'][0]:,.1f}" if rates["messages_per_s"] else "",
        f"{rates['bytes_per_s'][0] / 1e6:.2f}" if rates["bytes_per_s"] else "",
        str(NextSplit.from_answer(split)) if split else "",
        one["owner"] or "",
        note,
    )


app = typer.Typer(
    no_args_is_help=True, help="Create, change, list, show, flush and delete topics; change their segments."
)

FILES = "Examples: seaweedq topic files flights · seaweedq topic files flights --segment 3 -o json | jq .bytes"
_FILES = columns("segment, name, offsets, rows, bytes", numbers="segment, offsets, rows, bytes")
MEASURED = 100  # topics of a table; each takes three requests


app.command(epilog=configure.CREATE)(configure.create)
app.command("set", epilog=configure.SET)(configure.change)
app.command(epilog=configure.EDIT)(configure.edit)


@app.command("list", epilog="Examples: seaweedq topic list · seaweedq topic list -o json | jq .name")
def list_topics(output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """List all topics, each with its number of messages, size, rate over the last 10 s, number of segments, and
    largest subscription lag. The default table shows only the first 100 topics; `-o wide` and `-o json` show all
    topics."""
    with connect(url) as client:
        names, unreadable = [topic["name"] for topic in client.topics()], client.unreadable_topics()
        if unreadable:
            typer.echo(f"left out because they need a newer broker: {', '.join(unreadable)}", err=True)
        found = []
        for name in names if output != TABLE else names[:MEASURED]:
            with suppress(TopicNotFound):  # it was deleted meanwhile
                found.append(measure(client, name))
    if output == JSON:
        for one in found:
            say_json(one.summary())
        return
    say_table(output, HEAD, (one.row() for one in found), "no topics yet; to create one: seaweedq topic create NAME")
    if len(found) < len(names):
        typer.echo(f"these are the first {len(found):,} of {counted(len(names), 'topic')}; -o wide shows all", err=True)


@app.command(epilog="Examples: seaweedq topic show flights · seaweedq topic show flights --config")
def show(
    topic: Topic,
    config: Annotated[bool, typer.Option("--config", help="Show only the topic's configuration.")] = False,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show a topic's rates, segments and subscriptions, and example commands for curl, DuckDB and Spark. With `-o
    wide`, the command also shows sealed segments and offsets."""
    with connect(url) as client:
        if config and output != JSON:
            print_config(client.topic(topic))
            return
        found = measure(client, topic)
    if output == JSON:
        say_json({**found.topic, "segments": found.segments, "subscriptions": found.subscriptions})
        return
    print_page(found, output)
    value = '{"n": 1}' if found.topic["format"] == "json" else ""
    say("\n" + "\n".join(lines(first_url(url), topic, found.topic["path"], value, header_of(os.environ, url))))
    for reader, text in directory.calls(found.topic):
        say(f"\n# {reader}\n{text}")


@app.command(epilog="Example: seaweedq topic flush flights")
def flush(topic: Topic, output: Output = TABLE, url: Url = DEFAULT_URL) -> None:
    """Write all messages of a topic to Parquet files now, instead of at the next automatic flush."""
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
    segment: Annotated[int | None, typer.Option(min=0, help="List only this segment's files.")] = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """List a topic's files with row counts and sizes."""
    with connect(url) as client:
        found, facts = client.files(topic, segment), client.topic(topic)
    if output == JSON:
        for one in found:
            say_json(one)
        return
    say_table(output, _FILES, map(_row, found), f"topic {topic} has no files yet")
    rows, size = sum(one.next_offset - one.first_offset for one in found), sum(one.bytes for one in found)
    say(f"{counted(len(found), 'file')}, {counted(rows, 'row')}, {counted(size, 'byte')} in {facts['path']}")


def _row(file: "TopicFile") -> tuple[str, ...]:
    rows = file.next_offset - file.first_offset
    offsets = f"{file.first_offset:,} - {file.next_offset - 1:,}"
    return str(file.segment), file.name, offsets, f"{rows:,}", f"{file.bytes:,}"


app.command(epilog=configure.SPLIT)(configure.split)
app.command(epilog=configure.MERGE)(configure.merge)
app.command(epilog=configure.ROLL)(configure.roll)
app.command(epilog=configure.MOVE)(configure.move)
app.command(epilog=watch.EXAMPLES)(watch.watch)
app.command(epilog=tail.EXAMPLES)(tail.tail)
app.command(epilog=FILES)(files)
app.command(epilog=history.EXAMPLES)(history.history)
