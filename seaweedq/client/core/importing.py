"""Imports of files, whose rows become messages: requested from a broker, and requested again until they end. No I/O.

A broker continues an import whether a client waits or not, and the same request joins it. So an interrupted request is
repeated, and publishes nothing twice.
"""

import os
from collections.abc import Callable
from pathlib import PurePath
from typing import Literal, get_args

import msgspec

from seaweedq.client.core.calls import topic_path
from seaweedq.client.core.effects import JSON, Reply, Request, Steps
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.wire import encode
from seaweedq.errors import SeaweedqError

Format = Literal["parquet", "ndjson", "arrow"]
# Hears how many rows are durable, and of how many; None while the file is still checked.
Rows = Callable[[int, int | None], None]
# A broker is asked to wait so long at a time: shorter where somebody looks on.
_WAIT_S, _TOLD_EVERY_S = 5, 1

_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


class ImportedRows(msgspec.Struct, frozen=True):
    """The rows of a file in one segment; other messages may lie between the first offset and the last."""

    segment: int
    first_offset: int
    last_offset: int
    count: int


class Imported(msgspec.Struct, frozen=True):
    """A finished import: all `count` rows are durable, in `segments`."""

    upload_id: str
    count: int
    segments: list[ImportedRows]


class ImportAnswer(msgspec.Struct):
    upload_id: str
    state: str
    count: int
    rows: int | None
    segments: list[ImportedRows]


_answer = msgspec.json.Decoder(ImportAnswer)


def format_of(name: str) -> Format:
    """Returns the format that a file's suffix stands for. Raises ValueError."""
    suffix = PurePath(name).suffix.lower()
    if suffix not in _SUFFIXES:
        what = f"the file {name!r}" if name else "a file without a name"
        raise ValueError(f"{what} has none of the suffixes {', '.join(_SUFFIXES)}: state its format")
    return _SUFFIXES[suffix]


def format_given(what: object, format: Format | None, bare: bool) -> Format:
    """Returns the given format, else that of a path's suffix. Raises ValueError, before anything is uploaded."""
    found = format or format_of(os.fspath(what) if isinstance(what, str | os.PathLike) else "")
    check_format(found, bare)
    return found


def check_format(format: str, bare: bool) -> None:
    """Raises ValueError for an unknown format, and for `bare` with another format than NDJSON."""
    if format not in get_args(Format):
        raise ValueError(f"format is {format!r}; it must be one of {', '.join(get_args(Format))}")
    if bare and format != "ndjson":
        raise ValueError(f"bare is only for lines of NDJSON, but the format is {format}")


def imported(
    topic: str, upload_id: str, format: str, bare: bool, patience: Patience, rows: Rows | None = None
) -> Steps[Imported]:
    """Imports an upload's rows as messages, and waits until all are durable.

    Raises InvalidMessages, InvalidImport, InvalidRequest (no row was published), UploadNotFound, UploadConflict and
    others; all name the `upload_id`. After ConnectionFailed the import may continue: ask again.
    """
    check_format(format, bare)
    wait_s = _TOLD_EVERY_S if rows else _WAIT_S
    content = encode({"upload_id": upload_id, "format": format, "bare": bare})
    request = Request(
        "POST",
        f"{topic_path(topic)}/imports",
        {"wait_s": str(wait_s)},
        content,
        {"Content-Type": JSON},
        wait_s,
        repeatable=True,
    )
    while True:
        try:
            reply: Reply = yield from patience.send(request)
        except SeaweedqError as error:
            error.fields.setdefault("upload_id", upload_id)
            raise
        answer = _answer.decode(reply.body)
        if rows:
            rows(answer.count, answer.rows)
        if answer.state == "done":
            return Imported(answer.upload_id, answer.count, answer.segments)
