"""Uploads to the store: created at a broker, put to the URLs that it returns, completed at a broker. And imports and
writes, which publish the rows of an upload, or of many. No I/O.

An interrupted or refused put is repeated, to a new URL. Of a multipart upload only the missing parts are sent. A failed
upload is aborted if a broker can be reached; otherwise the brokers' sweep removes it later.

A broker continues an import or a write whether a client waits or not, and the same request joins it. So an interrupted
request is repeated, and publishes nothing twice.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import PurePath
from typing import Any, Literal, get_args
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from seaweedq.client.core.attempts import Patience
from seaweedq.client.core.calls import MAX_WAIT_S, call, pages, topic_path, write_path
from seaweedq.client.core.effects import JSON, BlockingCall, Pause, Reply, Request, SignedRequest, Steps, Together
from seaweedq.client.core.problems import final, is_there, refusal
from seaweedq.client.core.wire import encode
from seaweedq.client.files import Meter, Progress, Slice, Source
from seaweedq.errors import ConnectionFailed, SeaweedqError, UploadIncomplete, UploadMismatch

ANY_BYTES = "application/octet-stream"
# So many parts of an upload are sent at a time, each in pieces of source.CHUNK_BYTES.
MOST_PARTS = 4
# Puts are tried so often, and for as long as patience lasts: whichever is more.
_TRIES = 5
_ROUNDS = 5
# Slower than any store: how long it may take to look through bytes that it has.
_BYTES_A_SECOND, _LEAST_WAIT_S = 20_000_000, 60


class Url(msgspec.Struct):
    """The target of a put. `number` is that of a part."""

    url: str
    method: str = "PUT"
    headers: dict[str, str] = {}
    number: int = 0


class NewUpload(msgspec.Struct):
    upload_id: str
    url: str | None = None
    method: str = "PUT"
    headers: dict[str, str] = {}
    part_bytes: int | None = None


class _Part(msgspec.Struct):
    number: int
    size: int


class UploadState(msgspec.Struct):
    size: int
    sha256: str | None = None
    url: str | None = None
    method: str = "PUT"
    headers: dict[str, str] = {}
    part_bytes: int | None = None
    parts: list[_Part] | None = None


class PartUrls(msgspec.Struct):
    parts: list[Url]


_new_upload, _upload_state = msgspec.json.Decoder(NewUpload), msgspec.json.Decoder(UploadState)
_urls = msgspec.json.Decoder(PartUrls)


def uploads_path(topic: str) -> str:
    """Returns the path of a topic's uploads."""
    return f"{topic_path(topic)}/uploads"


def wait_s(size: int) -> float:
    """Returns how long a store, or a broker that reads it, may take to answer about this number of bytes."""
    return _LEAST_WAIT_S + size / _BYTES_A_SECOND


