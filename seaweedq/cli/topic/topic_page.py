"""The page of `seaweedq topic show`: a topic's figures, its segments, and its subscriptions with their lag; or its
configuration."""

from collections.abc import Iterator, Mapping
from typing import Any

from seaweedq.cli.shared.common import counted, say
from seaweedq.cli.shared.output import WIDE, columns, say_page, say_table
from seaweedq.cli.subscription.subscription_tables import print_list
from seaweedq.cli.topic.lineage import NextSplit, share
from seaweedq.cli.topic.measured import Facts, Measured, moment, size

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
