"""Entries: what is encoded comes back from the file, for every layout, with and without the optional columns."""

import io
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.errors import ChainDamaged
from seaweedq.segments.entry import (
    ROW_GROUP_ROWS,
    EntryMetadata,
    EntryName,
    Seal,
    encode_entry,
    open_entry,
    read_rows,
    segment_folder,
)
from seaweedq.segments.layout import HEADERS, TIMESTAMP, Format, Layout, mask_of
from seaweedq.segments.rows import assemble

FIELDS = pa.schema(
    [
        pa.field("b", pa.bool_()),
        pa.field("i", pa.int32(), nullable=False),
        pa.field("l", pa.int64()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.float64()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("s", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("fixed", pa.binary(4)),
        pa.field("money", pa.decimal128(12, 2)),
    ]
)
LAYOUTS = {
    "json": Layout.from_format(Format.JSON),
    "bytes": Layout.from_format(Format.BYTES),
    "typed": Layout.from_format(Format.TYPED, FIELDS),
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
MICROSECONDS = st.integers(-(2**50), 2**50)
TYPED = {
    "b": st.booleans(),
    "l": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(width=32, allow_nan=False),
    "d": st.floats(allow_nan=False),
    "day": st.dates(),
    "at": st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)),
    "s": TEXT,
    "raw": st.binary(max_size=8),
    "fixed": st.binary(min_size=4, max_size=4),
    "money": st.decimals(-9_999_999_999, 9_999_999_999, places=2),
}


@st.composite
def rows(draw: st.DrawFn, layout: Layout) -> pa.RecordBatch:
    count = draw(st.integers(1, 12))

    def column(kind: pa.DataType, values: st.SearchStrategy, nullable: bool = True) -> pa.Array:
        each = st.none() | values if nullable else values
        return pa.array(draw(st.lists(each, min_size=count, max_size=count)), kind)

    optional = [
        column(kind, values) if draw(st.booleans()) else None
        for kind, values in [
            (pa.string(), TEXT),
            (HEADERS, st.dictionaries(TEXT, TEXT, max_size=3).map(lambda found: list(found.items()))),
            (TIMESTAMP, MICROSECONDS),
        ]
    ]
    if layout.format is Format.TYPED:
        values = [column(f.type, TYPED.get(f.name, st.integers(-9, 9)), f.nullable) for f in FIELDS]
    else:
        values = [column(layout.values.field(0).type, TEXT if layout.format is Format.JSON else st.binary(max_size=8))]
    return assemble(layout, column(TIMESTAMP, MICROSECONDS, False), *optional, values)


def metadata(first: int, count: int, **more: object) -> EntryMetadata:
    stated = {"sequence": 3, "broker": "b", "nonce": "n", "schema_id": 0, "appended_us": 1, "max_timestamp_us": 2}
    return EntryMetadata(
        "c" * 32, "t", 7, 0, 10, first_offset=first, next_offset=first + count, producers=b"\x00\xff", **stated, **more
    )


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_rows_come_back_as_they_were(name: str, data: st.DataObject) -> None:
    layout = LAYOUTS[name]
    pieces = []
    end = first = data.draw(st.integers(0, 2**40))
    for batch in data.draw(st.lists(rows(layout), min_size=1, max_size=3)):
        pieces.append((end, batch))
        end += batch.num_rows
    stated = metadata(first, end - first)
    raw = bytes(encode_entry(pieces, layout, stated))
    file_name = segment_folder("t", 7) + str(EntryName(3, first))
    parquet, found = open_entry(io.BytesIO(raw), file_name)
    assert found == stated
    back = read_rows(parquet, 0, layout, layout.schema_id)
    whole = pa.Table.from_batches([layout.complete(batch, at) for at, batch in pieces])
    assert pa.Table.from_batches([layout.complete(back, first)]).equals(whole)
    assert back.schema.equals(layout.rows(mask_of(back)))
    assert all(back.column(f.name).null_count < len(back) for f in back.schema if f.name in ("_key", "_headers"))
    table = pq.read_table(pa.BufferReader(raw))
    assert table.equals(whole), "what any other reader sees"
    assert table["_offset"].to_pylist() == list(range(first, end))


def test_maps_have_the_layouts_child_names_so_that_rows_serialise_alike() -> None:
    layout = LAYOUTS["json"]
    batch = assemble(
        layout,
        pa.array([1], TIMESTAMP),
        None,
        pa.array([[("k", "v")]], HEADERS),
        None,
        [pa.array(["1"])],
    )
    raw = encode_entry([(0, batch)], layout, metadata(0, 1))
    parquet, _ = open_entry(pa.BufferReader(raw), str(EntryName(3, 0)))
    back = read_rows(parquet, 0, layout, layout.schema_id)
    assert str(back.schema) == str(batch.schema)
    assert back.serialize().equals(batch.serialize())


def test_an_entry_without_rows_has_all_columns() -> None:
    for layout in LAYOUTS.values():
        raw = bytes(encode_entry([], layout, metadata(5, 0, seal=Seal((8, 9), ((0, 4), (4, 10))))))
        parquet, found = open_entry(io.BytesIO(raw), str(EntryName(3, 5)))
        assert found.seal == Seal((8, 9), ((0, 4), (4, 10)))
        assert parquet.schema_arrow.equals(layout.table)


def test_row_groups_are_full_but_for_the_last() -> None:
    layout = LAYOUTS["bytes"]
    values = pa.array([b"x"] * 50_000)
    batch = assemble(layout, pa.array([0] * 50_000, TIMESTAMP), None, None, None, [values])
    raw = encode_entry([(at * 50_000, batch) for at in range(3)], layout, metadata(0, 150_000))
    found = pq.read_metadata(pa.BufferReader(raw))
    assert [found.row_group(n).num_rows for n in range(3)] == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 150_000 - 131_072]


@given(st.integers(0, 10**8 - 1), st.integers(0, 10**16 - 1))
def test_names_sort_as_their_sequences(sequence: int, offset: int) -> None:
    name = EntryName(sequence, offset)
    assert EntryName.parse(f"any/where/{name}") == name
    assert len(str(name)) == len("00000000-0000000000000000.parquet")
    assert (str(name) < str(EntryName(50_000_000, 0))) == (name < EntryName(50_000_000, 0))


@given(st.text())
def test_anything_else_is_no_name(text: str) -> None:
    with pytest.raises(ChainDamaged):
        EntryName.parse(text)


@pytest.mark.parametrize("name", ["١٢٣٤٥٦٧٨-0000000000000000.parquet", "00000000-0000000000000000.parquet\n"])
def test_digits_of_other_scripts_and_line_ends_are_no_name(name: str) -> None:
    with pytest.raises(ChainDamaged):
        EntryName.parse(name)


@given(st.binary(max_size=300))
def test_junk_is_no_entry(junk: bytes) -> None:
    with pytest.raises(ChainDamaged):
        open_entry(io.BytesIO(junk), str(EntryName(0, 0)))
