"""The rows of dead letters: those of the messages that died, with headers that say why, and where they were. Pure.

A letter has the message's key, value and time, its headers, and seven headers more. It has no expiry: it stays for
those who look into it. The bound `max_message_bytes` is for clients: these headers do not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from seaweedq.broker.subscriptions.delivery import DeadLetterReason
from seaweedq.segments.layout import Layout
from seaweedq.segments.rows import Reference, assemble, headers_column, references_column

PREFIX = "dead-letter-"
NAMES = tuple(f"{PREFIX}{name}" for name in ("reason", "detail", "topic", "subscription", "id", "attempts", "time"))


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that died: why, after how many deliveries, and its id."""

    death: DeadLetterReason
    attempts: int
    id: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The topic and the subscription that the messages were given up of, and the time (microseconds)."""

    topic: str
    subscription: str
    now_us: int

    def headers(self, letter: Letter, before: Mapping[str, str]) -> dict[str, str]:
        """Returns the headers of a letter: those of the message, but for the ones that an earlier death gave it."""
        time = datetime.fromtimestamp(self.now_us / 1e6, UTC).isoformat().replace("+00:00", "Z")
        death = letter.death
        values = (death.reason, death.detail, self.topic, self.subscription, letter.id, str(letter.attempts), time)
        kept = {name: value for name, value in before.items() if name not in NAMES}
        return kept | dict(zip(NAMES, values, strict=True))


def letter_rows(
    rows: pa.RecordBatch,
    letters: Sequence[Letter],
    origin: Origin,
    layout: Layout,
    references: Sequence[Reference | None],
) -> pa.RecordBatch:
    """Returns the rows of letters: those of their messages, in their order, with the payloads `references`."""
    names = rows.schema.names
    before = rows.column("_headers").to_pylist() if "_headers" in names else [None] * rows.num_rows
    headers = [origin.headers(letter, dict(one or ())) for letter, one in zip(letters, before, strict=True)]
    return assemble(
        layout,
        rows.column("_timestamp"),
        rows.column("_key") if "_key" in names else None,
        headers_column([*headers]),
        None,
        [rows.column(name) for name in layout.values.names],
        references_column(references) if any(references) else None,
    )


def references_of(rows: pa.RecordBatch) -> list[Reference | None]:
    """Returns the payload of each row."""
    if "_reference" not in rows.schema.names:
        return [None] * rows.num_rows
    return [Reference(**one) if one else None for one in rows.column("_reference").to_pylist()]
