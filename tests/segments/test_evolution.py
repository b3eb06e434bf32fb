"""Which schema may follow which: every pair of types, every change of a field, and any sequence of changes that is
taken, against a model by ids that reads the rows of all versions.
"""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.errors import InvalidRequest, NotReady, SchemaIncompatible
from seaweedq.rows.arrow_bodies import decode_arrow
from seaweedq.rows.intake import Intake
from seaweedq.segments.evolution import RULES, is_same, next_version
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import assemble
from seaweedq.segments.schema import parse_schema
from tests.support.tiers import examples

TYPES = [
    *("boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "uuid"),
    *("binary", "fixed[4]", "fixed[5]", "decimal(5, 2)", "decimal(9, 2)", "decimal(9, 3)", "decimal(38, 2)"),
]
WIDER = {
    ("int", "long"),
    ("float", "double"),
    ("decimal(5, 2)", "decimal(9, 2)"),
    ("decimal(5, 2)", "decimal(38, 2)"),
    ("decimal(9, 2)", "decimal(38, 2)"),
}
A = {"id": 1, "name": "a", "required": True, "type": "int"}
B = {"id": 2, "name": "b", "required": False, "type": "string"}


def schema(*fields: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"type": "struct", "schema-id": number, "fields": list(fields)}


def refused(stated: Any, *before: dict[str, Any]) -> list[tuple[str, int | None, str]]:
    """The field, the id and the name of the rule of each difference; none if the schema is taken."""
    names = {text: name for name, text in RULES.items()}
    try:
        next_version(stated, parse_schema(schema(*before)))
    except SchemaIncompatible as error:
        return [(one["field"], one["id"], names[one["rule"]]) for one in error.fields["differences"]]
    return []


@pytest.mark.parametrize("old", TYPES)
@pytest.mark.parametrize("new", TYPES)
def test_a_type_becomes_only_one_that_holds_all_its_values(old: str, new: str) -> None:
    before, after = ({"id": 1, "name": "x", "required": False, "type": kind} for kind in (old, new))
    expected = [] if old == new or (old, new) in WIDER else [("x", 1, "type")]
    assert refused(schema(after), before) == expected


@pytest.mark.parametrize(("old", "new"), sorted(WIDER))
def test_arrow_of_a_publisher_that_knows_the_type_of_before_is_taken(old: str, new: str) -> None:
    before, after = (parse_schema(schema({"id": 1, "name": "x", "type": kind})) for kind in (old, new))
    value = Decimal("1.25") if old.startswith("decimal") else 1
    rows = pa.record_batch({"x": pa.array([value, None], before.field("x").type)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    intake = Intake(Layout.from_format(Format.TYPED, after), None, 10**6, 0, 10**6).at(0)
    assert decode_arrow(sink.getvalue().to_pybytes(), intake).column("x").to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([A, B], []),
        ([B, A], []),
        ([{**A, "required": False}, B], []),
        ([A, B, {"name": "c", "type": "double"}], []),
        ([A, B, {"id": 9, "name": "c", "type": "double"}], []),
        ([{"name": "b", "type": "string"}, {"name": "a", "required": True, "type": "long"}], []),
        ([A, {**B, "required": True}], [("b", 2, "required")]),
        ([A], [("b", 2, "dropped")]),
        ([A, {**B, "name": "c"}], [("b", 2, "renamed")]),
        ([A, {**B, "name": "B"}], [("b", 2, "renamed")]),
        ([A, {**B, "id": 3}], [("b", 2, "dropped"), ("b", 3, "name")]),
        ([A, B, {"name": "c", "type": "int", "required": True}], [("c", 3, "added")]),
        (
            [{"id": 2, "name": "a", "required": True, "type": "int"}],
            [("a", 1, "dropped"), ("b", 2, "renamed"), ("b", 2, "type"), ("b", 2, "required"), ("a", 2, "name")],
        ),
    ],
)
def test_a_change_is_taken_or_all_its_reasons_are_told(fields: list[dict[str, Any]], expected: list[Any]) -> None:
    assert refused(schema(*fields), A, B) == expected


def test_new_fields_get_the_next_ids_and_a_version_the_next_id() -> None:
    stated = {"type": "struct", "fields": [{"name": "b", "type": "string"}, {"id": 7, "name": "c", "type": "int"}]}
    stated["fields"] += [{"name": "d", "type": "int"}, {"name": "e", "type": "int"}, A]
    found, columns = next_version(stated, parse_schema(schema(A, B, number=4)))
    assert [field["id"] for field in found["fields"]] == [2, 7, 8, 9, 1]
    assert (found["schema-id"], columns.metadata) == (5, {b"schema-id": b"5"})
    assert is_same(columns, parse_schema({**found, "schema-id": 0}))
    assert not is_same(columns, parse_schema(schema(A, B)))


@pytest.mark.parametrize(
    "stated", [None, [], {}, {"fields": None}, {"fields": [1]}, {"fields": [{"name": "a"}]}, {"fields": [A, A]}]
)
def test_what_is_no_schema_is_an_invalid_request(stated: Any) -> None:
    with pytest.raises(InvalidRequest):
        next_version(stated, parse_schema(schema(A, B)))


VALUES = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=3),
}
NEXT = {"int": "long", "float": "double"}


