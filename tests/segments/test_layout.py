"""Ids of columns: each file has one for every column, nested ones too, or it has none of the queue's."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.segments import layout
from seaweedq.segments.entry import EntryMetadata, encode_entry
from seaweedq.segments.layout import MAX_USER_ID, QUEUE_IDS, Format, Layout
from tests.support.rows.body_samples import FIELDS

LAYOUTS = [Layout.from_format(Format.JSON), Layout.from_format(Format.BYTES), Layout.from_format(Format.TYPED, FIELDS)]
METADATA = EntryMetadata("c", "t", 0, 0, 1, 0, 0, 0, "b", "n", 0, 0, 0, b"")
ICEBERGS_LOWEST = 2_147_483_447  # its ids for metadata columns go up from here


def ids(layout: Layout) -> dict[str, int]:
    """The id of each node of a file's schema, by its path; what has none is left out."""
    file = pq.ParquetFile(pa.BufferReader(encode_entry([], layout, METADATA)))
    found, path = {}, []
    for line in str(file.schema).splitlines()[2:]:
        depth = (len(line) - len(line.lstrip())) // 2
        match = re.search(r"field_id=(-?\d+) (\S+?)[ ;]", line + " ")
        if match:
            path[depth - 1 :] = [match[2]]
            found[".".join(path)] = int(match[1])
    return {name: number for name, number in found.items() if number != -1}


def test_rows_keep_their_version_if_a_later_one_has_equal_columns() -> None:
    """A field was added, and dropped again; their file states the version that the rows were written in."""
    columns = FIELDS.with_metadata({b"schema-id": b"2"})
    newest = Layout.from_format(Format.TYPED, columns)
    assert newest.of(FIELDS, 0).schema_id == 0
    assert newest.of(columns, 2) is newest


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.format)
def test_every_column_has_its_id(layout: Layout) -> None:
    found = ids(layout)
    values = [found.pop(name) for name in layout.values.names]
    assert values == ([1] if layout.format is not Format.TYPED else list(range(1, len(FIELDS) + 1)))
    files = {name.replace(".key_value", ""): number for name, number in found.items()}
    assert files == {name: number for name, number in QUEUE_IDS.items() if name != "segment"}


def test_ids_are_unique_and_between_the_users_and_icebergs() -> None:
    numbers = [*QUEUE_IDS.values()]
    assert len({*numbers}) == len(numbers)
    assert min(numbers) >= 2_147_000_000
    assert max(numbers) < ICEBERGS_LOWEST
    assert min(numbers) > MAX_USER_ID


def test_the_page_of_files_lists_them() -> None:
    page = (Path(layout.__file__).parents[2] / "docs" / "reference" / "files.md").read_text()
    (stated,) = re.findall(r"ids from ([\d,]{13}) on, in this order: (.+)\.$", page, re.MULTILINE)
    first, names = int(stated[0].replace(",", "")), re.findall(r"`([^`]+)`", stated[1])
    assert {name: first + at for at, name in enumerate(names)} == QUEUE_IDS
