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
from seaweedq.segments.evolution import RULES, Compatibility, History, is_same, next_version
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
GONE = {"id": 11, "name": "gone", "required": True, "type": "int"}


def schema(*fields: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"type": "struct", "schema-id": number, "fields": list(fields)}


def history(*versions: dict[str, Any]) -> History:
    """The history of these versions."""
    found = History()
    for one in versions:
        found.add(one)
    return found


def refused(stated: Any, *before: dict[str, Any]) -> list[tuple[str, int | None, str]]:
    """The field, the id and the name of the rule of each difference; none if the schema is taken. The topic has had a
    field `gone`, and has the key field `a`."""
    names = {text: name for name, text in RULES.items()}
    known = history(schema(*before, GONE), schema(*before, number=1))
    try:
        next_version(stated, parse_schema(schema(*before, number=1)), known, key_field="a")
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
        ([A], []),
        ([B], [("a", 1, "key")]),
        ([A, B, {**GONE, "required": False}], [("gone", 11, "retired")]),
        ([A, B, {**GONE, "required": False, "name": "other"}], [("other", 11, "retired")]),
        ([A, B, {"name": "Gone", "type": "int"}], [("Gone", 12, "name")]),
        ([A, {**B, "name": "c"}], [("b", 2, "renamed")]),
        ([A, {**B, "name": "B"}], [("b", 2, "renamed")]),
        ([A, {**B, "id": 3}], [("b", 3, "name")]),
        ([A, B, {"name": "c", "type": "int", "required": True}], [("c", 12, "added")]),
        (
            [{"id": 2, "name": "a", "required": True, "type": "int"}],
            [("a", 1, "key"), ("b", 2, "renamed"), ("b", 2, "type"), ("b", 2, "required"), ("a", 2, "name")],
        ),
    ],
)
def test_a_change_is_taken_or_all_its_reasons_are_told(fields: list[dict[str, Any]], expected: list[Any]) -> None:
    assert refused(schema(*fields), A, B) == expected


def test_a_field_goes_only_if_that_is_wanted() -> None:
    with pytest.raises(SchemaIncompatible, match="'b': the schema lacks this field"):
        next_version(schema(A), parse_schema(schema(A, B)), History(), drops=False)


def test_new_fields_get_the_next_ids_and_a_version_the_next_id() -> None:
    stated = {"type": "struct", "fields": [{"name": "b", "type": "string"}, {"id": 7, "name": "c", "type": "int"}]}
    stated["fields"] += [{"name": "d", "type": "int"}, {"name": "e", "type": "int"}, A]
    found, columns = next_version(stated, parse_schema(schema(A, B, number=4)), History())
    assert [field["id"] for field in found["fields"]] == [2, 7, 8, 9, 1]
    assert (found["schema-id"], columns.metadata) == (5, {b"schema-id": b"5"})
    assert is_same(columns, parse_schema({**found, "schema-id": 0}))
    assert not is_same(columns, parse_schema(schema(A, B)))


@pytest.mark.parametrize(
    "stated", [None, [], {}, {"fields": None}, {"fields": [1]}, {"fields": [{"name": "a"}]}, {"fields": [A, A]}]
)
def test_what_is_no_schema_is_an_invalid_request(stated: Any) -> None:
    with pytest.raises(InvalidRequest):
        next_version(stated, parse_schema(schema(A, B)), History())


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ([A, B, {"name": "c", "type": "int"}], []),
        ([B, A], []),
        ([{**A, "type": "long"}, B], [("a", 1, "reader type")]),
        ([{**A, "required": False}, B], [("a", 1, "reader required")]),
        ([A, {**B, "required": True}], [("b", 2, "required")]),
        ([A], []),
        ([B], [("a", 1, "reader required")]),
    ],
)
def test_readers_of_an_earlier_version_read_what_is_compatible_forward(
    fields: list[dict[str, Any]], rules: list[Any]
) -> None:
    known = history(schema(A, B))
    names = {text: name for name, text in RULES.items()}
    for compatibility in Compatibility:
        try:
            next_version(schema(*fields), parse_schema(schema(A, B)), known, compatibility)
            found = []
        except SchemaIncompatible as error:
            found = [(one["field"], one["id"], names[one["rule"]]) for one in error.fields["differences"]]
        forward = [one for one in rules if compatibility.is_forward or not one[2].startswith("reader")]
        assert found == forward


