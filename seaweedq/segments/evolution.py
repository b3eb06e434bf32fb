"""The next version of a typed topic's schema: which changes a topic takes, decided by the two schemas alone.

A change is taken if every reader of Parquet that is given the new columns shows the rows of all earlier versions
without a loss: a new optional field, another order, a wider type, a required field that becomes optional, or a field
that goes, unless keys come from it. Fields are matched by id, those that state none by name. All others are refused,
with all reasons at once. A field keeps its name, and neither its id nor its name, in whatever case, is ever given to
another field, nor to itself once it was dropped: readers without ids find columns by name, and would show values of the
one as those of the other. https://iceberg.apache.org/spec/#schema-evolution has the widths of types.

That is `backward`: readers of a new version read all earlier rows. With `forward`, readers of each earlier version also
read new rows. Files need the first in any case, so `full` is the same as `forward`, and `none` as `backward`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from seaweedq.errors import SchemaIncompatible
from seaweedq.segments.layout import FIELD_ID, is_wider, schema_id_of
from seaweedq.segments.schema import parse_schema, type_text

RULES = {
    "added": "a new field must be optional, because earlier rows have no value",
    "dropped": "the schema lacks this field; to drop the field, also send if_schema_id (--if-version)",
    "key": "the topic's key field cannot be dropped",
    "retired": "an earlier version had this field, and a dropped field cannot return; use another name and id",
    "renamed": "a field cannot be renamed",
    "name": "another field has or had this name, ignoring case",
    "type": "only int to long, float to double, and a decimal to more precision with the same scale are allowed",
    "required": "an optional field cannot become required, because earlier rows may have no value",
    "reader type": "with this compatibility, no type can change, because earlier readers expect the old type",
    "reader required": (
        "with this compatibility, no required field can become optional or be dropped, because earlier readers expect "
        "a value"
    ),
}
_LIMIT = 10  # of differences in an error's text


class Compatibility(StrEnum):
    """Which readers read which rows of a topic whose schema changes."""

    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    NONE = "none"

    @property
    def is_forward(self) -> bool:
        """Tells whether readers of each earlier version read the rows of a new one."""
        return self in (Compatibility.FORWARD, Compatibility.FULL)


@dataclass(frozen=True)
class History:
    """The fields of all versions of a topic's schema: by their ids the types that they had, the ids of those that some
    version required, and ids by name, in lower case."""

    types: dict[int, set[str]] = field(default_factory=dict)
    required: set[int] = field(default_factory=set)
    names: dict[str, int] = field(default_factory=dict)

    def add(self, schema: Mapping[str, Any]) -> None:
        """Adds a version, as JSON with an id for each field."""
        for one in schema["fields"]:
            self.types.setdefault(one["id"], set()).add(_plain(one["type"]))
            self.names[one["name"].casefold()] = one["id"]
            if one.get("required"):
                self.required.add(one["id"])


def next_version(
    stated: Any,
    before: pa.Schema,
    history: History,
    compatibility: Compatibility = Compatibility.BACKWARD,
    key_field: str | None = None,
    drops: bool = True,
) -> tuple[dict[str, Any], pa.Schema]:
    """Returns the schema that follows a topic's newest one, whose columns are `before`, as JSON and as columns: the
    stated one, with ids for fields that have none, and the next schema id. Without `drops`, no field goes. Raises
    InvalidRequest for one that is no schema, and SchemaIncompatible, with all differences that the topic refuses.
    """
    schema = with_ids(stated, before, max(history.types, default=0))
    if isinstance(schema, dict):
        schema = {**schema, "schema-id": schema_id_of(before) + 1}
    after = parse_schema(schema)
    found = differences(before, after, history, key_field, drops)
    if compatibility.is_forward:
        found += unreadable(before, after, history)
    if found:
        shown = "; ".join(f"{one['field']!r}: {one['rule']}" for one in found[:_LIMIT])
        more = f"; and {len(found) - _LIMIT} more" if len(found) > _LIMIT else ""
        raise SchemaIncompatible(f"this schema is not allowed for the topic: {shown}{more}", differences=found)
    return schema, after


def is_same(one: pa.Schema, other: pa.Schema) -> bool:
    """Tells whether two schemas have the same columns, whatever their own ids are."""
    return bool(one.remove_metadata().equals(other.remove_metadata(), check_metadata=True))


def differences(
    before: pa.Schema, after: pa.Schema, history: History, key_field: str | None = None, drops: bool = True
) -> list[dict[str, Any]]:
    """Returns the differences between two schemas that no topic takes, in the order of the earlier one's fields; new
    fields come last. Each has the field, its id, what it was and would be (`from`, `to`), and the rule."""
    found: list[dict[str, Any]] = []

    def add(rule: str, one: pa.Field, old: str | None, new: str | None) -> None:
        found.append(_difference(rule, one, old, new))

    now, was = {_id(field): field for field in after}, {_id(field): field for field in before}
    names = history.names | {field.name.casefold(): _id(field) for field in before}
    for number, old in was.items():
        new = now.get(number)
        if new is None:
            if old.name == key_field or not drops:
                add("key" if old.name == key_field else "dropped", old, type_text(old), None)
            continue
        if new.name != old.name:
            add("renamed", old, old.name, new.name)
        if not _holds(new, old):
            add("type", old, type_text(old), type_text(new))
        if old.nullable and not new.nullable:
            add("required", old, "optional", "required")
    for number, new in now.items():
        if names.get(new.name.casefold(), number) != number:
            add("name", new, None, new.name)
        elif number not in was and number in history.types:
            add("retired", new, None, new.name)
        if number not in was and not new.nullable:
            add("added", new, None, f"required {type_text(new)}")
    return found


def unreadable(before: pa.Schema, after: pa.Schema, history: History) -> list[dict[str, Any]]:
    """Returns the differences for which readers of some earlier version could not read rows of a schema."""
    there = {_id(one) for one in after}
    gone = (one for one in before if _id(one) not in there and _id(one) in history.required)
    found = [_difference("reader required", one, "required", None) for one in gone]
    for one in after:
        kind, number = type_text(one), _id(one)
        if others := sorted(history.types.get(number, set()) - {_plain(kind)}):
            found.append(_difference("reader type", one, ", ".join(others), kind))
        if one.nullable and number in history.required:
            found.append(_difference("reader required", one, "required", "optional"))
    return found


def warnings(before: pa.Schema, after: pa.Schema) -> list[str]:
    """Returns what people should know who make this change: which publishers are refused, and which readers of files do
    not show the newest version alone."""
    there, found = {_id(one) for one in after}, []
    for one in before:
        if _id(one) not in there:
            found.append(f"{one.name!r} is dropped: brokers refuse messages that have a value for this field")
            found.append(
                f"{one.name!r} is dropped: the files keep its earlier values, and DuckDB shows them with "
                'union_by_name; Polars needs extra_columns="ignore"'
            )
    return found


def with_ids(stated: Any, newest: Sequence[pa.Field] = (), highest: int = 0) -> Any:
    """Returns a stated schema with an id for each field: one without an id has that of its name in the `newest` schema,
    or the next one above all of these and above `highest`. One that is no schema comes back as it is, for the parser to
    refuse."""
    if not isinstance(stated, dict) or not isinstance(stated.get("fields"), list):
        return stated
    ids = {field.name: _id(field) for field in newest}
    given = [field.get("id") for field in stated["fields"] if isinstance(field, dict)]
    last = max([highest, *ids.values(), *(number for number in given if isinstance(number, int))])
    fields = []
    for one in stated["fields"]:
        if isinstance(one, dict) and one.get("id") is None:
            number = ids.get(str(one.get("name")))
            if number is None:
                number = last = last + 1
            one = {"id": number, **{key: value for key, value in one.items() if key != "id"}}
        fields.append(one)
    return {**stated, "fields": fields}


def _holds(new: pa.Field, old: pa.Field) -> bool:
    return type_text(new) == type_text(old) or is_wider(new.type, old.type)


def _difference(rule: str, one: pa.Field, old: str | None, new: str | None) -> dict[str, Any]:
    return {"field": one.name, "id": _id(one), "from": old, "to": new, "rule": RULES[rule]}


def _plain(kind: str) -> str:
    return kind.replace(" ", "")


def _id(field: pa.Field) -> int:
    return int(field.metadata[FIELD_ID])