@dataclass(frozen=True, slots=True)
class Upload:
    """One upload. `brokers` are those that the user named; `write` is the `{writer}/{number}` that it is for."""

    topic: str
    source: Source
    content_type: str
    patience: Patience
    brokers: tuple[str, ...] = ()
    progress: Progress | None = None
    write: str | None = None
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meter", Meter(self.source.size, self.progress))

    def run(self, upload_id: str | None = None) -> Steps[str]:
        """Uploads all bytes, and returns the upload's id once a broker has checked them.

        With `upload_id` an earlier upload is continued, and left as it is if it fails. Raises UploadMismatch,
        UploadExpired, UploadNotFound, PayloadTooLarge, TooManyUploads, ConnectionFailed, OSError and others.
        """
        sha256: str = yield BlockingCall(self.source.digest)
        if upload_id is not None:
            found = yield from self._find(upload_id)
            size, digest = found.size, found.sha256 or sha256
            if (size, digest) != (self.source.size, sha256):
                detail = (
                    f"upload {upload_id} was created for {size} bytes with the SHA-256 {digest}, but the given bytes "
                    "differ"
                )
                raise UploadMismatch(detail, upload_id=upload_id)
            yield from self._send(upload_id, found.part_bytes, None)
            return upload_id
        body = {"size": self.source.size, "content_type": self.content_type, "sha256": sha256}
        params = {} if self.write is None else {"write": self.write}
        reply = yield from self._call("POST", "", body, params=params)
        begun = _new_upload.decode(reply.body)
        if begun.url:
            begun.url = urljoin(reply.url, begun.url)
        try:
            yield from self._send(begun.upload_id, begun.part_bytes, begun)
        except GeneratorExit:
            raise
        except BaseException:
            yield from abort(self.topic, begun.upload_id)
            raise
        return begun.upload_id

    def _send(self, upload_id: str, part_bytes: int | None, begun: NewUpload | None) -> Steps[None]:
        """Puts the missing bytes, and completes the upload; `begun`: nothing was put before."""
        fresh = begun
        for last in (False,) * (_ROUNDS - 1) + (True,):
            if part_bytes is None:
                first = Url(fresh.url, fresh.method, fresh.headers) if fresh and fresh.url else None
                yield from self._put(lambda: self._url(upload_id), self._slice(0, self.source.size), first)
            else:
                found = None if fresh else (yield from self._find(upload_id))
                there = {part.number: part.size for part in (found and found.parts) or ()}
                yield Together(self._parts(upload_id, part_bytes, there), MOST_PARTS)
            fresh = None
            try:
                yield from self._call("POST", f"/{quote(upload_id, safe='')}/complete", wait_s=wait_s(self.source.size))
            except UploadIncomplete:
                if last:
                    raise
            else:
                return

    def _parts(self, upload_id: str, part_bytes: int, there: dict[int, int]) -> Iterator[Steps[None]]:
        """Yields the puts of the parts that are missing or have another size; an empty payload is one empty part."""
        size = self.source.size
        for number, start in enumerate(range(0, max(size, 1), part_bytes), 1):
            part = self._slice(start, min(part_bytes, size - start), number)
            if there.get(number) == part.size:
                part.report(part.size)
            else:
                yield self._put(lambda number=number: self._part_url(upload_id, number), part, None)  # type: ignore[misc]

    def _put(self, fresh: Callable[[], Steps[Url]], body: Slice, known: Url | None) -> Steps[None]:
        """Puts these bytes, repeatedly until the store has them."""
        began_s, attempt = self.patience.monotonic_s(), 0
        while True:
            url = known or (yield from fresh())
            known = None
            body.report(0)
            failure = yield from self._try(url, body)
            if failure is None:
                return
            wait_s = self.patience.pause_s(attempt)
            late = self.patience.monotonic_s() + wait_s > began_s + self.patience.total_s
            attempt += 1
            if final(failure) or (late and attempt >= _TRIES):
                raise failure
            yield Pause(wait_s)

    def _try(self, url: Url, body: Slice) -> Steps[SeaweedqError | None]:
        """Puts once. Returns the error, if any. A broker's own URL is valid at every broker that the user named."""
        failure: SeaweedqError | None = None
        targets, parts = [url.url], urlsplit(url.url)
        if parts.path.startswith(f"{uploads_path(self.topic)}/"):
            targets += [f"{broker}{parts.path}?{parts.query}" for broker in self.brokers]
        for target in dict.fromkeys(targets):
            request = SignedRequest(target, url.method, url.headers, body, wait_s(body.size))
            try:
                reply: Reply = yield request
            except ConnectionFailed as error:
                failure = failure or error
                if error.fields.get("sent", True):
                    return failure
                continue
            if 200 <= reply.status < 300 or is_there(reply):
                return None
            what = f"part {url.number} of the upload" if url.number else "the upload"
            return refusal(reply, what)
        return failure

    def _slice(self, start: int, size: int, number: int = 0) -> Slice:
        return Slice(self.source, start, size, self.meter.reporter(number))

    def _url(self, upload_id: str) -> Steps[Url]:
        found = yield from self._find(upload_id)
        if found.url is None:
            raise UploadMismatch(
                f"upload {upload_id} accepts no more bytes, because it is no longer open", upload_id=upload_id
            )
        return Url(found.url, found.method, found.headers)

    def _part_url(self, upload_id: str, number: int) -> Steps[Url]:
        reply = yield from self._call("POST", f"/{quote(upload_id, safe='')}/parts", {"numbers": [number]})
        return _urls.decode(reply.body).parts[0]

    def _find(self, upload_id: str) -> Steps[UploadState]:
        reply = yield from self._call("GET", f"/{quote(upload_id, safe='')}")
        found = _upload_state.decode(reply.body)
        if found.url:
            found.url = urljoin(reply.url, found.url)
        return found

    def _call(
        self, method: str, path: str, body: object = None, wait_s: float = 0, params: Mapping[str, str] | None = None
    ) -> Steps[Reply]:
        # All of these may be repeated: a second upload that nobody knows of expires.
        content, headers = (b"", {}) if body is None else (encode(body), {"Content-Type": JSON})
        full = uploads_path(self.topic) + path
        request = Request(method, full, params or {}, content, headers, wait_s, repeatable=True)
        return (yield from self.patience.send(request))