def test_all_earlier_versions_count_for_their_readers() -> None:
    known = history(*(schema(one, B) for one in (A, {**A, "type": "long", "required": False})))
    newest = parse_schema(schema({**A, "type": "long", "required": False}, B, number=1))
    more = schema({**A, "type": "long", "required": False}, B, {"name": "c", "type": "int"})
    next_version(more, newest, known)
    with pytest.raises(SchemaIncompatible) as refused:
        next_version(more, newest, known, Compatibility.FULL)
    shown = [(one["field"], one["from"], one["to"]) for one in refused.value.fields["differences"]]
    assert shown == [("a", "int", "long"), ("a", "required", "optional")]


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
    """The model knows the rows by the ids of their fields. A change may be one that no topic takes: then nothing has
    changed, and the sequence goes on."""
    draw = data.draw
    newest = schema(A, B)
    known, retired = history(newest), dict[int, str]()
    parts: list[pa.RecordBatch] = []
    model: list[dict[int, Any]] = []
    for _ in range(draw(st.integers(1, 6))):
        columns = parse_schema(newest)
        if parts:
            fields = [dict(field) for field in newest["fields"]]
            for field in fields:
                if draw(st.booleans()):
                    field["type"] = NEXT.get(field["type"], field["type"])
                    field["required"] = field["required"] and draw(st.booleans())
                if draw(st.booleans()):
                    del field["id"]
            dropped = [one for one in newest["fields"] if one["name"] != "a" and draw(st.integers(0, 3)) == 0]
            gone = {one["name"] for one in dropped}
            fields = [one for one in fields if one["name"] not in gone]
            name = draw(st.sampled_from("bcdefg"))
            added = {"name": name, "type": draw(st.sampled_from([*VALUES])), "required": False}
            if name not in [field["name"] for field in fields]:
                fields.append(added)
            stated = {"type": "struct", "fields": draw(st.permutations(fields))}
            had = {one.casefold() for one in retired.values()} | gone
            if added in fields and name in had:
                with pytest.raises(SchemaIncompatible):
                    next_version(stated, columns, known, key_field="a")
                continue
            newest, columns = next_version(stated, columns, known, key_field="a")
            known.add(newest)
            retired |= {one["id"]: one["name"] for one in dropped}
            assert not {one["id"] for one in newest["fields"]} & retired.keys(), "no id comes back"
        layout = Layout.from_format(Format.TYPED, columns)
        arrays = []
        for field, column in zip(newest["fields"], columns, strict=True):
            value = VALUES[field["type"]] if field.get("required") else st.none() | VALUES[field["type"]]
            arrays.append(pa.array([draw(value)], column.type))
        rows = assemble(layout, pa.array([0], pa.timestamp("us", "UTC")), None, None, None, arrays)
        parts.append(rows)
        model.append({field["id"]: array[0].as_py() for field, array in zip(newest["fields"], arrays, strict=True)})
    ids = {field["name"]: field["id"] for field in newest["fields"]}
    layout = Layout.from_format(Format.TYPED, parse_schema(newest))
    expected = [{name: row.get(number) for name, number in ids.items()} for row in model]
    shown = [layout.raised(part).select(list(ids)).to_pylist()[0] for part in parts]
    assert shown == expected
    for part, row in zip(parts, model, strict=True):
        lost = {retired[number] for number, value in row.items() if number in retired and value is not None}
        found = layout.dropped_value(part)
        assert found in lost if lost else found is None
    table = layout.gather([(at, layout.raised(part)) for at, part in enumerate(parts)])
    assert table.select(list(ids)).to_pylist() == expected


def test_rows_of_a_later_version_are_not_shown_by_an_earlier_one() -> None:
    before = Layout.from_format(Format.TYPED, parse_schema(schema(A, B)))
    now = pa.array([0], pa.timestamp("us", "UTC"))
    for fields in ([A, B, {"name": "c", "type": "int"}], [{"id": 1, "name": "a", "type": "long"}, B], [B]):
        _, columns = next_version(schema(*fields), before.values, History())
        later = Layout.from_format(Format.TYPED, columns)
        rows = assemble(later, now, None, None, None, [pa.nulls(1, field.type) for field in columns])
        with pytest.raises(NotReady):
            before.raised(rows)
