"""Any sequence of changes of a schema: readers of the directory alone, and our own, show what a model by ids has."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.client.core.calls import TopicFile
from seaweedq.client.core.table import FilePart, TableRead
from seaweedq.segments.entry import MARKERS, EntryMetadata, EntryName, encode_entry
from seaweedq.segments.layout import Layout
from tests.support.readers.topic_readers import READERS
from tests.support.segments.schema_changes import Changed, changed
from tests.support.tiers import examples

PLAIN = ["pandas", "pyarrow dataset", "pyarrow read_table"]


def written(folder: Path, found: Changed) -> list[FilePart]:
    """Writes the files of a topic, one a row, and the markers of its versions. Returns the files of rows."""
    parts = []
    for layout in {layout.schema_id: layout for layout, _ in found.rows[1:]}.values():
        put(folder, MARKERS, EntryName.of_marker(0, layout.schema_id), layout, [])
    for at, (layout, rows) in enumerate(found.rows):
        name = EntryName(at, at)
        size = put(folder, 0, name, layout, [(at, rows)])
        time = datetime.fromtimestamp(0, UTC)
        parts.append(FilePart(TopicFile(0, str(name), at, at + 1, size, layout.schema_id, time), at, at + 1))
    return parts


def put(folder: Path, segment: int, name: EntryName, layout: Layout, rows: list[tuple[int, pa.RecordBatch]]) -> int:
    stated: dict[str, Any] = {"broker": "b", "nonce": "n", "appended_us": 1, "max_timestamp_us": 0, "producers": b""}
    at: dict[str, Any] = {
        "sequence": name.sequence,
        "first_offset": name.first_offset,
        "next_offset": name.first_offset + len(rows),
    }
    metadata = EntryMetadata("c" * 32, "t", segment, 0, 10, schema_id=layout.schema_id, **at, **stated)
    file = folder / f"segment={segment}" / str(name)
    file.parent.mkdir(exist_ok=True)
    return file.write_bytes(encode_entry(rows, layout, metadata))


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_all_readers_show_what_the_newest_version_has(data: st.DataObject) -> None:
    found = changed(data.draw)
    layout, expected = found.newest, found.expected
    names = layout.values.names
    with tempfile.TemporaryDirectory() as place:
        parts = written(Path(place), found)
        for name in PLAIN:
            assert READERS[name].rows(place, *layout.values).select(names).to_pylist() == expected, name
        files = f"{place}/**/*.parquet"
        read = f"read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
        wanted = ", ".join(f'"{name}"' for name in names)
        shown = duckdb.sql(f"SELECT {wanted} FROM {read} ORDER BY segment, _offset")
        assert shown is not None
        assert shown.to_arrow_table().to_pylist() == expected
        casts = pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")
        more: Any = {"missing_columns": "insert", "extra_columns": "ignore", "cast_options": casts}
        scanned = pl.scan_parquet(files, hive_partitioning=True, **more).sort("segment", "_offset").collect()
        assert scanned.select(names).to_dicts() == expected
        columns = layout.table.append(pa.field("segment", pa.int32())).remove_metadata()
        ours = TableRead("t", columns, columns, f"file://{place}", parts, (), schema_id=layout.schema_id)
        assert ours.table([*ours.file_batches()]).select(names).to_pylist() == expected
