"""Imports and writes: the rows of uploaded files become messages. broker/imports publishes them."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert

from seaweedq import errors
from seaweedq.access.rights import Action
from seaweedq.api.parameters import (
    MAX_NUMBER,
    SCHEMA_ID,
    PageToken,
    PathTopic,
    PathWriter,
    RequestDep,
    check_name,
    integer,
    json_answer,
    stated_version,
    whole_number,
)
from seaweedq.api.request import Request
from seaweedq.api.routes import OF_BODIES, OF_ROWS, OF_TOPIC, OF_UPLOADS, TOPIC, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.broker import Broker
from seaweedq.broker.topics import Topic
from seaweedq.coordination.records import ImportProblem, ImportRecord, WriteRecord
from seaweedq.errors import (
    InvalidImport,
    InvalidRequest,
    SchemaMismatch,
    SeaweedqError,
    TooManyWriters,
    WriteNotFound,
    WriteOutOfOrder,
)
from seaweedq.segments.layout import Format, identity
from seaweedq.traces import valid

router = Router("imports")
WAIT_S, MAX_WAIT_S = 30, 300
MAX_PAGE = 500


class ImportRequest(Struct, forbid_unknown_fields=True):
    """An uploaded file and its format. With `bare`, each line of an NDJSON file is itself a value; the default is the
    topic's `ndjson` setting."""

    upload_id: Annotated[str, Meta(min_length=1, max_length=127)]
    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool | UnsetType = UNSET


class ImportRows(Struct):
    """The file's rows in one segment. Messages from other publishers may lie between the first and last offsets."""

    segment: int
    first_offset: int
    last_offset: int
    count: int


class InvalidRowAnswer(Struct):
    """An invalid row, by its number in the file."""

    index: int
    reason: str


class ImportProblemAnswer(Struct):
    """The problem of a failed import, as the POST returns it. For a write, `upload_id` names the file that caused the
    failure. `errors` lists invalid rows; lists of imports omit `errors`. `invalid` is a lower bound for the number of
    invalid rows."""

    type: str
    title: str
    detail: str
    upload_id: str | UnsetType = UNSET
    errors: list[InvalidRowAnswer] | UnsetType = UNSET
    invalid: int | UnsetType = UNSET


class ImportAnswer(Struct):
    """An import in the state `checking`, `running`, `done` or `failed`. `count` rows are durable so far, in `segments`.
    The import is acknowledged once it is `done`. `rows` is the number of rows in the file, known after the check."""

    upload_id: str
    state: Literal["checking", "running", "done", "failed"]
    format: str
    count: int
    rows: int | None
    segments: list[ImportRows]
    broker: str | None
    problem: ImportProblemAnswer | UnsetType = UNSET


_REFUSES = (*OF_BODIES, *OF_UPLOADS, *OF_ROWS, InvalidImport, SchemaMismatch)
_EXAMPLE = {"upload_id": "20260131-0-5f2b8a6c", "format": "parquet"}
_WRITE = {"uploads": ["20260131-0-5f2b8a6c", "20260131-0-90d1e2f3"], "format": "parquet"}
_WRITTEN = {
    "writer": "nightly",
    "number": 17,
    "state": "done",
    "format": "parquet",
    "uploads": 2,
    "count": 2,
    "rows": 2,
    "segments": [{"segment": 0, "first_offset": 17, "last_offset": 18, "count": 2}],
    "broker": None,
    "duplicate": False,
}
_SHOWN = {
    "upload_id": "20260131-0-5f2b8a6c",
    "state": "done",
    "format": "parquet",
    "count": 2,
    "rows": 2,
    "segments": [{"segment": 0, "first_offset": 17, "last_offset": 18, "count": 2}],
    "broker": None,
}


class WriteRequest(Struct, forbid_unknown_fields=True):
    """The uploads of a write, in row order, and their format. Each upload must have been created for this writer and
    number. `bare` works as in an import. With `drawn`, the writer's name is random and used only for this write, so the
    topic remembers the writer for one day instead of 30."""

    uploads: Annotated[list[Annotated[str, Meta(min_length=1, max_length=127)]], Meta(min_length=1)]
    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool | UnsetType = UNSET
    drawn: bool = False


