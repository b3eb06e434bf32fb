"""Payloads of messages in Spark: read on the executors, from the store itself, with size and digest checked.

Brokers take no part in it: a row's `_reference` has the URI, size and SHA-256 of the bytes. Only objects with the name
of a payload are opened, whatever a row's reference says. Executors need seaweedq, and s3fs for a store on S3, whose
credentials and endpoint are those in boto's variables and files, or in `storage_options`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seaweedq.errors import ClientError
from seaweedq.segments.entry import NAME

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
    """Adds a column with the bytes of each row's payload; null for rows without a reference.

    `column` is the struct with the references, and `into` is the binary column to add. If a payload is larger than
    `max_bytes`, is missing, or differs from the published payload, the job fails (`wrong="raise"`) or the value is null
    (`wrong="null"`). `within` is a URI prefix that all payloads must have. A task holds about 64 MiB of payloads at a
    time, or a single larger payload."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    if wrong not in ("raise", "null"):
        raise ValueError(f"the argument `wrong` must be 'raise' or 'null', not {wrong!r}")
    if into in frame.columns:
        raise ValueError(f"the table already has a column {into!r}; set the argument `into` to another name")
    reader = PayloadReader(max_bytes, wrong, within and within.rstrip("/") + "/", dict(storage_options or {}))
    schema = StructType([*frame.schema.fields, StructField(into, BinaryType())])
    return frame.mapInArrow(_batches(reader, column, into), schema)


def _batches(
    reader: "PayloadReader", column: str, into: str
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
    """Yields half-open ranges of rows whose payloads have at most `limit_bytes` together, or are one alone."""
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
class PayloadReader:
    """Reads payloads; it is sent to the executors."""

    max_bytes: int
    wrong: Wrong
    within: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def read(self, reference: Mapping[str, Any] | None) -> bytes | None:
        """Returns the payload, None for a missing reference. Raises ClientError, unless `wrong` is "null"."""
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
            raise ClientError("the URI is not the URI of a topic's payload, or lies outside the allowed folder")
        if size is None or not 0 <= size <= self.max_bytes:
            raise ClientError(f"the payload has {size} bytes, but max_bytes is {self.max_bytes}")
        import fsspec  # workers without payloads are spared it

        files = fsspec.filesystem("file" if found["scheme"] == "file" else "s3", **self.options)
        there = files.size(found["path"])
        if there != size:
            raise ClientError(f"the payload has {there} bytes, not {size}")
        data: bytes = files.cat_file(found["path"], start=0, end=size) if size else b""
        if hashlib.sha256(data).hexdigest() != reference["sha256"]:
            raise ClientError("the SHA-256 of the payload differs from the published SHA-256")
        return data
