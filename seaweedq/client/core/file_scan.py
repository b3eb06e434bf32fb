"""The rows of a topic's files, as Arrow reads them. Blocks.

All files are one scan, which reads ahead, and each part of a file is one by itself. Where files may be gone, each file
is a scan of its own, so that the others are read all the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from seaweedq.client.core.segment_rows import SEGMENT
from seaweedq.client.core.table_plan import FilePart
from seaweedq.errors import ClientError, FileMissing
from seaweedq.extras import install_command

_FORMAT = ds.ParquetFileFormat()
BATCH_ROWS = 32_768  # few enough to stay in a processor's cache until somebody has taken them


@dataclass(frozen=True)
class FileScan:
    """The columns `names` of parts of files below `folder`; `schema` has all columns that files have. `alone` is false
    where others read beside this scan, one for each core: then it takes one thread, which costs less CPU, and yields
    small batches."""

    folder: str
    schema: pa.Schema
    names: Sequence[str]
    storage: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = True

    def batches(
        self, parts: Sequence[FilePart], gone: Callable[[FilePart], bool] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of parts. Raises FileMissing if a file is not there, unless `gone` says that retention has
        taken it."""
        if not parts:
            return
        store, root = opened(self.folder, self.storage)
        whole = [part for part in parts if part.is_whole]
        together = [[part] for part in whole] if gone else [whole]
        for some in [*together, *([part] for part in parts if not part.is_whole)]:
            try:
                yield from self._rows(some, store, root)
            except FileNotFoundError as error:
                if gone and gone(some[0]):
                    continue
                detail = f"not all Parquet files are visible at {self.folder} from this machine: {error}"
                raise FileMissing(detail, url=self.folder) from None

    def _rows(self, parts: Sequence[FilePart], store: FileSystem, root: str) -> Iterator[pa.RecordBatch]:
        """Yields the rows of whole files, or of one part of a file."""
        fragments = [_fragment(part, store, root) for part in parts]
        rows = _within(parts[0]) if parts and not parts[0].is_whole else None
        data = ds.FileSystemDataset(fragments, self.schema, _FORMAT, store)
        # The default pool, mimalloc, gives pages back and faults them in again: as much CPU as the decoding itself.
        beside: dict[str, Any] = {} if self.alone else {"batch_size": BATCH_ROWS, "use_threads": False}
        scan = data.scanner(columns=self.names, filter=rows, memory_pool=pa.system_memory_pool(), **beside)
        yield from (batch for batch in scan.to_batches() if batch.num_rows)


def opened(folder: str, storage: Mapping[str, Any] = MappingProxyType({})) -> tuple[FileSystem, str]:
    """Returns the file system of a folder's URL, and its path there. Raises ClientError where a package is missing."""
    try:
        store, root = fsspec.core.url_to_fs(folder, **{"use_listings_cache": False, **storage})
    except ImportError:
        raise ClientError(f"reading {folder} needs s3fs: {install_command('s3')}", url=folder) from None
    local = "file" in store.protocol if isinstance(store.protocol, tuple) else store.protocol == "file"
    return LocalFileSystem() if local else PyFileSystem(FSSpecHandler(store)), root


def _fragment(part: FilePart, store: FileSystem, root: str) -> ds.ParquetFileFragment:
    segment = ds.field(SEGMENT.name) == pa.scalar(part.file.segment, SEGMENT.type)
    path = f"{root}/{part.file.path}"
    return _FORMAT.make_fragment(path, store, partition_expression=segment, file_size=part.file.bytes)


def _within(part: FilePart) -> ds.Expression:
    return (ds.field("_offset") >= part.start) & (ds.field("_offset") < part.end)
