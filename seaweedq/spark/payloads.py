"""Payloads of messages in Spark: read on the executors, from the store itself, with size and digest checked.

Brokers have no part in it: a row's `_reference` says where the bytes are, how many, and what their SHA-256 is. Only
what a broker names payloads is opened, whatever else a row may say. Executors need seaweedq, and s3fs for a store on
S3, whose credentials and endpoint are those that boto's variables and files name, or `storage_options`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import fsspec
import pyarrow as pa

from seaweedq.errors import ClientError
from seaweedq.segments.names import NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MIB = 1024 * 1024
BATCH_BYTES = 64 * MIB  # of payloads that a task holds, unless one alone is larger
READERS = 8  # threads of a task, which mostly wait for the store
Wrong = Literal["raise", "null"]
_URI = re.compile(r"(?P<scheme>file|s3a?)://(?P<path>[^?#]*/_payloads/" + NAME + r"/[0-9]{8}/[A-Za-z0-9-]{1,64})")


def with_payloads(
    frame: "DataFrame",
    column: str = "_reference",
    into: str = "payload",
    max_bytes: int = 64 * MIB,
    wrong: Wrong = "raise",
    within: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "DataFrame":
    """The rows with the bytes of their payloads, null where there is no reference.

    `column` is the references' struct, `into` the binary column to be added. A payload that is over `max_bytes`, is not
    there, or is not the one that was published fails the job, or is null: as `wrong` says. `within` is a URI that all
    payloads have to be below. A task holds some 64 MiB of payloads at a time, or one that is larger.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    if wrong not in ("raise", "null"):
        raise ValueError(f"wrong is {wrong!r}; it must be 'raise' or 'null'")
    if into in frame.columns:
        raise ValueError(f"the table has a column {into!r} already; choose another name with into")
    reader = Reader(max_bytes, wrong, within and within.rstrip("/") + "/", dict(storage_options or {}))
    schema = StructType([*frame.schema.fields, StructField(into, BinaryType())])
    return frame.mapInArrow(_batches(reader, column, into), schema)


def _batches(
    reader: "Reader", column: str, into: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def batches(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(READERS) as pool:
            for batch in rows:
                references = batch.column(column).to_pylist()
                for first, end in windows(references, BATCH_BYTES):
                    payloads = pa.array(pool.map(reader.read, references[first:end]), pa.binary())
                    yield batch.slice(first, end - first).append_column(into, payloads)

    return batches


def windows(references: Sequence[Mapping[str, Any] | None], limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of rows whose payloads take at most `limit_bytes` together, or are one alone."""
    first = held = 0
    for at, reference in enumerate(references):
        size = (reference and reference["size"]) or 0
        if at > first and held + size > limit_bytes:
            yield first, at
            first, held = at, 0
        held += size
    if first < len(references):
        yield first, len(references)


@dataclass
class Reader:
    """Reads payloads; goes to the executors as it is."""

    max_bytes: int
    wrong: Wrong
    within: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def read(self, reference: Mapping[str, Any] | None) -> bytes | None:
        """The payload, None where there is no reference. Raises ClientError, unless what is wrong is null."""
        if reference is None:
            return None
        try:
            return self._checked(reference)
        except (ClientError, FileNotFoundError) as error:  # a store that does not answer is never a null
            if self.wrong == "null":
                return None
            raise ClientError(f"payload {str(reference['uri'])[:500]}: {error}", uri=reference["uri"]) from error

    def _checked(self, reference: Mapping[str, Any]) -> bytes:
        uri, size = reference["uri"] or "", reference["size"]
        found = _URI.fullmatch(uri)
        if not found or "/../" in uri or "/./" in uri or (self.within and not uri.startswith(self.within)):
            raise ClientError("its URI is not one of a payload that may be opened here")
        if size is None or not 0 <= size <= self.max_bytes:
            raise ClientError(f"it has {size} bytes, but max_bytes is {self.max_bytes}")
        files = fsspec.filesystem("file" if found["scheme"] == "file" else "s3", **self.options)
        there = files.size(found["path"])
        if there != size:
            raise ClientError(f"it has {there} bytes, not {size}")
        data: bytes = files.cat_file(found["path"], start=0, end=size) if size else b""
        if hashlib.sha256(data).hexdigest() != reference["sha256"]:
            raise ClientError("its SHA-256 differs from the published one")
        return data
