"""The records of uploads, and of imports of what was uploaded, in the values of coordination's keys."""

from typing import Any, Literal

import msgspec


class UploadRecord(msgspec.Struct, frozen=True):
    """An upload: the object `name`, `size` bytes of `content_type`, and their SHA-256 as the client states it (hex).

    `checked` is the digest that the object was found to have. `parts` is the store's id of a multipart upload, whose
    parts have `part_bytes` bytes, except the last one. A removed upload is `cleared` once its object was deleted.
    docs/internals/by-reference.md has the states.
    """

    name: str
    size: int
    content_type: str
    sha256: str | None
    created_us: int
    expires_us: int
    state: Literal["open", "imported", "published", "removed"] = "open"
    checked: str | None = None
    parts: str | None = None
    part_bytes: int | None = None
    cleared: bool = False


class ImportedSegment(msgspec.Struct, frozen=True):
    """The rows of an import in a segment: their number, and the first and last offset; other rows may lie between."""

    segment: int
    first_offset: int
    last_offset: int
    count: int


class ImportProblem(msgspec.Struct, frozen=True):
    """The reason why an import failed: the slug of an error, its detail and fields."""

    slug: str
    detail: str
    fields: dict[str, Any] = {}


class ImportRecord(msgspec.Struct, frozen=True):
    """An import of the object `name` (`size` bytes, `sha256`). `broker` works on it; None: no broker does.

    `started_us`, of the cluster's time, is that of rows that have none, and the one from which lifetimes count; with
    `max_message_bytes` it makes rows a function of the file, and `batch_rows` does the same for batches. `rows` is
    known once the file was checked; the first `rows_done` are durable. docs/internals/by-reference.md has the states.
    """

    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool
    name: str
    size: int
    sha256: str
    started_us: int
    expires_us: int
    max_message_bytes: int
    batch_rows: int
    broker: str | None
    state: Literal["checking", "running", "done", "failed"] = "checking"
    rows: int | None = None
    rows_done: int = 0
    segments: tuple[ImportedSegment, ...] = ()
    problem: ImportProblem | None = None
