"""Any sequence of changes of a schema: readers of the directory alone, and our own, show what a model by ids has."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.cli.sql_database import view
from seaweedq.client.core.calls import TopicFile
from seaweedq.client.core.table import SEGMENT, FilePart, TableRead
from seaweedq.segments.entry import MARKERS, EntryMetadata, EntryName, encode_entry
from seaweedq.segments.evolution import aliases_of, of_marker
from seaweedq.segments.layout import Format, Layout, identity
from tests.support.readers.topic_readers import READERS
from tests.support.segments.schema_changes import Changed, changed
from tests.support.tiers import examples

PLAIN = ["pandas", "pyarrow dataset", "pyarrow read_table"]


def written(folder: Path, found: Changed) -> list[FilePart]:
    """Writes the files of a topic, one a row, and the markers of its versions. Returns the files of rows."""
    parts = []
    for version in found.versions[1:]:
        layout = Layout.from_format(Format.TYPED, of_marker(version))
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
        optional = [one.with_nullable(True) for one in layout.values]
        for name in PLAIN:
            assert READERS[name].rows(place, *optional).select(names).to_pylist() == found.shown_by_name, name
        aliases = aliases_of(found.versions[-1])
        pairs = [(name, one) for name, ones in aliases.items() for one in ones]
        earlier = [pa.field(one, layout.values.field(name).type) for name, one in pairs]
        data = ds.dataset(place, partitioning="hive")
        whole = ds.dataset(place, pa.schema([*data.schema, *earlier]), partitioning="hive").to_table()
        whole = whole.sort_by([("segment", "ascending"), ("_offset", "ascending")])
        of_arrow = [pc.coalesce(*(whole[one] for one in (name, *aliases.get(name, ())))) for name in names]
        assert pa.table(of_arrow, names).to_pylist() == expected
        files = f"{place}/**/*.parquet"
        read = f"read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
        there = duckdb.sql(f"FROM {read}").columns
        firsts = {name: [name, *(one for one in aliases.get(name, ()) if one in there)] for name in names}
        wanted = ", ".join(f"coalesce({', '.join(ones)}) AS {name}" for name, ones in firsts.items())
        shown = duckdb.sql(f"SELECT {wanted} FROM {read} ORDER BY segment, _offset")
        assert shown is not None
        assert shown.to_arrow_table().to_pylist() == expected
        casts = pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")
        more: Any = {"missing_columns": "insert", "extra_columns": "ignore", "cast_options": casts}
        scan = pl.scan_parquet(files, hive_partitioning=True, **more)
        assert scan.sort("segment", "_offset").collect().select(names).to_dicts() == found.shown_by_name
        kinds = scan.collect_schema()
        kinds |= {one: kinds[name] for name, one in pairs}
        scan = pl.scan_parquet(files, hive_partitioning=True, schema=kinds, **more).sort("segment", "_offset")
        first = [pl.coalesce(name, *aliases.get(name, ())).alias(name) for name in names]
        assert scan.select(first).collect().to_dicts() == expected
        columns = layout.table.append(SEGMENT).remove_metadata()
        ours = TableRead("t", columns, columns, f"file://{place}", parts, (), None, {}, True, layout.schema_id, aliases)
        assert ours.table([*ours.file_batches()]).select(names).to_pylist() == expected
        with duckdb.connect() as sql:
            sql.register("tail", columns.empty_table())
            ordered = sql.sql(f"{view(ours, place, 'tail')} ORDER BY _offset").select(*names)
            assert ordered.to_arrow_table().to_pylist() == expected
        now = {identity(one): one.type for one in layout.values}
        for version, _ in found.rows:  # a read of an earlier version finds files of later ones
            if any(now.get(identity(one)) != one.type for one in version.values):
                continue
            of_version = version.table.append(SEGMENT).remove_metadata()
            before = TableRead("t", of_version, of_version, f"file://{place}", parts, (), schema_id=version.schema_id)
            rows = before.table([*before.file_batches()]).select(version.values.names).to_pylist()
            assert rows == [{one.name: row.get(identity(one)) for one in version.values} for row in found.model]
