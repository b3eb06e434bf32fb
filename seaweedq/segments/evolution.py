"""The next version of a typed topic's schema: which changes a topic takes, decided by the two schemas alone.

A change is taken if every reader of Parquet that is given the new columns shows the rows of all earlier versions
without a loss: a new optional field, another order, a wider type, a required field that becomes optional. Fields are
matched by id, those that state none by name. All others are refused, with all reasons at once. A field keeps its name,
and none goes, since readers without ids find columns by name; so the newest version has every field that there ever
was, and one that follows it follows all. https://iceberg.apache.org/spec/#schema-evolution has the widths of types.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from seaweedq.errors import SchemaIncompatible
from seaweedq.segments.layout import FIELD_ID, is_wider, schema_id_of
from seaweedq.segments.schema import parse_schema, type_text

RULES = {
    "added": "a new field must be optional, because earlier rows have no value",
    "dropped": "no field can be dropped",
    "renamed": "a field cannot be renamed",
    "name": "another field has this name, ignoring case",
    "type": "only int to long, float to double, and a decimal to more precision with the same scale are allowed",
    "required": "an optional field cannot become required, because earlier rows may have no value",
}
_LIMIT = 10  # of differences in an error's text


def next_version(stated: Any, before: pa.Schema) -> tuple[dict[str, Any], pa.Schema]:
    """Returns the schema that follows a topic's newest one, whose columns are `before`, as JSON and as columns: the
    stated one, with ids for fields that have none, and the next schema id. Raises InvalidRequest for one that is no
    schema, and SchemaIncompatible, with all differences that no topic takes."""
    schema = with_ids(stated, before)
    if isinstance(schema, dict):
        schema = {**schema, "schema-id": schema_id_of(before) + 1}
    after = parse_schema(schema)
    found = differences(before, after)
    if found:
        shown = "; ".join(f"{one['field']!r}: {one['rule']}" for one in found[:_LIMIT])
        more = f"; and {len(found) - _LIMIT} more" if len(found) > _LIMIT else ""
        raise SchemaIncompatible(f"this schema is not allowed for the topic: {shown}{more}", differences=found)
    return schema, after


def is_same(one: pa.Schema, other: pa.Schema) -> bool:
    """Tells whether two schemas have the same columns, whatever their own ids are."""
    return bool(one.remove_metadata().equals(other.remove_metadata(), check_metadata=True))


def differences(before: pa.Schema, after: pa.Schema) -> list[dict[str, Any]]:
    """Returns the differences between two schemas that no topic takes, in the order of the earlier one's fields; new
    fields come last. Each has the field, its id, what it was and would be (`from`, `to`), and the rule."""
    found: list[dict[str, Any]] = []

    def add(rule: str, field: pa.Field, old: str | None, new: str | None) -> None:
        found.append({"field": field.name, "id": _id(field), "from": old, "to": new, "rule": RULES[rule]})

    now, was = {_id(field): field for field in after}, {_id(field): field for field in before}
    names = {field.name.casefold(): _id(field) for field in before}
    for number, old in was.items():
        new = now.get(number)
        if new is None:
            add("dropped", old, type_text(old), None)
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
        if number not in was and not new.nullable:
            add("added", new, None, f"required {type_text(new)}")
    return found


def with_ids(stated: Any, newest: Sequence[pa.Field] = ()) -> Any:
    """Returns a stated schema with an id for each field: one without an id has that of its name in the `newest` schema,
    or the next one. One that is no schema comes back as it is, for the parser to refuse."""
    if not isinstance(stated, dict) or not isinstance(stated.get("fields"), list):
        return stated
    ids = {field.name: _id(field) for field in newest}
    given = [field.get("id") for field in stated["fields"] if isinstance(field, dict)]
    last = max([0, *ids.values(), *(number for number in given if isinstance(number, int))])
    fields = []
    for field in stated["fields"]:
        if isinstance(field, dict) and field.get("id") is None:
            number = ids.get(str(field.get("name")))
            if number is None:
                number = last = last + 1
            field = {"id": number, **{key: value for key, value in field.items() if key != "id"}}
        fields.append(field)
    return {**stated, "fields": fields}


def _holds(new: pa.Field, old: pa.Field) -> bool:
    return type_text(new) == type_text(old) or is_wider(new.type, old.type)


def _id(field: pa.Field) -> int:
    return int(field.metadata[FIELD_ID])
