"""The next version of a typed topic's schema: which changes a topic takes, decided by the two schemas alone.

A change is taken if every reader of Parquet that is given the new columns shows the rows of all earlier versions
without a loss: a new optional field, another order, a wider type, a required field that becomes optional, another name,
or a field that goes, unless keys come from it. Fields are matched by id, those that state none by name. All others are
refused, with all reasons at once. Neither the id nor a name of a field, in whatever case, is ever given to another
field, nor to itself once it was dropped: readers without ids find columns by name, and would show values of the one as
those of the other. So a renamed field is the first of its names that a row has; a version states the earlier ones as
the field's `aliases`, as Avro calls them. https://iceberg.apache.org/spec/#schema-evolution has the widths of types.

That is `backward`: readers of a new version read all earlier rows. With `forward`, readers of each earlier version also
read new rows. Files need the first in any case, so `full` is the same as `forward`, and `none` as `backward`.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from seaweedq.errors import SchemaIncompatible
from seaweedq.segments.layout import FIELD_ID, is_wider, schema_id_of
from seaweedq.segments.schema import parse_schema, plain_type, type_text

RULES = {
    "added": "a new field must be optional, because earlier rows have no value",
    "dropped": "the schema lacks this field; to drop the field, also send if_schema_id (--if-version)",
    "key": "the topic's key field cannot be dropped",
    "retired": "an earlier version had this field, and a dropped field cannot return; use another name and id",
    "renamed": "the schema has another name for this field; to rename the field, also send if_schema_id (--if-version)",
    "name": "another field has or had this name, ignoring case",
    "type": "only int to long, float to double, and a decimal to more precision with the same scale are allowed",
    "required": "an optional field cannot become required, because earlier rows may have no value",
    "reader name": "with this compatibility, no field can be renamed, because earlier readers expect the old name",
    "reader type": "with this compatibility, no type can change, because earlier readers expect the old type",
    "reader required": (
        "with this compatibility, no required field can become optional or be dropped, because earlier readers expect "
        "a value"
    ),
}
ALIASES = "aliases"
MAX_ALIAS_BYTES = 32 * 1024  # of all earlier names in a version: a transaction has up to three versions
MAX_FIELDS_EVER = 10_000  # of all versions together: a broker remembers all of them
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
    """The fields of all versions of a topic's schema: by their ids the types and the names that they had, the ids of
    those that some version required, and ids by name, in lower case."""

    types: dict[int, set[str]] = field(default_factory=dict)
    spellings: dict[int, set[str]] = field(default_factory=dict)
    required: set[int] = field(default_factory=set)
    names: dict[str, int] = field(default_factory=dict)

    def add(self, schema: Mapping[str, Any]) -> None:
        """Adds a version, as JSON with an id for each field."""
        for one in schema["fields"]:
            self.types.setdefault(one["id"], set()).add(plain_type(one["type"]))
            for name in (one["name"], *one.get(ALIASES, ())):  # of versions whose records may be lost
                self.spellings.setdefault(one["id"], set()).add(name)
                self.names[name.casefold()] = one["id"]
            if one.get("required"):
                self.required.add(one["id"])


def next_version(
    stated: Any,
    before: pa.Schema,
    history: History,
    compatibility: Compatibility = Compatibility.BACKWARD,
    key_field: str | None = None,
    knows: bool = True,
) -> tuple[dict[str, Any], pa.Schema]:
    """Returns the schema that follows a topic's newest one, whose columns are `before`, as JSON and as columns: the
    stated one, with ids for fields that have none, with the earlier names of renamed ones, and with the next schema id.
    Unless who states it `knows` the newest one, no field and no name goes. Raises InvalidRequest for one that is no
    schema, and SchemaIncompatible, with all differences that the topic refuses.
    """
    schema = with_ids(stated, before, max(history.types, default=0))
    if isinstance(schema, dict):
        schema = {**schema, "schema-id": schema_id_of(before) + 1}
    after = parse_schema(schema)
    found = differences(before, after, history, key_field, knows)
    if compatibility.is_forward:
        found += unreadable(before, after, history)
    if found:
        shown = "; ".join(f"{one['field']!r}: {one['rule']}" for one in found[:_LIMIT])
        more = f"; and {len(found) - _LIMIT} more" if len(found) > _LIMIT else ""
        raise SchemaIncompatible(f"this schema is not allowed for the topic: {shown}{more}", differences=found)
    new = {one["id"] for one in schema["fields"]} - history.types.keys()
    if new and (ever := len(history.types) + len(new)) > MAX_FIELDS_EVER:
        detail = f"the versions of the schema would have {ever} fields together; the limit is {MAX_FIELDS_EVER}"
        raise SchemaIncompatible(detail, differences=[], value=ever, bound=MAX_FIELDS_EVER)
    fields = [_with_aliases(one, history.spellings.get(one["id"], set())) for one in schema["fields"]]
    if (size := sum(len(name.encode()) for one in fields for name in one.get(ALIASES, ()))) > MAX_ALIAS_BYTES:
        detail = f"the earlier names of renamed fields have {size} bytes together; the limit is {MAX_ALIAS_BYTES}"
        raise SchemaIncompatible(detail, differences=[], value=size, bound=MAX_ALIAS_BYTES)
    return {**schema, "fields": fields}, after


def is_same(one: pa.Schema, other: pa.Schema) -> bool:
    """Tells whether two schemas have the same columns, whatever their own ids are."""
    return bool(one.remove_metadata().equals(other.remove_metadata(), check_metadata=True))


def shape(schema: Mapping[str, Any]) -> int:
    """Returns a hash that is equal for two schemas, as JSON, that differ in nothing but ids."""
    return hash(tuple((one["name"], plain_type(one["type"]), bool(one.get("required"))) for one in schema["fields"]))


def differences(
    before: pa.Schema, after: pa.Schema, history: History, key_field: str | None = None, knows: bool = True
) -> list[dict[str, Any]]:
    """Returns the differences between two schemas that no topic takes, in the order of the earlier one's fields; new
    fields come last. Each has the field, its id, what it was and would be (`from`, `to`), and the rule."""
    found: list[dict[str, Any]] = []

    def add(rule: str, one: pa.Field, old: str | None, new: str | None) -> None:
        found.append(_difference(rule, one, old, new))

    now, was = {_id(field): field for field in after}, {_id(field): field for field in before}
    names = history.names | {field.name.casefold(): number for number, field in was.items()}
    for number, old in was.items():
        new = now.get(number)
        if new is not None and new.equals(old, check_metadata=True):  # as nearly all fields of a wide schema are
            continue
        if new is None:
            if old.name == key_field or not knows:
                add("key" if old.name == key_field else "dropped", old, type_text(old), None)
            continue
        if new.name != old.name and not knows:
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
        if earlier := sorted(history.spellings.get(number, set()) - {one.name}):
            found.append(_difference("reader name", one, ", ".join(earlier), one.name))
        if others := sorted(history.types.get(number, set()) - {plain_type(kind)}):
            found.append(_difference("reader type", one, ", ".join(others), kind))
        if one.nullable and number in history.required:
            found.append(_difference("reader required", one, "required", "optional"))
    return found


def warnings(before: pa.Schema, after: pa.Schema) -> list[str]:
    """Returns what people should know who make this change: which publishers are refused, and which readers of files do
    not show the newest version alone."""
    there, found = {_id(one): one.name for one in after}, []
    for one in before:
        new = there.get(_id(one))
        if new is not None and new != one.name:
            found.append(
                f"{one.name!r} is renamed to {new!r}: brokers refuse messages that have the field {one.name!r}, unless "
                "the request's Schema-Id is that of an earlier version"
            )
            found.append(
                f"{one.name!r} is renamed to {new!r}: earlier files keep the old name, so Spark, pyarrow, pandas, "
                f'DuckDB and Polars show null in {new!r} for their rows; read coalesce("{new}", "{one.name}")'
            )
        elif new is None:
            found.append(f"{one.name!r} is dropped: brokers refuse messages that have a value for this field")
            found.append(
                f"{one.name!r} is dropped: the files keep its earlier values, and DuckDB shows them with "
                'union_by_name; Polars needs extra_columns="ignore"'
            )
    return found


def with_ids(stated: Any, newest: Sequence[pa.Field] = (), highest: int = 0) -> Any:
    """Returns a stated schema with an id for each field: one without an id has that of its name in the `newest` schema,
    or the next one above all of these and above `highest`. Aliases are left out, which versions alone have. One that is
    no schema comes back as it is, for the parser to refuse."""
    if not isinstance(stated, dict) or not isinstance(stated.get("fields"), list):
        return stated
    ids = {field.name: _id(field) for field in newest}
    given = [one["id"] for one in stated["fields"] if isinstance(one, dict) and isinstance(one.get("id"), int)]
    taken, last = frozenset(given), max([highest, *ids.values(), *given])
    fields = []
    for one in stated["fields"]:
        if isinstance(one, dict):
            number = one.get("id")
            if number is None:
                number = ids.get(str(one.get("name")))
                if number is None or number in taken:  # that field is stated with another name
                    number = last = last + 1
            one = {"id": number, **{key: value for key, value in one.items() if key not in ("id", ALIASES)}}
        fields.append(one)
    return {**stated, "fields": fields}


def aliases_of(schema: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Returns the earlier names of a version's renamed fields, by the names that they have."""
    return {one["name"]: one[ALIASES] for one in schema["fields"] if ALIASES in one}


