"""A topic as SQL that DuckDB reads: its files, which DuckDB opens itself, and its tail, which is Arrow. Pure.

A view has exactly the rows of one plan (`client.core.table`): whole files, parts of files by their offsets, and
the table of the tail, without what had expired when it was planned. So a view is complete to the last acknowledged
message of that moment, and no row is in it twice, whatever brokers flush meanwhile.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from seaweedq.cli.shared.common import counted

if TYPE_CHECKING:
    from seaweedq.client.core.table import TableRead
    from seaweedq.client.core.table_plan import FilePart

_HIVE = "hive_partitioning = true, hive_types = {'segment': INTEGER}"


def quoted(name: str) -> str:
    """Returns a name as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Returns a text as SQL takes it."""
    return "'" + text.replace("'", "''") + "'"


def view(read: "TableRead", root: str, tail: str) -> str:
    """Returns the SELECT of a topic, given where its files are and the name of the table that has its tail."""
    whole = [part for part in read.files if part.is_whole]
    selects = [f"SELECT * FROM {tail}"]
    if whole:
        selects.append(f"SELECT * FROM {_parquet(root, whole)}")
    for part in read.files:
        if not part.is_whole:
            within = f"_offset >= {part.start} AND _offset < {part.end}"
            selects.append(f"SELECT * FROM {_parquet(root, [part])} WHERE {within}")
    columns = ", ".join(map(quoted, read.columns.names))
    kept = f" WHERE {_unexpired(read.as_of)}" if read.as_of else ""
    return f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(selects)}){kept}"


def _unexpired(as_of: datetime) -> str:
    return f"_expires IS NULL OR _expires > TIMESTAMPTZ '{as_of.isoformat()}'"


def _parquet(root: str, parts: Sequence["FilePart"]) -> str:
    files = ", ".join(literal(f"{root}/{part.file.path}") for part in parts)
    return f"read_parquet([{files}], {_HIVE})"


def explained(read: "TableRead") -> Iterator[str]:
    """Yields, line by line, where the rows of a topic come from."""
    rows = sum(part.end - part.start for part in read.files)
    size, tail = sum(part.file.bytes for part in read.files), sum(map(len, read.tail))
    whole = f"{counted(rows, 'row')} of {counted(len(read.files), 'file')} ({counted(size, 'byte')})"
    yield f"{read.topic}: {whole} in {read.folder}"
    for part in read.files:
        some = "" if part.is_whole else f", of which offsets {part.start:,} to {part.end - 1:,}"
        count = part.file.next_offset - part.file.first_offset
        yield f"  {part.file.path}  {counted(count, 'row')}, {counted(part.file.bytes, 'byte')}{some}"
    yield f"{read.topic}: {counted(tail, 'row')} of brokers, in no file yet"
    for one in read.tail:
        yield f"  segment {one.segment}  offsets {one.start:,} to {one.end - 1:,}"
    if read.as_of:
        yield f"{read.topic}: of these, rows whose _expires is {read.as_of.isoformat()} or before are left out"