class WriteAnswer(Struct):
    """A write of `uploads` files. `count` rows are durable so far, in `segments`. The write is acknowledged once it is
    `done`. `rows` is the number of rows in all files, known after the check. `duplicate` means that an earlier request
    started the write."""

    writer: str
    number: int
    state: Literal["checking", "running", "done", "failed"]
    format: str
    uploads: int
    count: int
    rows: int | None
    segments: list[ImportRows]
    broker: str | None
    duplicate: bool | UnsetType = UNSET
    problem: ImportProblemAnswer | UnsetType = UNSET


class WriteList(Struct):
    """One page of writes. `next_page_token` is present if more follow."""

    writes: list[WriteAnswer]
    next_page_token: str | UnsetType = UNSET


@dataclass(frozen=True)
class ImportServices:
    """The services of these routes."""

    broker: Broker

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.broker)

    def traceparent(self, request: Request) -> str | None:
        """Returns the context that the rows get, if this broker makes spans."""
        return valid(request.header(b"traceparent")) if self.broker.process.traces is not None else None

    async def version(self, topic: Topic, stated: int | None) -> int | None:
        """Returns the version that a request states for its files. Raises SchemaMismatch if there is no such version,
        or a later one has dropped some field of it; InvalidRequest for a topic without a schema."""
        if stated is None:
            return None
        layout = await self.broker.schemas.pinned(topic, stated)
        there = {*map(identity, topic.layout.values)}
        if gone := [one.name for one in layout.values if identity(one) not in there]:
            detail = (
                f"version {stated} of the schema of topic {topic.name!r} has the field {gone[0]!r}, which a later "
                "version has dropped; send the Schema-Id of a version without this field"
            )
            newest = topic.layout.schema_id
            raise SchemaMismatch(detail, topic=topic.name, schema_id=newest, field=gone[0])
        return stated


Services = Annotated[ImportServices, given(ImportServices)]


@router.route(
    "POST",
    f"{TOPIC}/imports",
    Action.PUBLISH,
    "importUpload",
    "Import a file's rows as messages",
    answers={200: ImportAnswer, 202: ImportAnswer},
    refuses=_REFUSES,
    parameters=[SCHEMA_ID],
    shows=_SHOWN,
    leads=(Lead(("getImport",), {**OF_TOPIC, "upload": "$response.body#/upload_id"}),),
    lasts=True,
)
async def import_upload(
    services: Services,
    request: RequestDep,
    topic: PathTopic,
    wait_s: Annotated[int, integer("wait_s", 0, MAX_WAIT_S, "how long to wait for completion, in seconds", WAIT_S)],
    asked: Annotated[ImportRequest, body(ImportRequest, _EXAMPLE, required=True)],
) -> Response:
    """Publishes every row of an uploaded file as a message. The answer is 200 once all rows are durable, or 202 while
    the import is running.

    The broker checks the whole file before it publishes the first row. If a row is invalid, no row is published, and
    every repeat gets the same answer. Rows are published in file order, in batches. An upload is imported once: a
    repeated request joins the running import or returns its result, and a repeat with another `format` or another
    `Schema-Id` gets 409. `Schema-Id` names the version of the schema that the file has; the broker answers 409
    `schema-mismatch` if no such version exists, or a later version dropped one of its fields.
    Columns and lines are the same as in a publish request; `_offset` and `_reference` are not allowed.

    The broker answers 422 with one of three problems: `invalid-messages` lists the first 100 invalid rows (or lines,
    counted from 0); `invalid-import` means that the file cannot be read, or needs too much memory or time;
    `invalid-request` means that a column does not match the topic.
    """
    check_name(asked.upload_id, "upload")
    found = await services.broker.catalog.require(topic)
    bare = _bare(found, asked.format, asked.bare)
    version = await services.version(found, stated_version(request))
    traceparent = services.traceparent(request)
    record = await services.broker.importing.begin(found, asked.upload_id, asked.format, bare, version, traceparent)
    if record.state in ("checking", "running"):
        record = await request.while_there(services.broker.importing.wait(found, asked.upload_id, wait_s))
    if record.problem is not None:
        raise error_of(record.problem)
    return json_answer(_answer(asked.upload_id, record), 200 if record.state == "done" else 202)


