"""Uploads: payloads that are stored before a message refers to them. The bytes pass through a broker only if the store
cannot sign URLs; they are then streamed, and never in memory as a whole.

Anyone who has a signed URL can use it, so no answer with a URL is logged. A request for bytes needs only the URL's
token for its method and payload. The token is checked before anything is looked up, so a request without a valid token
learns nothing about topics and uploads."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Self

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.access.rights import Action
from seaweedq.api.access.rates import opening
from seaweedq.api.connections.answers import StoredObject, send_object
from seaweedq.api.connections.memory import IncompleteBody
from seaweedq.api.connections.request_reader import RequestReader, StreamedBody
from seaweedq.api.handlers.topics import create, may_create
from seaweedq.api.parameters import PathTopic, RequestDep, check_name, json_answer, moment, query
from seaweedq.api.request import Answer, Request, Send
from seaweedq.api.routes import OF_BODIES, OF_CREATION, OF_TOPIC, OWN_RIGHT, STREAM, TOPIC, UPLOAD, Lead, Router, Takes
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.topics import Catalog, Topic, TopicAdmin
from seaweedq.broker.uploads import Uploads, check_write, incarnation_of, object_name, part_count, read_pieces
from seaweedq.coordination.records import TopicConfig, UploadRecord
from seaweedq.errors import (
    InvalidRequest,
    InvalidUpload,
    PayloadNotFound,
    PayloadTooLarge,
    TooManyUploads,
    UploadConflict,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)
from seaweedq.storage.interface import ObjectStore

router = Router("uploads")
MAX_NUMBERS = 100  # parts whose URLs one request gets
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(;[\x20-\x7e]{1,128})?")

_WRITE = query(
    "write",
    "the write that the upload is for: its writer and number",
    {"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,128}/(0|[1-9][0-9]{0,18})$"},
    check_write,
)

Url = str | UnsetType
Headers = Mapping[str, str] | UnsetType


class UploadRequest(Struct, forbid_unknown_fields=True):
    """The upload's size, media type and SHA-256 in hex. The broker checks the size and SHA-256 of the bytes.

    By default, uploads over `multipart_bytes` are sent in parts on S3. `multipart` overrides that: true gets 422 if the
    store does not support parts, and false gets 422 for more than 5 GiB on S3.
    """

    size: Annotated[int, Meta(ge=0, le=2**60)]
    content_type: Annotated[str, Meta(max_length=255)] = "application/octet-stream"
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}(?!\n)$")] | None = None
    multipart: bool | None = None


class PartsRequest(Struct, forbid_unknown_fields=True):
    """The numbers of the parts to sign URLs for, counted from 1."""

    numbers: Annotated[list[Annotated[int, Meta(ge=1, le=10_000)]], Meta(min_length=1, max_length=MAX_NUMBERS)]


class UploadAnswer(Struct):
    """A new upload. Send the bytes to `url` with this method and exactly these headers. If the upload has `parts`, each
    part has its own URL, which you request by number; every part except the last has `part_bytes` bytes. You can
    publish the upload until `expires_at`."""

    upload_id: str
    expires_at: datetime
    url: Url = UNSET
    method: Url = UNSET
    headers: Headers = UNSET
    part_bytes: int | UnsetType = UNSET
    parts: int | UnsetType = UNSET


class UploadPart(Struct):
    """A part that is already in the store."""

    number: int
    size: int


class UploadState(Struct):
    """An upload: `open` (with a fresh URL, or the parts that are already stored), `imported` or `published`. `write` is
    the write for which the upload is reserved."""

    upload_id: str
    state: str
    size: int
    content_type: str
    sha256: str | None
    expires_at: datetime
    url: Url = UNSET
    method: Url = UNSET
    headers: Headers = UNSET
    part_bytes: int | UnsetType = UNSET
    parts: list[UploadPart] | UnsetType = UNSET
    write: str | UnsetType = UNSET


class PartUrl(Struct):
    """The URL for one part."""

    number: int
    url: str
    method: str
    headers: Mapping[str, str]


class PartsAnswer(Struct):
    """The URLs for the requested parts."""

    parts: list[PartUrl]


_ID = "20260131-0-9f86d081884c7d659a2feaa0c55ad015"
_URL = f"http://127.0.0.1:8080/v1/topics/flights/uploads/{_ID}/content?expires=1769864400&token=4c7d"
_HOW = {"url": _URL, "method": "PUT", "headers": {"content-type": "video/mp4"}}
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_EXAMPLE = {"size": 73400320, "content_type": "video/mp4", "sha256": _SHA256}
_SHOWN = {
    "upload_id": _ID,
    "state": "open",
    "size": 73400320,
    "content_type": "video/mp4",
    "sha256": _SHA256,
    "expires_at": "2026-02-01T12:00:00Z",
    **_HOW,
}


@dataclass(frozen=True)
class UploadServices:
    """The services of these routes."""

    catalog: Catalog
    topics: TopicAdmin
    uploads: Uploads
    reader: RequestReader

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        return cls(broker.catalog, broker.topics, broker.uploading.uploads, parts.reader)

    async def is_open(self, topic: str, upload: str) -> bool:
        """Returns whether an upload can still be published for the first time."""
        found = self.catalog.get(topic)
        try:
            record = (await self.uploads.find(found, upload)).record if found else None
        except UploadNotFound:
            return False
        return record is not None and record.state == "open" and record.expires_us > self.reader.clock.now_us()


Services = Annotated[UploadServices, given(UploadServices)]


@router.route(
    "POST",
    f"{TOPIC}/uploads",
    Action.PUBLISH,
    "createUpload",
    "Begin an upload",
    answers={201: UploadAnswer},
    refuses=(
        *OF_BODIES,
        *OF_CREATION,
        UploadNotFound,
        UploadIncomplete,
        UploadConflict,
        PayloadTooLarge,
        UploadMismatch,
        InvalidUpload,
        TooManyUploads,
    ),
    shows={"upload_id": _ID, "expires_at": "2026-02-01T12:00:00Z", **_HOW},
    leads=(
        Lead(
            ("getUpload", "signParts", "completeUpload", "abortUpload"),
            {**OF_TOPIC, "upload": "$response.body#/upload_id"},
        ),
    ),
)
async def create_upload(
    services: Services,
    request: RequestDep,
    topic: PathTopic,
    write: Annotated[str | None, _WRITE],
    wanted: Annotated[UploadRequest, body(UploadRequest, _EXAMPLE, required=True)],
) -> Response:
    """Creates an upload, and returns the URL for its bytes. Once the bytes are stored, a message can refer to the
    upload.

    If the topic does not exist, it is created as in a publish. Send the bytes with the method and exactly the headers
    in the answer. The URL needs no token, because the URL itself is the permission: for `upload_url_s` seconds, it
    permits one method, for one object of one size. The URL points to the store on S3, and to the broker with a local
    store.

    With `write={writer}/{number}`, only the named write may use the upload. Such uploads count toward
    `max_write_uploads`, and all other uploads toward `max_open_uploads`. Uploads that are not published by `expires_at`
    are deleted."""
    if not _TYPE.fullmatch(wanted.content_type):
        detail = f"content_type must be a media type such as text/plain, not {wanted.content_type[:100]!r}"
        raise InvalidRequest(detail, field="content_type", value=wanted.content_type[:100])
    sha256 = wanted.sha256.lower() if wanted.sha256 else None
    is_unknown = services.catalog.get(topic) is None and services.reader.settings.auto_create_topics
    if is_unknown and await may_create(request, services.catalog, topic):
        services.uploads.check_new(wanted.size, wanted.multipart, TopicConfig())
        await create(request, services.topics, topic)
    found = await services.catalog.require(topic)
    async with opening(request, services.is_open) as opened:
        upload, record = await services.uploads.create(
            found, wanted.size, wanted.content_type, sha256, wanted.multipart, write or UNSET
        )
        opened(topic, upload)
    answer = UploadAnswer(upload, moment(record.expires_us))
    if record.parts is None:
        await _add_url(request, services.uploads, found, upload, record, answer)
    else:
        answer.part_bytes, answer.parts = record.part_bytes or UNSET, part_count(record)
    return json_answer(answer, 201)


@router.route(
    "GET",
    UPLOAD,
    Action.PUBLISH,
    "getUpload",
    "Get the state of an upload",
    answers={200: UploadState},
    refuses=(404, 409, 410),
    shows=_SHOWN,
    leads=(Lead(("abortUpload",), {**OF_TOPIC, "upload": "$request.path.upload"}),),
)
async def show_upload(services: Services, request: RequestDep, topic: PathTopic, upload: str) -> Response:
    """Returns an upload's state and, while the upload is open, a fresh URL or the parts that are already stored.

    Use this route to continue an interrupted upload."""
    found = await services.catalog.require(topic)
    record = (await services.uploads.find(found, upload)).record
    return json_answer(await _state(request, services.uploads, found, upload, record))


@router.route(
    "POST",
    f"{UPLOAD}/parts",
    Action.PUBLISH,
    "signParts",
    "Sign URLs for parts of an upload",
    answers={200: PartsAnswer},
    refuses=(*OF_BODIES, 404, 409, 410),
    shows={"parts": [{"number": 1, **_HOW}]},
)
async def sign_parts(
    services: Services,
    request: RequestDep,
    topic: PathTopic,
    upload: str,
    wanted: Annotated[PartsRequest, body(PartsRequest, {"numbers": [1, 2]}, required=True)],
) -> Response:
    """Signs URLs for parts of an upload, at most 100 per request. You can request URLs in any order and as often as you
    need, and upload parts in parallel."""
    found = await services.catalog.require(topic)
    record = (await services.uploads.find(found, upload)).record
    until_us, sign = request.caller.expires_us, services.uploads.signed_part
    signed = [(number, await sign(found, upload, number, record, until_us)) for number in wanted.numbers]
    return json_answer(PartsAnswer([PartUrl(number, s.url, s.method, s.headers) for number, s in signed]))


PUT_BYTES = 3 * 1024 * 1024  # a put holds so much in memory: chunks on their way to the disk
CHUNK_BYTES = 1024 * 1024
_OCTETS: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_SIGNED = [
    {"name": name, "in": "query", "schema": {"type": "string"}, "description": "from the signed URL"}
    for name in ("expires", "token")
]


class Received(msgspec.Struct):
    """The bytes that were received."""

    upload_id: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class UploadContent:
    """The routes, with the services that they use."""

    catalog: Catalog
    uploads: Uploads
    store: ObjectStore
    reader: RequestReader

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        return cls(broker.catalog, broker.uploading.uploads, broker.process.store, parts.reader)

    @router.route(
        "PUT",
        f"{UPLOAD}/content",
        OWN_RIGHT,
        "putContent",
        "Send the bytes of an upload",
        mode=STREAM,
        takes=Takes(_OCTETS),
        answers={201: Received},
        refuses=(403, 404, 405, 408, 409, 410),
        parameters=_SIGNED,
        shows={name: _SHOWN[name] for name in ("upload_id", "size", "sha256")},
    )
    async def put(self, request: Request, out: Send, topic: str, upload: str) -> Answer:
        """Receives the bytes of an upload to a local store. The answer is 201 once they are durable and match the
        announced size and SHA-256.

        Use the URL from the upload's answer. The URL's token is checked first, so a wrong token gets 403 whether or not
        the upload exists. The request needs a `content-length` equal to the upload's size; `content-encoding` is
        ignored. A repeated PUT with the same bytes gets 201 again. If two PUTs overlap, the later PUT gets 409, and can
        be repeated. A PUT that is interrupted, does not match, or sends nothing for `request_timeout_s` leaves nothing
        behind."""
        await self._check(request, "PUT", topic, upload)
        found = await self.catalog.require(topic)
        record = (await self.uploads.find(found, upload)).record
        _check_length(request, upload, record)
        body = request.receive
        assert isinstance(body, StreamedBody)
        held = IncompleteBody(body.dismiss, PUT_BYTES)
        try:
            record = await self.uploads.receive(found, upload, body.chunks(self.reader, held))
        finally:
            self.reader.bodies.release(held)
        return Answer(201, msgspec.json.encode(Received(upload, record.size, record.checked)))

    @router.route(
        "GET HEAD",
        f"{UPLOAD}/content",
        OWN_RIGHT,
        "getContent",
        "Get the bytes of a payload by its signed URL",
        mode=STREAM,
        answers={200: _OCTETS, 206: _OCTETS},
        refuses=(403, 405, 416, PayloadNotFound),
        parameters=_SIGNED,
    )
    async def get(self, request: Request, out: Send, topic: str, upload: str) -> Answer | None:
        """Returns a payload from a local store, or one range of its bytes (206). Use the URL from a message's
        reference.

        `HEAD` and `if-range` with the `etag` work. The content type is `application/octet-stream`; the reference has
        the payload's own type.
        """
        await self._check(request, "GET", topic, upload)
        name = object_name(topic, upload)
        try:
            size = await self.store.size(name)
        except FileNotFoundError:
            raise PayloadNotFound("the payload is not in the store", topic=topic, id=upload) from None
        read = partial(read_pieces, self.store, name, piece_bytes=CHUNK_BYTES)
        try:
            with self.reader.unread.streaming(2 * CHUNK_BYTES):
                stored = StoredObject(size, upload, "application/octet-stream", read)
                return await send_object(stored, request, out, self.reader.settings.answer_timeout_s)
        except FileNotFoundError:  # its topic was deleted meanwhile
            raise PayloadNotFound("the payload is no longer in the store", topic=topic, id=upload) from None

    async def _check(self, request: Request, method: str, topic: str, upload: str) -> None:
        """Raises InvalidName, and Forbidden if the URL has no valid token for this request."""
        check_name(topic)
        shown, name = request.query, object_name(topic, upload) if incarnation_of(upload) is not None else ""
        await self.uploads.own_urls.check(method, name, shown.get("expires", ""), shown.get("token", ""))


def _check_length(request: Request, upload: str, record: UploadRecord) -> None:
    size = request.content_length
    if size is None or request.header(b"transfer-encoding") is not None:
        raise InvalidRequest("the PUT of an upload needs the header Content-Length", field="content-length")
    if size != record.size:
        detail = f"the upload was created for {record.size} bytes, but Content-Length is {size}"
        raise UploadMismatch(detail, upload_id=upload, field="size", value=size, bound=record.size)


@router.route(
    "POST",
    f"{UPLOAD}/complete",
    Action.PUBLISH,
    "completeUpload",
    "Complete an upload",
    answers={200: UploadState},
    refuses=(*OF_BODIES, 404, 409, 410),
    shows=_SHOWN,
    leads=(Lead(("importUpload",), OF_TOPIC, {"upload_id": "$request.path.upload", "format": "ndjson"}),),
)
async def complete_upload(services: Services, request: RequestDep, topic: PathTopic, upload: str) -> Response:
    """Checks that all bytes are stored and match the announced size and SHA-256. Parts are joined first. The request
    can be repeated.

    Uploads in parts require this request; for all other uploads, a publish performs the same check. If the store has no
    SHA-256 of the whole object, the answer is delayed while a broker reads the object."""
    await services.reader.nothing(request)
    found = await services.catalog.require(topic)
    record = await services.uploads.complete(found, upload)
    return json_answer(await _state(request, services.uploads, found, upload, record))


@router.route(
    "DELETE", UPLOAD, Action.PUBLISH, "abortUpload", "Abort an upload", answers={204: None}, refuses=(404, 409)
)
async def abort_upload(services: Services, topic: PathTopic, upload: str) -> Response:
    """Ends an upload that was neither published nor imported, and deletes its bytes.

    If a write may still read the upload, the answer is 409 `upload-conflict`.
    """
    found = await services.catalog.require(topic)
    await services.uploads.abort(found, upload)
    return Response(status_code=204)


async def _add_url(
    request: Request,
    uploads: Uploads,
    topic: Topic,
    upload: str,
    record: UploadRecord,
    answer: UploadAnswer | UploadState,
) -> None:
    signed = await uploads.signed(topic, upload, record, request.caller.expires_us)
    answer.url, answer.method, answer.headers = signed.url, signed.method, signed.headers


async def _state(request: Request, uploads: Uploads, topic: Topic, upload: str, record: UploadRecord) -> UploadState:
    sha256 = record.sha256 or record.checked
    state = UploadState(upload, record.state, record.size, record.content_type, sha256, moment(record.expires_us))
    state.write = record.write
    if record.part_bytes:
        state.part_bytes = record.part_bytes
    if record.state == "open" and record.parts is None:
        await _add_url(request, uploads, topic, upload, record, state)
    elif record.state == "open":
        parts = await uploads.parts(topic, upload, record)
        state.parts = [UploadPart(part.number, part.size) for part in parts]
    return state
