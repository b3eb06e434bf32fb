"""Events of the audit, as lines of the log and as rows of a topic. Pure.

The topic is typed, so that any reader of the directory queries its columns. Their ids stay for ever: a column that is
added gets the next one, which topics that are there do not have.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from seaweedq.access.tokens import masked
from seaweedq.coordination.records import RetentionPolicy, TopicConfig
from seaweedq.segments.layout import Format, Layout, assemble, microseconds
from seaweedq.segments.schema import encode_fields, parse_schema

TOPIC = "seaweedq.audit"
KEPT_S = 90 * 86_400.0  # for a topic that is made here; its administrators may change that
SHOWN = 200  # characters of a text that a stranger may have chosen
LOOKED_AT = 2 * SHOWN  # for secrets, before it is cut
Kind = Literal["change", "denial", "denials"]
COLUMNS = (  # id, name, Iceberg's type
    (1, "kind", "string"),
    (2, "broker", "string"),
    (3, "principal", "string"),
    (4, "token", "string"),
    (5, "address", "string"),
    (6, "method", "string"),
    (7, "path", "string"),
    (8, "action", "string"),
    (9, "topic", "string"),
    (10, "subscription", "string"),
    (11, "made", "string"),
    (12, "status", "int"),
    (13, "reason", "string"),
    (14, "count", "long"),
)
_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change, a denial, or the number of denials of one reason that have no events of their own. `status` is that of
    the answer, 0 where there was none; `made` is the id of a token that a change has made."""

    time_us: int
    kind: Kind
    broker: str
    principal: str | None = None
    token: str | None = None
    address: str | None = None
    method: str | None = None
    path: str | None = None
    action: str | None = None
    topic: str | None = None
    subscription: str | None = None
    made: str | None = None
    status: int = 0
    reason: str | None = None
    count: int = 1


def shown(text: str) -> str:
    """Returns a text that a stranger may have chosen: cut, and without the secret of a token that may be in it."""
    return masked(text[:LOOKED_AT])[:SHOWN]


def line(event: Event) -> str:
    """Returns an event as JSON in one line; members that are null are left out."""
    members = msgspec.to_builtins(event)
    time = np.datetime_as_string(np.datetime64(members.pop("time_us"), "us")) + "Z"
    return msgspec.json.encode({"audit": members.pop("kind"), "time": time, **members, "status": event.status}).decode()


def rows(events: Sequence[Event], layout: Layout) -> pa.RecordBatch:
    """Returns events as rows of the topic."""
    times = microseconds(np.array([event.time_us for event in events], np.int64))
    values: list[Any] = [pa.array([getattr(event, f.name) for event in events], f.type) for f in layout.values]
    return assemble(layout, times, None, None, None, values)


def config() -> TopicConfig:
    """Returns the configuration of the topic."""
    fields = [{"id": number, "name": name, "required": False, "type": kind} for number, name, kind in COLUMNS]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    return TopicConfig(
        format="typed",
        schema=schema,
        columns=encode_fields(parse_schema(schema)),
        retention=RetentionPolicy(max_age_s=KEPT_S),
    )


def fits(layout: Layout) -> bool:
    """Returns whether a topic takes these rows: it is typed, and its columns are among ours, with their types."""
    ours = {name: _TYPES[kind] for _, name, kind in COLUMNS}
    return layout.format is Format.TYPED and all(f.nullable and ours.get(f.name) == f.type for f in layout.values)