def hint_of(named: str, schema: Mapping[str, Any]) -> str | None:
    """Returns what whoever sends a field under an earlier name needs to know; None for any other name."""
    for name, aliases in aliases_of(schema).items():
        if named in aliases:
            return f"the field {named!r} was renamed to {name!r}; send {name!r}, or an earlier version's Schema-Id"
    return None


def of_marker(schema: Mapping[str, Any]) -> pa.Schema:
    """Returns the columns of a version's marker: a renamed field is optional there, because readers without ids show
    null for rows that have it under an earlier name."""
    renamed, columns = aliases_of(schema), parse_schema(schema)
    return pa.schema([one.with_nullable(one.nullable or one.name in renamed) for one in columns], columns.metadata)


def distinct(name: str, aliases: Sequence[str]) -> list[str]:
    """Returns those names of a field that engines of SQL tell apart, which ignore case, without its own."""
    found = {one.casefold(): one for one in aliases}
    return [one for key, one in found.items() if key != name.casefold()]


def _with_aliases(one: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    earlier = sorted(names - {one["name"]})
    return {**one, ALIASES: earlier} if earlier else one


def _holds(new: pa.Field, old: pa.Field) -> bool:
    return type_text(new) == type_text(old) or is_wider(new.type, old.type)


def _difference(rule: str, one: pa.Field, old: str | None, new: str | None) -> dict[str, Any]:
    return {"field": one.name, "id": _id(one), "from": old, "to": new, "rule": RULES[rule]}


def _id(field: pa.Field) -> int:
    return int(field.metadata[FIELD_ID])
