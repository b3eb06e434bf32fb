"""The search for a time in one entry of a chain."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seaweedq.errors import ChainDamaged
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryName
from seaweedq.segments.layout import TIMESTAMP, TIMESTAMP_FIELD


def find_in_entry(chain: Chain, name: EntryName, timestamp_us: int) -> tuple[int, bool]:
    """Finds the first row of an entry whose `_timestamp` reaches this. Returns its offset and True, or the entry's end.
    Reads that column alone, of the row groups whose statistics do not tell. Blocks: call it in a thread."""
    file, parquet, _ = chain.entry(name)
    with file, parquet:
        try:
            return find_in_groups(parquet, name.first_offset, timestamp_us)
        except (pa.ArrowException, OSError) as error:
            raise ChainDamaged(f"{chain.folder}{name}: {error}", name=f"{chain.folder}{name}") from error


def find_in_groups(parquet: pq.ParquetFile, offset: int, timestamp_us: int) -> tuple[int, bool]:
    """As `find_in_entry`, of a file whose first row has this offset."""
    wanted = pa.scalar(timestamp_us, TIMESTAMP)
    column = parquet.schema_arrow.names.index(TIMESTAMP_FIELD.name)
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        known = group.column(column).statistics
        if known is None or not known.has_min_max or known.max_raw >= timestamp_us:
            times = parquet.read_row_group(number, columns=[TIMESTAMP_FIELD.name], use_threads=False).column(0)
            at = pc.index(pc.greater_equal(times, wanted), True).as_py()
            if at >= 0:
                return offset + int(at), True
        offset += group.num_rows
    return offset, False
