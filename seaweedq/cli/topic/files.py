"""`seaweedq topic files`: lists the Parquet files of a topic."""

from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Topic, Url, connect, counted, say
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_json, say_table

if TYPE_CHECKING:
    from seaweedq.client.core.calls import TopicFile

EXAMPLES = "Examples: seaweedq topic files flights · seaweedq topic files flights --segment 3 -o json | jq .bytes"
_HEAD = columns("segment, name, offsets, rows, bytes", numbers="segment, offsets, rows, bytes")


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
    say_table(output, _HEAD, map(_row, found), f"topic {topic} has no file yet")
    rows, size = sum(one.next_offset - one.first_offset for one in found), sum(one.bytes for one in found)
    say(f"{counted(len(found), 'file')}, {counted(rows, 'row')}, {counted(size, 'byte')} in {facts['path']}")


def _row(file: "TopicFile") -> tuple[str, ...]:
    rows = file.next_offset - file.first_offset
    offsets = f"{file.first_offset:,} - {file.next_offset - 1:,}"
    return str(file.segment), file.name, offsets, f"{rows:,}", f"{file.bytes:,}"
