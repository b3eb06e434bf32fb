"""Files with ids of columns beside files of before: every reader reads both by their names, as one table."""

from pathlib import Path

import pyarrow as pa
import pytest

from seaweedq.segments.entry import EntryMetadata, encode_entry
from seaweedq.segments.field_ids import FIELD_IDS_SINCE
from seaweedq.segments.layout import TIMESTAMP, Format, Layout
from seaweedq.segments.rows import assemble
from seaweedq.segments.schema import parse_schema
from tests.support.codec.body_samples import iceberg
from tests.support.readers.topic_readers import Reader, assert_dense

ROWS = 3
VALUES = {
    Format.JSON: pa.array(["1", None, '{"a": 2}']),
    Format.BYTES: pa.array([b"1", None, b"\xff"]),
    Format.TYPED: pa.array([1, None, 3], pa.int32()),
}


def write(folder: Path, layout: Layout, *levels: int) -> None:
    """A chain with one file of each level."""
    times = pa.array([10, 20, 30], TIMESTAMP)
    keys, headers = pa.array(["a", None, "c"]), pa.array([[("h", "x")], None, []], pa.map_(pa.string(), pa.string()))
    batch = assemble(layout, times, keys, headers, None, [VALUES[layout.format]])
    (folder / "segment=0").mkdir(parents=True)
    for n, level in enumerate(levels):
        first = n * ROWS
        metadata = EntryMetadata("c", "t", 0, 0, 1, n, first, first + ROWS, "b", "n", 0, 0, 30, b"")
        file = folder / "segment=0" / f"{n:08d}-{first:016d}.parquet"
        file.write_bytes(encode_entry([(first, batch)], layout, metadata, level))


@pytest.mark.parametrize("levels", [(1, FIELD_IDS_SINCE), (FIELD_IDS_SINCE, 1)], ids=["old first", "new first"])
@pytest.mark.parametrize("format", Format)
def test_old_and_new_files_are_one_table(
    reader: Reader, format: Format, levels: tuple[int, int], tmp_path: Path
) -> None:
    fields = parse_schema(iceberg({"n": "int"})) if format is Format.TYPED else None
    layout = Layout.of(format, fields)
    write(tmp_path / "t", layout, *levels)
    name = layout.values.names[0]
    table = reader.rows(str(tmp_path / "t"), pa.field(name, VALUES[format].type))
    assert_dense(table)
    assert table[name].to_pylist() == VALUES[format].to_pylist() * 2
    assert table["_key"].to_pylist() == ["a", None, "c"] * 2
    assert table["_headers"].to_pylist()[0] == table["_headers"].to_pylist()[3] == [("h", "x")]