@router.route(
    "GET",
    f"{TOPIC}/imports/{{upload}}",
    Action.PUBLISH,
    "getImport",
    "Get the state of an import",
    answers={200: ImportAnswer},
    refuses=(404, 409),
    shows=_SHOWN,
)
async def show_import(services: Services, topic: PathTopic, upload: str) -> Response:
    """Returns the state of an import, with `problem` if it failed. The broker keeps it until one day after the upload
    expires."""
    check_name(upload, "upload")
    found = await services.broker.catalog.require(topic)
    return json_answer(_answer(upload, await services.broker.importing.show(found, upload)))


@router.route(
    "PUT",
    f"{TOPIC}/writes/{{writer}}/{{number}}",
    Action.PUBLISH,
    "putWrite",
    "Publish rows of many uploaded files exactly once",
    answers={200: WriteAnswer, 202: WriteAnswer},
    refuses=(*_REFUSES, WriteOutOfOrder, TooManyWriters),
    parameters=[SCHEMA_ID],
    shows=_WRITTEN,
    leads=(Lead(("getWrite",), {**OF_TOPIC, "writer": "$request.path.writer"}),),
    lasts=True,
)
async def put_write(
    services: Services,
    request: RequestDep,
    topic: PathTopic,
    writer: PathWriter,
    number: str,
    wait_s: Annotated[int, integer("wait_s", 0, MAX_WAIT_S, "how long to wait for completion, in seconds", WAIT_S)],
    asked: Annotated[WriteRequest, body(WriteRequest, _WRITE, required=True)],
) -> Response:
    """Publishes every row of the uploaded files as a message, exactly once for each pair of a writer and a number, even
    if a repeated request names other uploads. The answer is 200 once all rows are durable, or 202 while the write is
    running.

    Use this route for jobs that may run again and upload their files again. `writer` identifies the job. The writer's
    numbers must rise from write to write, and may have gaps. The broker checks all files before it publishes the first
    row. Rows are published in file order, in batches.

    - A request with a repeated number joins the running write or returns its result, with `duplicate`. The broker
      ignores the request's own uploads.
    - A failed write publishes no row. The answer is a problem; `upload_id` names the file if a single file is the
      cause. A repeat with the same uploads returns the same problem. A repeat with other uploads runs the write again.
    - `Schema-Id` works as in an import; the broker ignores the `Schema-Id` of a repeat.
    - If the number is below the writer's newest number, the broker answers 409 `write-out-of-order`.
    - If the number is higher and the writer's previous write is still running, the broker waits up to `wait_s` for the
      previous write to end, and then answers 503 `not-ready`.

    A topic remembers at most 10,000 writers, each for 30 days after the writer's last write (one day if the name was
    `drawn`). After that, a repeated number counts as a new write."""
    uploads, named = asked.uploads, whole_number(number, "number", 0, MAX_NUMBER)
    for upload in uploads:
        check_name(upload, "upload")
    limit = services.broker.process.settings.max_write_uploads
    if len(uploads) > limit:
        detail = f"the write names {len(uploads)} uploads; max_write_uploads is {limit}"
        raise InvalidRequest(detail, field="uploads", value=len(uploads), bound=limit)
    if len(set(uploads)) < len(uploads):
        raise InvalidRequest(
            "the field `uploads` contains the same upload more than once; name each upload only once", field="uploads"
        )
    found = await services.broker.catalog.require(topic)
    bare = _bare(found, asked.format, asked.bare)
    version = await services.version(found, stated_version(request))
    over = services.broker.writing.write(
        found, writer, named, uploads, asked.format, bare, asked.drawn, wait_s, version, services.traceparent(request)
    )
    record, begun = await request.while_there(over)
    if record.problem is not None:
        raise error_of(record.problem)
    answer = _written(writer, record)
    answer.duplicate = not begun
    return json_answer(answer, 200 if record.state == "done" else 202)