@settings(max_examples=examples(60))
@given(st.data())
def test_any_sequence_of_changes_shows_each_row_as_it_was(data: st.DataObject) -> None:
    """The model knows the rows by the ids of their fields."""
    draw = data.draw
    newest = schema(A, B)
    parts: list[pa.RecordBatch] = []
    model: list[dict[int, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        fields = [dict(field) for field in newest["fields"]]
        for field in fields:
            if draw(st.booleans()):
                field["type"] = NEXT.get(field["type"], field["type"])
                field["required"] = field["required"] and draw(st.booleans())
            if draw(st.booleans()):
                del field["id"]
        name = draw(st.sampled_from("cdefg"))
        if name not in [field["name"] for field in fields]:
            fields.append({"name": name, "type": draw(st.sampled_from([*VALUES])), "required": False})
        newest, columns = next_version(
            {"type": "struct", "fields": draw(st.permutations(fields))}, parse_schema(newest)
        )
        layout = Layout.from_format(Format.TYPED, columns)
        arrays = []
        for field, column in zip(newest["fields"], columns, strict=True):
            value = VALUES[field["type"]] if field.get("required") else st.none() | VALUES[field["type"]]
            arrays.append(pa.array([draw(value)], column.type))
        rows = assemble(layout, pa.array([0], pa.timestamp("us", "UTC")), None, None, None, arrays)
        parts.append(rows)
        model.append({field["id"]: array[0].as_py() for field, array in zip(newest["fields"], arrays, strict=True)})
    ids = {field["name"]: field["id"] for field in newest["fields"]}
    expected = [{name: row.get(number) for name, number in ids.items()} for row in model]
    shown = [layout.raised(part).select(list(ids)).to_pylist()[0] for part in parts]
    assert shown == expected
    table = layout.gather([(at, layout.raised(part)) for at, part in enumerate(parts)])
    assert table.select(list(ids)).to_pylist() == expected


def test_rows_of_a_later_version_are_not_shown_by_an_earlier_one() -> None:
    before = Layout.from_format(Format.TYPED, parse_schema(schema(A, B)))
    now = pa.array([0], pa.timestamp("us", "UTC"))
    for more in ({"name": "c", "type": "int"}, {"id": 1, "name": "a", "type": "long"}):
        fields = [A, B, more] if "id" not in more else [more, B]
        _, columns = next_version(schema(*fields), before.values)
        later = Layout.from_format(Format.TYPED, columns)
        rows = assemble(later, now, None, None, None, [pa.nulls(1, field.type) for field in columns])
        with pytest.raises(NotReady):
            before.raised(rows)