def abort(topic: str, upload_id: str) -> Steps[None]:
    """Removes an upload that no message will name, if a broker can be reached."""
    try:
        yield Request("DELETE", f"{uploads_path(topic)}/{quote(upload_id, safe='')}", repeatable=True)
    except SeaweedqError:
        pass


Format = Literal["parquet", "ndjson", "arrow"]
# Hears how many rows are durable, and of how many; None while the file is still checked.
Rows = Callable[[int, int | None], None]
# A broker is asked to wait so long at a time: shorter if somebody watches the progress.
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
    """The rows of a file in one segment. Other messages may lie between the first and last offsets."""

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
        raise ValueError(
            f"{what} has none of the suffixes {', '.join(_SUFFIXES)}, so its format is unknown; give the format"
        )
    return _SUFFIXES[suffix]


def choose_format(what: object, format: Format | None, bare: bool) -> Format:
    """Returns the given format, else that of a path's suffix. Raises ValueError, before anything is uploaded."""
    found = format or format_of(os.fspath(what) if isinstance(what, str | os.PathLike) else "")
    check_format(found, bare)
    return found


def check_format(format: str, bare: bool) -> None:
    """Raises ValueError for an unknown format, and for `bare` with another format than NDJSON."""
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, not {format!r}")
    if bare and format != "ndjson":
        raise ValueError(f"`bare` can be used only with NDJSON, but the format is {format}")


def import_rows(
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


class WriteState(msgspec.Struct, frozen=True):
    """The newest write of a writer, with `uploads` uploads. `count` rows are durable so far, in `segments`; once
    `state` is `done`, all `rows` are. `duplicate` means that an earlier request started the write. `problem` is the
    reason why a `failed` write published nothing."""

    writer: str
    number: int
    state: Literal["checking", "running", "done", "failed"]
    uploads: int
    count: int
    rows: int | None
    segments: list[ImportedRows]
    duplicate: bool = False
    problem: dict[str, Any] | None = None


def write_rows(
    topic: str,
    writer: str,
    number: int,
    uploads: Sequence[str],
    format: str,
    bare: bool,
    drawn: bool,
    patience: Patience,
    wait_s: float | None = None,
) -> Steps[WriteState]:
    """Writes the rows of uploads as messages, once for this number of the writer, and waits until all are durable, or
    for `wait_s` seconds.

    Raises WriteOutOfOrder, TooManyWriters, and those of an import, with `writer` and `number` among their fields. After
    ConnectionFailed the write may continue: ask again.
    """
    check_format(format, bare)
    path = f"{write_path(topic, writer)}/{number}"
    content = encode({"uploads": list(uploads), "format": format, "bare": bare, "drawn": drawn})
    until_s = inf if wait_s is None else patience.monotonic_s() + wait_s
    while True:
        left_s = max(0, until_s - patience.monotonic_s())
        asked_s = ceil(min(MAX_WAIT_S, left_s))
        headers = {"Content-Type": JSON}
        try:
            reply: Reply = yield from patience.send(
                Request("PUT", path, {"wait_s": str(asked_s)}, content, headers, asked_s, repeatable=True)
            )
        except SeaweedqError as error:
            error.fields |= {"writer": writer, "number": number}
            raise
        answer = _write.decode(reply.body)
        if answer.state == "done" or left_s <= MAX_WAIT_S:
            return answer


def last_write(topic: str, writer: str) -> Steps[WriteState]:
    """Returns the newest write of a writer. Raises WriteNotFound."""
    return msgspec.convert((yield from call("GET", write_path(topic, writer), repeatable=True)), WriteState)


def writes(topic: str) -> Steps[list[WriteState]]:
    """Returns the newest write of each writer of a topic, by the writers' names."""
    return msgspec.convert((yield from pages(f"{topic_path(topic)}/writes", "writes")), list[WriteState])


_write = msgspec.json.Decoder(WriteState)
