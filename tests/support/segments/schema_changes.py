"""Any sequence of changes of a schema, with a row of each version, and a model that knows rows by the ids of fields."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from seaweedq.errors import SchemaIncompatible
from seaweedq.segments.evolution import History, next_version
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import assemble
from seaweedq.segments.schema import parse_schema

A = {"id": 1, "name": "a", "required": True, "type": "int"}
B = {"id": 2, "name": "b", "required": False, "type": "string"}
# Longs are those that pandas holds as floats, which it needs for nulls.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**53), 2**53),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=3),
}
NAMES = "abcdefgh"
NEXT = {"int": "long", "float": "double"}


@dataclass
class Changed:
    """The versions of a schema, and for each row its version's layout, its columns, and its values by field id."""

    versions: list[dict[str, Any]]
    rows: list[tuple[Layout, pa.RecordBatch]] = field(default_factory=list)
    model: list[dict[int, Any]] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)  # the ids of dropped fields

    @property
    def newest(self) -> Layout:
        """The layout of the newest version."""
        return Layout.from_format(Format.TYPED, parse_schema(self.versions[-1]))

    @property
    def expected(self) -> list[dict[str, Any]]:
        """The rows, as the newest version shows them."""
        ids = {one["name"]: one["id"] for one in self.versions[-1]["fields"]}
        return [{name: row.get(number) for name, number in ids.items()} for row in self.model]

    @property
    def shown_by_name(self) -> list[dict[str, Any]]:
        """The rows, as readers show them that know no ids: null for what a row has under an earlier name."""
        found = [dict(row) for row in self.expected]
        for row, (layout, _) in zip(found, self.rows, strict=True):
            row |= dict.fromkeys(row.keys() - {*layout.values.names})
        return found


def changed(draw: Callable[..., Any], most: int = 6) -> Changed:
    """Draws a sequence. A change may be one that no topic takes: then nothing has changed, and the sequence goes on."""
    found = Changed([{"type": "struct", "schema-id": 0, "fields": [A, B]}])
    known = History()
    known.add(found.versions[0])
    _add_row(draw, found)
    for _ in range(draw(st.integers(0, most - 1))):
        newest = found.versions[-1]
        dropped = [one for one in newest["fields"] if one["id"] != 1 and draw(st.integers(0, 3)) == 0]
        fields = [dict(one) for one in newest["fields"] if one not in dropped]
        key_field = next(one["name"] for one in fields if one["id"] == 1)
        for one in fields:
            if draw(st.booleans()):
                one["type"] = NEXT.get(one["type"], one["type"])
                one["required"] = one["required"] and draw(st.booleans())
            if draw(st.booleans()):
                del one["id"]
            elif draw(st.integers(0, 2)) == 0:
                others = [other["name"] for other in fields if other is not one]
                free = [name for name in NAMES if known.names.get(name, one["id"]) == one["id"] and name not in others]
                one["name"] = draw(st.sampled_from(free))
        name = draw(st.sampled_from(NAMES))
        is_new = name not in [one["name"] for one in (*fields, *dropped)]
        if is_new:
            fields.append({"name": name, "type": draw(st.sampled_from([*VALUES])), "required": False})
        stated = {"type": "struct", "fields": draw(st.permutations(fields))}
        if is_new and name in known.names:
            with pytest.raises(SchemaIncompatible):
                next_version(stated, found.newest.values, known, key_field=key_field)
            continue
        version, _ = next_version(stated, found.newest.values, known, key_field=key_field)
        known.add(version)
        found.versions.append(version)
        found.retired |= {one["id"] for one in dropped}
        assert not {one["id"] for one in version["fields"]} & found.retired, "no id comes back"
        _add_row(draw, found)
    return found


def _add_row(draw: Callable[..., Any], found: Changed) -> None:
    layout, arrays = found.newest, []
    fields = found.versions[-1]["fields"]
    for one, column in zip(fields, layout.values, strict=True):
        value = VALUES[one["type"]] if one.get("required") else st.none() | VALUES[one["type"]]
        arrays.append(pa.array([draw(value)], column.type))
    time = pa.array([0], pa.timestamp("us", "UTC"))
    found.rows.append((layout, assemble(layout, time, None, None, None, arrays)))
    found.model.append({one["id"]: array[0].as_py() for one, array in zip(fields, arrays, strict=True)})
