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
from seaweedq.segments.audit import disagreement
from seaweedq.segments.evolution import RULES, Compatibility, History, is_same, next_version
from seaweedq.segments.layout import TIMESTAMP, Format, Layout
from seaweedq.segments.rows import assemble
from seaweedq.segments.schema import parse_schema
from tests.support.segments.schema_changes import A, B, changed
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


@settings(max_examples=examples(60))
@given(st.data())
def test_any_sequence_of_changes_shows_each_row_as_it_was(data: st.DataObject) -> None:
    found = changed(data.draw)
    layout, names = found.newest, found.newest.values.names
    raised = [layout.raised(rows) for _, rows in found.rows]
    assert [one.select(names).to_pylist()[0] for one in raised] == found.expected
    for (_, rows), row in zip(found.rows, found.model, strict=True):
        lost = {name for number, name in found.retired.items() if row.get(number) is not None}
        value = layout.dropped_value(rows)
        assert value in lost if lost else value is None
    table = layout.gather([*enumerate(raised)])
    assert table.select(names).to_pylist() == found.expected


def test_rows_of_a_later_version_are_not_shown_by_an_earlier_one() -> None:
    before = Layout.from_format(Format.TYPED, parse_schema(schema(A, B)))
    now = pa.array([0], pa.timestamp("us", "UTC"))
    for fields in ([A, B, {"name": "c", "type": "int"}], [{"id": 1, "name": "a", "type": "long"}, B], [B]):
        _, columns = next_version(schema(*fields), before.values, History())
        later = Layout.from_format(Format.TYPED, columns)
        rows = assemble(later, now, None, None, None, [pa.nulls(1, field.type) for field in columns])
        with pytest.raises(NotReady):
            before.raised(rows)


def test_an_audit_knows_a_dropped_field_by_the_later_version() -> None:
    columns = {"_offset": pa.array([0, 1]), "_expires": pa.nulls(2, TIMESTAMP), "a": pa.array([1, 2])}
    rows, answer = pa.table({**columns, "x": pa.array([3, None])}), pa.table(columns)
    assert disagreement(rows, answer, 0, 2, 0, earlier=True) is None
    assert "the files have" in (disagreement(rows, answer, 0, 2, 0) or "")
    other = pa.table({**columns, "a": pa.array([1, 7])})
    assert "a different a at offset 1" in (disagreement(rows, other, 0, 2, 0, earlier=True) or "")