@router.route(
    "GET",
    f"{TOPIC}/writes",
    Action.PUBLISH,
    "listWrites",
    "List the newest write of each writer",
    answers={200: WriteList},
    refuses=(400, 404, 409),
    shows={"writes": [_WRITTEN]},
)
async def list_writes(
    services: Services,
    topic: PathTopic,
    size: Annotated[int, integer("page_size", 1, MAX_PAGE, "maximum number of writers", MAX_PAGE)],
    after: PageToken,
) -> Response:
    """Lists the newest write of each writer, sorted by name, page by page. The list does not acknowledge writes: to
    know whether a write is durable, request its writer."""
    found = await services.broker.catalog.require(topic)
    writes, more = await services.broker.writing.page(found, after, size)
    page = WriteList([_written(writer, record, whole=False) for writer, record in writes])
    if more is not None:
        page.next_page_token = more
    return json_answer(page)


@router.route(
    "GET",
    f"{TOPIC}/writes/{{writer}}",
    Action.PUBLISH,
    "getWrite",
    "Get the newest write of a writer",
    answers={200: WriteAnswer},
    refuses=(404, 409, WriteNotFound),
    shows=_WRITTEN,
)
async def show_write(services: Services, topic: PathTopic, writer: PathWriter) -> Response:
    """Returns the state of the writer's newest write."""
    found = await services.broker.catalog.require(topic)
    return json_answer(_written(writer, await services.broker.writing.show(found, writer)))


def _bare(topic: Topic, format: str, bare: bool | UnsetType) -> bool:
    """Returns whether each line of a file is a bare value. Raises InvalidRequest."""
    if bare is UNSET:
        return format == "ndjson" and topic.record.config.lines_are_bare
    if bare and (format != "ndjson" or topic.layout.format is Format.BYTES):
        raise InvalidRequest(
            "`bare` can be used only for NDJSON files, and only on json and typed topics", field="bare"
        )
    return bool(bare)


def error_of(problem: ImportProblem) -> SeaweedqError:
    """Rebuilds the error that ended an import."""
    kind = errors.by_slug().get(problem.slug, errors.InvalidImport)
    if not issubclass(kind, errors.BadRequest):  # the reader of a hostile file may say anything
        kind = errors.InvalidImport
    error: SeaweedqError = kind(problem.detail)
    error.fields.update(problem.fields)
    return error


def _rows(record: ImportRecord | WriteRecord) -> list[ImportRows]:
    return [ImportRows(one.segment, one.first_offset, one.last_offset, one.count) for one in record.segments]


def _problem(record: ImportRecord | WriteRecord, whole: bool = True) -> ImportProblemAnswer | UnsetType:
    if record.problem is None:
        return UNSET
    error = error_of(record.problem)
    names = ("upload_id", "errors", "invalid") if whole else ("upload_id",)
    told = {name: error.fields[name] for name in names if name in error.fields}
    given = {"type": f"/problems/{error.slug}", "title": error.title, "detail": error.detail}
    try:
        return convert({**given, **told}, ImportProblemAnswer)
    except ValidationError:  # the reader of a hostile file may say anything
        return convert(given, ImportProblemAnswer)


def _answer(upload_id: str, record: ImportRecord) -> ImportAnswer:
    return ImportAnswer(
        upload_id,
        record.state,
        record.format,
        record.rows_done,
        record.rows,
        _rows(record),
        record.broker,
        _problem(record),
    )


def _written(writer: str, record: WriteRecord, whole: bool = True) -> WriteAnswer:
    return WriteAnswer(
        writer,
        record.number,
        record.state,
        record.format,
        record.uploads,
        record.rows_done,
        record.rows,
        _rows(record),
        record.broker,
        problem=_problem(record, whole),
    )
