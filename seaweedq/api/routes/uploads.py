"""Uploads: payloads that go to the store first. Their bytes pass a broker only where the store gives no URLs.

Every answer with a URL is as good as the right to use it: none is logged.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.api.asgi.openapi import broker_of, described, json_answer, read_request
from seaweedq.api.asgi.parameters import check_name
from seaweedq.api.routes.segment_map import moment
from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.rules import part_count
from seaweedq.coordination.records import TopicConfig, UploadRecord
from seaweedq.errors import InvalidRequest

router = APIRouter(tags=["uploads"])
PATH = "/v1/topics/{topic}/uploads"
ONE = PATH + "/{upload}"
MAX_NUMBERS = 100  # parts whose URLs one request gets
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(;[\x20-\x7e]{1,128})?")

Url = str | UnsetType
Headers = Mapping[str, str] | UnsetType


class UploadRequest(Struct, forbid_unknown_fields=True):
    """What is to be uploaded: bytes, their media type, and their SHA-256 in hex. Large ones come in parts where the
    store has them, unless `multipart` says otherwise."""

    size: Annotated[int, Meta(ge=0, le=2**60)]
    content_type: Annotated[str, Meta(max_length=255)] = "application/octet-stream"
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    multipart: bool | None = None


class PartsRequest(Struct, forbid_unknown_fields=True):
    """The parts whose URLs are wanted, by number, from 1 on."""

    numbers: Annotated[list[Annotated[int, Meta(ge=1, le=10_000)]], Meta(min_length=1, max_length=MAX_NUMBERS)]


class UploadAnswer(Struct):
    """A new upload. The bytes go to `url` with this method and exactly these headers; one in `parts` has a URL for
    each, asked for by number, and each but the last is of `part_bytes`. At `expires_at` it is too late to publish."""

    upload_id: str
    expires_at: datetime
    url: Url = UNSET
    method: Url = UNSET
    headers: Headers = UNSET
    part_bytes: int | UnsetType = UNSET
    parts: int | UnsetType = UNSET


class UploadPart(Struct):
    """A part that the store has."""

    number: int
    size: int


class UploadState(Struct):
    """An upload as it stands: `open`, with a fresh URL, or the parts that are there; `imported`; or `published`."""

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


class PartUrl(Struct):
    """Where a part goes."""

    number: int
    url: str
    method: str
    headers: Mapping[str, str]


class PartsAnswer(Struct):
    """Where the parts go."""

    parts: list[PartUrl]


_REQUEST = msgspec.json.Decoder(UploadRequest)
_PARTS = msgspec.json.Decoder(PartsRequest)
_ID = "20260131-0-9f86d081884c7d659a2feaa0c55ad015"
_URL = f"http://127.0.0.1:8080/v1/topics/flights/uploads/{_ID}/content?expires=1769864400&token=4c7d"
_HOW = {"url": _URL, "method": "PUT", "headers": {"content-type": "video/mp4"}}
_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
SHOWN = {
    "upload_id": _ID,
    "state": "open",
    "size": 73400320,
    "content_type": "video/mp4",
    "sha256": _SHA256,
    "expires_at": "2026-02-01T12:00:00Z",
    **_HOW,
}


@router.post(
    PATH,
    status_code=201,
    **described(
        UploadRequest,
        {201: UploadAnswer},
        (400, 404, 408, 409, 413, 415, 429),
        example={"size": 73400320, "content_type": "video/mp4", "sha256": _SHA256},
        shows={"upload_id": _ID, "expires_at": "2026-02-01T12:00:00Z", **_HOW},
        required=True,
    ),
)
async def create_upload(request: Request, topic: str) -> Response:
    """Begin an upload: where its bytes go. A message can name it once they are there. An unknown topic is created, as
    by a publish."""
    broker = broker_of(request)
    check_name(topic)
    wanted = await read_request(request, _REQUEST)
    if not _TYPE.fullmatch(wanted.content_type):
        detail = f"content_type is {wanted.content_type[:100]!r}, which is no media type such as text/plain"
        raise InvalidRequest(detail, field="content_type", value=wanted.content_type[:100])
    sha256 = wanted.sha256.lower() if wanted.sha256 else None
    if broker.core.catalog.find(topic) is None and broker.environment.settings.auto_create_topics:
        broker.joined.uploads.check_new(wanted.size, wanted.multipart, TopicConfig())
        await broker.joined.topics.create(topic, TopicConfig())
    found = await broker.core.catalog.known(topic)
    upload, record = await broker.joined.uploads.create(
        found, wanted.size, wanted.content_type, sha256, wanted.multipart
    )
    answer = UploadAnswer(upload, moment(record.expires_us))
    if record.parts is None:
        await _add_url(broker, found, upload, record, answer)
    else:
        answer.part_bytes, answer.parts = record.part_bytes or UNSET, part_count(record)
    return json_answer(answer, 201)


@router.get(ONE, **described(None, {200: UploadState}, (404, 409, 410), shows=SHOWN))
async def show_upload(request: Request, topic: str, upload: str) -> Response:
    """An upload: its state, and how to go on with it."""
    broker, found = await _topic(request, topic)
    record = (await broker.joined.uploads.find(found, upload)).record
    return json_answer(await _state(broker, found, upload, record))


@router.post(
    ONE + "/parts",
    **described(
        PartsRequest,
        {200: PartsAnswer},
        (400, 404, 408, 409, 410, 413, 415),
        example={"numbers": [1, 2]},
        shows={"parts": [{"number": 1, **_HOW}]},
        required=True,
    ),
)
async def sign_parts(request: Request, topic: str, upload: str) -> Response:
    """Where parts of an upload go: at most 100 at a time, in any order, and again."""
    broker, found = await _topic(request, topic)
    wanted = await read_request(request, _PARTS)
    record = (await broker.joined.uploads.find(found, upload)).record
    signed = [
        (number, await broker.joined.uploads.signed_part(found, upload, number, record)) for number in wanted.numbers
    ]
    return json_answer(PartsAnswer([PartUrl(number, s.url, s.method, s.headers) for number, s in signed]))


@router.post(ONE + "/complete", **described(None, {200: UploadState}, (404, 409, 410), shows=SHOWN))
async def complete_upload(request: Request, topic: str, upload: str) -> Response:
    """See that all bytes are there, and are those that were announced; parts are put together first. A publish does
    that as well; afterwards it need not."""
    broker, found = await _topic(request, topic)
    record = await broker.joined.uploads.complete(found, upload)
    return json_answer(await _state(broker, found, upload, record))


@router.delete(ONE, status_code=204, **described(None, {204: None}, (404, 409)))
async def abort_upload(request: Request, topic: str, upload: str) -> Response:
    """End an upload that no message names, and delete what is there of it."""
    broker, found = await _topic(request, topic)
    await broker.joined.uploads.abort(found, upload)
    return Response(status_code=204)


async def _topic(request: Request, topic: str) -> tuple[Broker, Topic]:
    broker = broker_of(request)
    return broker, await broker.core.catalog.known(check_name(topic))


async def _add_url(
    broker: Broker, topic: Topic, upload: str, record: UploadRecord, answer: UploadAnswer | UploadState
) -> None:
    signed = await broker.joined.uploads.signed(topic, upload, record)
    answer.url, answer.method, answer.headers = signed.url, signed.method, signed.headers


async def _state(broker: Broker, topic: Topic, upload: str, record: UploadRecord) -> UploadState:
    sha256 = record.sha256 or record.checked
    state = UploadState(upload, record.state, record.size, record.content_type, sha256, moment(record.expires_us))
    if record.part_bytes:
        state.part_bytes = record.part_bytes
    if record.state == "open" and record.parts is None:
        await _add_url(broker, topic, upload, record, state)
    elif record.state == "open":
        parts = await broker.joined.uploads.parts(topic, upload, record)
        state.parts = [UploadPart(part.number, part.size) for part in parts]
    return state
