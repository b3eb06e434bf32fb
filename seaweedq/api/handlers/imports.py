"""Importing: uploaded files whose rows become messages, which broker/imports publishes."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq import errors
from seaweedq.access.rights import Action
from seaweedq.api.parameters import PathTopic, check_name, integer, json_answer
from seaweedq.api.routes import OF_BODIES, OF_TOPIC, TOPIC, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.broker import Broker
from seaweedq.coordination.records import ImportProblem, ImportRecord
from seaweedq.errors import (
    InvalidImport,
    InvalidRequest,
    InvalidUpload,
    MessageTooLarge,
    PartlyTaken,
    SeaweedqError,
    SequenceOutOfOrder,
    UploadConflict,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)
from seaweedq.segments.layout import Format

router = Router("imports")
WAIT_S, MAX_WAIT_S = 30, 300


class ImportRequest(Struct, forbid_unknown_fields=True):
    """An uploaded file and its format. With `bare`, by default the topic's `ndjson`, each line of an NDJSON file is
    itself the value."""

    upload_id: Annotated[str, Meta(min_length=1, max_length=127)]
    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool | UnsetType = UNSET


class ImportRows(Struct):
    """Rows of the file in one segment; those of others may lie between the first offset and the last."""

    segment: int
    first_offset: int
    last_offset: int
    count: int


class ImportProblemAnswer(Struct):
    """The reason for which an import has failed: the problem that its POST answers with."""

    type: str
    title: str
    detail: str


class ImportAnswer(Struct):
    """An import. `count` of its rows are durable, in `segments`; with `done` it is acknowledged. `rows` counts the
    file's rows, once it was checked."""

    upload_id: str
    state: Literal["checking", "running", "done", "failed"]
    format: str
    count: int
    rows: int | None
    segments: list[ImportRows]
    broker: str | None
    problem: ImportProblemAnswer | UnsetType = UNSET


_EXAMPLE = {"upload_id": "20260131-0-5f2b8a6c", "format": "parquet"}
_SHOWN = {
    "upload_id": "20260131-0-5f2b8a6c",
    "state": "done",
    "format": "parquet",
    "count": 2,
    "rows": 2,
    "segments": [{"segment": 0, "first_offset": 17, "last_offset": 18, "count": 2}],
    "broker": None,
}


@dataclass(frozen=True)
class ImportServices:
    """The services of these routes."""

    broker: Broker

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.broker)


Services = Annotated[ImportServices, given(ImportServices)]


@router.route(
    "POST",
    f"{TOPIC}/imports",
    Action.PUBLISH,
    "importUpload",
    "Import a file's rows as messages",
    answers={200: ImportAnswer, 202: ImportAnswer},
    refuses=(
        *OF_BODIES,
        UploadNotFound,
        SequenceOutOfOrder,
        UploadIncomplete,
        UploadConflict,
        UploadExpired,
        MessageTooLarge,
        UploadMismatch,
        InvalidUpload,
        InvalidImport,
        PartlyTaken,
    ),
    shows=_SHOWN,
    leads=(Lead(("getImport",), {**OF_TOPIC, "upload": "$response.body#/upload_id"}),),
)
async def import_upload(
    services: Services,
    topic: PathTopic,
    wait_s: Annotated[int, integer("wait_s", 0, MAX_WAIT_S, "seconds to wait for its end", WAIT_S)],
    asked: Annotated[ImportRequest, body(ImportRequest, _EXAMPLE, required=True)],
) -> Response:
    """Publishes every row of an uploaded file as a message: 200 once all are durable, 202 while the import runs.

    The same request again joins the import, or returns its result.
    """
    check_name(asked.upload_id, "upload")
    found = await services.broker.catalog.require(topic)
    bare = asked.bare
    if bare is UNSET:
        bare = asked.format == "ndjson" and found.record.config.lines_are_bare
    if bare and (asked.format != "ndjson" or found.layout.format is Format.BYTES):
        raise InvalidRequest("bare is only for NDJSON files, on json and typed topics", field="bare")
    record = await services.broker.importing.begin(found, asked.upload_id, asked.format, bare)
    if record.state in ("checking", "running"):
        record = await services.broker.importing.wait(found, asked.upload_id, wait_s)
    if record.problem is not None:
        raise error_of(record.problem)
    return json_answer(_answer(asked.upload_id, record), 200 if record.state == "done" else 202)


@router.route(
    "GET",
    f"{TOPIC}/imports/{{upload}}",
    Action.PUBLISH,
    "getImport",
    "Get an import",
    answers={200: ImportAnswer},
    refuses=(404, 409),
    shows=_SHOWN,
)
async def show_import(services: Services, topic: PathTopic, upload: str) -> Response:
    """Returns the state of an import."""
    check_name(upload, "upload")
    found = await services.broker.catalog.require(topic)
    return json_answer(_answer(upload, await services.broker.importing.show(found, upload)))


def error_of(problem: ImportProblem) -> SeaweedqError:
    """Returns the error that ended an import, as it was raised."""
    kind = errors.by_slug().get(problem.slug, errors.InvalidImport)
    if not issubclass(kind, errors.BadRequest):  # the reader of a hostile file may say anything
        kind = errors.InvalidImport
    error: SeaweedqError = kind(problem.detail)
    error.fields.update(problem.fields)
    return error


def _answer(upload_id: str, record: ImportRecord) -> ImportAnswer:
    segments = [ImportRows(one.segment, one.first_offset, one.last_offset, one.count) for one in record.segments]
    problem: Any = UNSET
    if record.problem is not None:
        error = error_of(record.problem)
        problem = ImportProblemAnswer(f"/problems/{error.slug}", error.title, error.detail)
    return ImportAnswer(
        upload_id,
        record.state,
        record.format,
        record.rows_done,
        record.rows,
        segments,
        record.broker,
        problem,
    )
