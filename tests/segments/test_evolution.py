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
from seaweedq.segments.evolution import (
    RULES,
    Compatibility,
    History,
    aliases_of,
    distinct,
    is_same,
    next_version,
    warnings,
    with_ids,
)
from seaweedq.segments.layout import TIMESTAMP, Format, Layout, identity
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
        ([{**A, "name": "k"}, {**B, "name": "c"}], []),
        ([A, {**B, "name": "B"}], []),
        ([A, {**B, "name": "GONE"}], [("GONE", 2, "name")]),
        ([{**A, "name": "b"}, {**B, "name": "a"}], [("b", 1, "name"), ("a", 2, "name")]),
        ([A, {**B, "name": "c"}, {"name": "b", "type": "string"}], [("b", 12, "name")]),
        ([A, {**B, "id": 3}], [("b", 3, "name")]),
        ([A, B, {"name": "c", "type": "int", "required": True}], [("c", 12, "added")]),
        (
            [{"id": 2, "name": "a", "required": True, "type": "int"}],
            [("a", 1, "key"), ("b", 2, "type"), ("b", 2, "required"), ("a", 2, "name")],
        ),
    ],
)
def test_a_change_is_taken_or_all_its_reasons_are_told(fields: list[dict[str, Any]], expected: list[Any]) -> None:
    assert refused(schema(*fields), A, B) == expected


def test_a_field_goes_only_if_that_is_wanted() -> None:
    with pytest.raises(SchemaIncompatible, match="'b': the schema lacks this field"):
        next_version(schema(A), parse_schema(schema(A, B)), History(), knows=False)


def test_a_version_states_the_earlier_names_of_its_fields() -> None:
    known, newest = history(schema(A, B)), schema(A, B)
    with pytest.raises(SchemaIncompatible, match="'b': the schema has another name for this field"):
        next_version(schema(A, {**B, "name": "c"}), parse_schema(newest), known, knows=False)
    for name, aliases in (("c", ["b"]), ("B", ["b", "c"]), ("b", ["B", "c"]), ("c", ["B", "b"])):
        stated = schema(A, {**B, "name": name, "aliases": ["a"]})
        newest, _ = next_version(stated, parse_schema(newest), known, key_field="a")
        known.add(newest)
        assert aliases_of(newest) == {name: aliases}
    assert distinct("c", ["B", "b", "C"]) == ["b"]
    assert with_ids(newest)["fields"] == [A, {**B, "name": "c"}]
    refused, shown = warnings(parse_schema(schema(A, B)), parse_schema(newest))
    assert "refuse messages that have the field 'b', unless the request's Schema-Id" in refused
    assert 'DuckDB and Polars show null in \'c\' for their rows; read coalesce("c", "b")' in shown


def test_a_version_tells_the_names_of_versions_that_were_lost() -> None:
    now = schema(A, {**B, "name": "c", "aliases": ["b"]}, number=1)
    newest, _ = next_version(schema(A, {**B, "name": "d"}), parse_schema(now), history(now))
    assert aliases_of(newest) == {"d": ["b", "c"]}
    with pytest.raises(SchemaIncompatible, match="'b': another field has or had this name"):
        next_version(schema(A, {**B, "name": "c"}, {"name": "b", "type": "int"}), parse_schema(now), history(now))


def test_the_earlier_names_of_a_schema_are_limited() -> None:
    wide = [{"id": at, "name": f"{at:03}" + "é" * 126, "type": "int"} for at in range(1, 130)]  # 255 bytes each
    before, after = (schema(*ones) for ones in (wide, [{**one, "name": f"x{one['id']}"} for one in wide]))
    kept = schema(*after["fields"][:-1], wide[-1])
    found, _ = next_version(kept, parse_schema(before), history(before))
    assert len(aliases_of(found)) == 128
    with pytest.raises(SchemaIncompatible, match="have 32895 bytes together; the limit is 32768"):
        next_version(after, parse_schema(before), history(before))


def test_the_fields_of_all_versions_together_are_limited() -> None:
    known, now = History(), schema(A, B)
    for at in range(20):
        known.add(schema(A, B, *({"id": 3 + 500 * at + n, "name": f"x{at}-{n}", "type": "int"} for n in range(499))))
    known.add(now)
    more = [{"name": f"y{n}", "type": "int"} for n in range(18)]
    next_version(schema(A, B, *more), parse_schema(now), known)
    with pytest.raises(SchemaIncompatible, match="would have 10001 fields together; the limit is 10000") as refused:
        next_version(schema(A, B, *more, {"name": "z", "type": "int"}), parse_schema(now), known)
    assert (refused.value.fields["value"], refused.value.fields["bound"]) == (10_001, 10_000)


def test_a_type_is_the_same_however_it_is_spelled() -> None:
    before = schema(A, {**B, "type": "decimal( 05,\t2)"}, {"id": 3, "name": "c", "type": "fixed[004]"})
    more = schema(*before["fields"], {"name": "d", "type": "int"})
    next_version(more, parse_schema(before), history(before), Compatibility.FULL)


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
        ([A, {**B, "name": "c"}], [("c", 2, "reader name")]),
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
    for (its, rows), row in zip(found.rows, found.model, strict=True):
        lost = {one.name for one in its.values if row[identity(one)] is not None and identity(one) in found.retired}
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
