"""The page of `seaweedq topic show`: a topic's figures (messages, sizes, rates, the subscription that is furthest
behind), its segments, and its subscriptions with their lag; or its configuration. Pure, but for `measure`, which asks
the brokers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seaweedq.cli.shared.common import counted, say
from seaweedq.cli.shared.output import WIDE, columns, say_page, say_table
from seaweedq.cli.subscription import print_list
from seaweedq.cli.topic.lineage import NextSplit, share

if TYPE_CHECKING:
    from seaweedq.client import Client

Facts = Mapping[str, Any]
HEAD = columns(
    "name, messages, size, unflushed, messages/s, segments, behind, subscription, format, state, created",
    numbers="messages, size, unflushed, messages/s, segments, behind",
    wide="subscription, format, state, created",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of brokers about one topic."""

    topic: Facts
    segments: Sequence[Facts]
    subscriptions: Sequence[Facts]

    def rate(self, name: str = "messages_per_s") -> float:
        """Returns the messages or bytes a second of the last 10 s, over all segments."""
        return float(sum(one["rates"][name][0] for one in self.segments if one["rates"]))

    @property
    def behind(self) -> Facts | None:
        """Returns the subscription that has most messages to ack; None without any."""
        lag = ((one["lag_total"]["messages"], one["lag_total"]["seconds"], one) for one in self.subscriptions)
        return max(lag, key=lambda found: found[:2], default=(0, 0, None))[2]

    @property
    def open(self) -> list[Facts]:
        """Returns the segments that receive messages."""
        return [one for one in self.segments if one["state"] == "open"]

    def row(self) -> tuple[str, ...]:
        """Returns the topic's row in a list."""
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
        """Returns the topic in a list as JSON has it."""
        named = ("name", "format", "state", "created_at", "messages", "bytes", "tail_bytes", "segments")
        behind = self.behind
        furthest = {"subscription": behind["name"], **behind["lag_total"]} if behind else None
        rates = {name: self.rate(name) for name in ("messages_per_s", "bytes_per_s")}
        return {**{name: self.topic[name] for name in named}, **rates, "behind": furthest}


def size(count: float) -> str:
    """Returns a number of bytes for people: `936 bytes`, `1.2 MB`."""
    from rich.filesize import decimal

    return decimal(int(count))


def moment(text: str) -> str:
    """Returns a time in UTC without its fraction."""
    return f"{text[:19]}Z"


def measure(client: "Client", topic: str) -> Measured:
    """Asks for a topic's figures. Raises TopicNotFound."""
    return Measured(client.topic(topic), client.segments(topic), client.subscriptions(topic))


_SEGMENTS = columns(
    "segment, state, keys, messages, offsets, unflushed, messages/s, MB/s, nearest split, owner, note",
    numbers="segment, keys, messages, offsets, unflushed, messages/s, MB/s",
    wide="state, offsets, unflushed",
)
_FIGURES = frozenset(
    {
        "name",
        "state",
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


def print_page(found: Measured, output: str) -> None:
    """Prints a topic for a person."""
    facts, sealed = found.topic, len(found.segments) - len(found.open)
    key = f", key in {facts['key_field']}" if facts["key_field"] else ""
    unflushed = f", and {size(facts['tail_bytes'])} in no file yet" if facts["tail_bytes"] else ""
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
        say(f"-o wide shows {counted(sealed, 'sealed segment')}, and topic history what replaced them")
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
    """Yields each member of a configuration with its path, as options and the API name it."""
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
    note = f"not split: one key, of hash {hot['hash']}, has {hot['share']:.0%} of it" if hot else ""
    return (
        str(one["id"]),
        one["state"],
        f"{share(one['low'])} - {share(one['high'])}",
        f"{one['end_offset'] - one['start_offset']:,}",
        f"{one['start_offset']:,} to {one['end_offset']:,}",
        f"{one['end_offset'] - max(one['flushed_offset'], one['start_offset']):,}",
        f"{rates['messages_per_s'][0]:,.1f}" if rates["messages_per_s"] else "",
        f"{rates['bytes_per_s'][0] / 1e6:.2f}" if rates["bytes_per_s"] else "",
        str(NextSplit.of(split)) if split else "",
        one["owner"] or "",
        note,
    )
