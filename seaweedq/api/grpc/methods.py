"""The methods: each is a request of one route, made of a message, and messages that are made of its answer. Pure.

Names are checked before they become part of a path. The right, costs, audit and metrics of a call are those of the
route.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2

from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.api.grpc.statuses import status_of_problem
from seaweedq.api.grpc.translation import document_of, fill, finite, moment
from seaweedq.api.parameters import check_name
from seaweedq.api.routes import SEGMENT, SOCKET, SUBSCRIPTION, TOPIC
from seaweedq.errors import InvalidRequest, UnreadableBody
from seaweedq.json_reasons import in_words
from seaweedq.rows.bodies import ARROW, JSON
from seaweedq.rows.intake import MAX_INVALID, check_count, refuse
from seaweedq.rows.json_values import MAX_DEPTH
from seaweedq.segments.layout import Format

OF_START = ("consumer", "max_in_flight", "credits")  # fields that are parameters of the stream's route
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER = msgspec.json.Encoder()


class Outgoing(NamedTuple):
    """A request of a route: what ASGI says of it, and its body."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Incoming(NamedTuple):
    """The answer of a route."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Unary:
    """A method. `request` makes the request of a message, and `answer` fills the message of an answer; both may raise
    InvalidRequest. One that `lasts` ends with its call; any other goes on without it. The request of one `by_format` is
    made with the format of its topic as well. One that `repeats` takes any number of messages, and answers each."""

    name: str
    takes: type[Message]
    gives: type[Message]
    request: Callable[..., Outgoing]
    answer: Callable[[Any, Incoming], None]
    lasts: bool = False
    by_format: bool = False
    repeats: bool = False


MESSAGE_BYTES, ENTRY_BYTES = 150, 120  # of a message, and of an entry of its headers, while they are converted
INLINE_BYTES = 16 * 1024  # of a message that is converted on the event loop
ANSWER_COPIES = 4
COPIES = 3  # of what a message has: protobuf's, and those of the route's body


def needed(content: bytes) -> int:
    """Returns how many bytes the conversion of a request may need at most: an empty message takes two bytes of it. The
    tags of messages and of headers are counted wherever they stand, also within values."""
    return COPIES * len(content) + MESSAGE_BYTES * content.count(b"\x12") + ENTRY_BYTES * content.count(b"\x1a")


def _path(template: str, message: Any) -> str:
    path = template.replace("{topic}", check_name(message.topic))
    if "{subscription}" in path:
        path = path.replace("{subscription}", check_name(message.subscription, "subscription"))
    return path.replace("{segment}", str(message.segment)) if "{segment}" in path else path


def _document(message: Any) -> bytes:
    document = document_of(message)
    document.pop("topic", None)
    document.pop("subscription", None)
    return _ENCODER.encode(document)


def _managing(name: str, method: str, template: str, into: str = "") -> Unary:
    """Returns a method of AdminService. The answer fills the response, or its field `into`."""

    def request(message: Any) -> Outgoing:
        has_body = method in ("PUT", "PATCH", "POST")
        headers = ((b"content-type", b"application/json"),) if has_body else ()
        return Outgoing(method, _path(template, message), "", _document(message) if has_body else b"", headers)

    def answer(message: Any, found: Incoming) -> None:
        if not found.body:
            return
        document = msgspec.json.decode(found.body)
        fill(message, {into: document} if into else document)
        if "created" in message.DESCRIPTOR.fields_by_name:
            message.created = found.status == 201

    return Unary(name, getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"), request, answer)


def _list_topics(message: Any) -> Outgoing:
    size = f"page_size={message.page_size}" if message.page_size else ""
    if not message.page_token:
        return Outgoing("GET", "/v1/topics", size)
    token = f"page_token={check_name(message.page_token, 'topic')}"
    return Outgoing("GET", "/v1/topics", f"{size}&{token}" if size else token)


def _list_answer(message: Any, found: Incoming) -> None:
    fill(message, msgspec.json.decode(found.body))


class _Raw(msgspec.Struct):
    """A message in an answer."""

    id: str
    key: str | None
    headers: dict[str, str]
    timestamp: datetime
    segment: int
    offset: int
    value: msgspec.Raw = msgspec.Raw()
    value_base64: str | None = None
    reference: dict[str, Any] | None = None
    attempt: int = 0


class _Fetched(msgspec.Struct):
    """The answer of a fetch."""

    messages: list[_Raw]
    next_offset: int
    sealed: bool
    successors: list[int]


class _Published(msgspec.Struct):
    """The answer of a publish."""

    count: int
    segments: list[dict[str, int]]
    ids: list[str] = []
    duplicate: bool = False


class _Streams(msgspec.Struct):
    """The additions to a publish's answer that counts streams."""

    streams: int
    silent_brokers: int


_FETCHED, _PUBLISHED = msgspec.json.Decoder(_Fetched), msgspec.json.Decoder(_Published)
_STREAMS = msgspec.json.Decoder(_Streams)
_MESSAGES = f"{TOPIC}/messages"
_ONE_VALUE = msgspec.json.Decoder(msgspec.Raw)


def _fetch(message: Any) -> Outgoing:
    query = f"offset={message.offset}&wait_s={message.wait_s:.6f}"
    if message.limit:
        query += f"&limit={message.limit}"
    if message.keep_expired:
        query += "&expired=keep"
    headers = ((b"accept", ARROW.encode()),) if message.arrow else ()
    return Outgoing("GET", _path(f"{SEGMENT}/messages", message), query, b"", headers)


def _fetched(message: Any, found: Incoming) -> None:
    if found.headers.get("content-type", "").startswith(ARROW):
        message.arrow = found.body
        message.next_offset = int(found.headers["next-offset"])
        message.sealed = found.headers.get("sealed") == "true"
        message.successors.extend(int(one) for one in found.headers.get("successors", "").split(",") if one)
        return
    fetched = _FETCHED.decode(found.body)
    message.next_offset, message.sealed = fetched.next_offset, fetched.sealed
    message.successors.extend(fetched.successors)
    for one in fetched.messages:
        _fill_message(message.messages.add(), one)


def _fill_message(message: Any, one: _Raw) -> None:
    message.id, message.segment, message.offset, message.attempt = one.id, one.segment, one.offset, one.attempt
    if one.key is not None:
        message.key = one.key
    if one.reference is not None:
        fill(message.reference, one.reference)
    else:
        message.value = bytes(one.value) if one.value_base64 is None else b64decode(one.value_base64)
    if one.headers:
        message.headers.update(one.headers)
    since = one.timestamp - _EPOCH
    message.timestamp.seconds = since.days * 86_400 + since.seconds
    message.timestamp.nanos = since.microseconds * 1000


class _Part(msgspec.Struct):
    """A frame of a topic's WebSocket, unless it is the last one."""

    positions: str
    messages: list[_Raw] = []


class _Bye(msgspec.Struct):
    """The last frame of a WebSocket."""

    bye: msgspec.Raw


_PART, _BYE = msgspec.json.Decoder(_Part), msgspec.json.Decoder(_Bye)
_LAST = b'{"bye":'


def _read(message: Any) -> Outgoing:
    kind = message.WhichOneof("start")
    start = moment(message.timestamp, kind) if kind == "timestamp" else getattr(message, kind) if kind else "latest"
    return Outgoing(SOCKET, _path(f"{TOPIC}/stream", message), urlencode({"start": start}))


def _part(message: Any, frame: bytes) -> None:
    part = _PART.decode(frame)
    message.positions = part.positions
    for one in part.messages:
        _fill_message(message.messages.add(), one)


def problem_of_last(frame: bytes) -> bytes | None:
    """Returns the problem with which a stream ends, if this is its last frame."""
    return bytes(_BYE.decode(frame).bye) if frame.startswith(_LAST) else None


def _subscribe(message: Any) -> Outgoing:
    if message.WhichOneof("request") != "start":
        raise InvalidRequest("the first message of the stream must set the field `start`", field="start")
    start = message.start
    given = [(name, getattr(start, name)) for name in OF_START if start.HasField(name)]
    return Outgoing(SOCKET, _path(f"{SUBSCRIPTION}/stream", start), urlencode(given))


def _said(message: Any) -> str:
    """Returns a message of a subscription's client as that of a WebSocket."""
    verb = message.WhichOneof("request")
    if verb in (None, "start"):
        raise InvalidRequest(
            f"after the first message of the stream, each message must set ack, nack, extend or credit, not {verb}",
            field="start" if verb else "request",
        )
    said = {verb: document_of(getattr(message, verb), f"{verb}."), "traceparent": message.traceparent}
    return _ENCODER.encode(said).decode()


class _Leased(msgspec.Struct):
    """A frame of a subscription's WebSocket, unless it is the last one."""

    messages: list[_Raw] = []
    lease: str = ""
    acked: int | None = None
    nacked: int | None = None
    extended: int | None = None
    credits: int | None = None
    late: int = 0
    unknown: list[str] = []
    error: msgspec.Raw = msgspec.Raw()


_LEASED = msgspec.json.Decoder(_Leased)


def _leased(message: Any, frame: bytes) -> None:
    part = _LEASED.decode(frame)
    if content := bytes(part.error):
        refusal = status_of_problem(msgspec.json.decode(content)["status"], {}, content)
        info = error_details_pb2.ErrorInfo()
        refusal.details[0].Unpack(info)
        message.refusal.code, message.refusal.message = refusal.code, refusal.message
        message.refusal.reason = info.reason
        message.refusal.metadata.update(info.metadata)
    elif part.acked is not None:
        message.acked.acked, message.acked.late = part.acked, part.late
        message.acked.unknown.extend(part.unknown)
    elif part.nacked is not None:
        message.nacked.nacked = part.nacked
        message.nacked.unknown.extend(part.unknown)
    elif part.extended is not None:
        message.extended.extended = part.extended
        message.extended.unknown.extend(part.unknown)
    elif part.credits is not None:
        message.credited.credits = part.credits
    else:
        message.delivery.lease = part.lease
        for one in part.messages:
            _fill_message(message.delivery.messages.add(), one)


def publishing(message: Any) -> Outgoing:
    """Returns the request of a publish without what is published. Raises InvalidName."""
    return Outgoing("POST", _MESSAGES.replace("{topic}", check_name(message.topic)))


def _publish(message: Any, format: Format) -> Outgoing:
    options = []
    if message.format:
        options.append(f"format={check_name(message.format, 'format')}")
    headers = []
    if message.HasField("producer_id"):
        headers.append((b"producer-id", check_name(message.producer_id, "producer").encode()))
    if message.HasField("producer_sequence"):
        headers.append((b"producer-sequence", b"%d" % message.producer_sequence))
    if message.HasField("schema_id"):
        headers.append((b"schema-id", b"%d" % message.schema_id))
    if message.arrow:
        if message.messages:
            raise InvalidRequest(
                "the request sets both of the fields messages and arrow; set only one of them", field="arrow"
            )
        if getattr(message, "return_ids", False):
            options.append("ids=true")
        body, media = message.arrow, ARROW
    else:
        body, media = _envelopes(message, format), JSON
    fields = (b"content-type", media.encode()), *headers
    return Outgoing("POST", publishing(message).path, "&".join(options), body, fields)


def _broadcast(message: Any, format: Format) -> Outgoing:
    outgoing = _publish(message, format)
    return outgoing._replace(query=f"{outgoing.query}&count=true" if outgoing.query else "count=true")


def _envelopes(request: Any, format: Format) -> bytes:
    messages = request.messages
    if len(messages) == 1:
        return _ENCODER.encode(_envelope(messages[0], 0, format))
    if not messages:
        raise InvalidRequest(
            "the request publishes nothing: it sets neither the field `messages` nor the field `arrow`",
            field="messages",
        )
    check_count(len(messages))
    body, errors = bytearray(b'{"messages":['), list[tuple[int, str]]()
    for at, one in enumerate(messages):  # one after the other: all together would take many times their bytes
        try:
            _ENCODER.encode_into(_envelope(one, at, format), body, -1)
            body += b","
        except InvalidRequest as error:
            errors.append((at, error.detail.removeprefix(f"messages[{at}]").lstrip(": .")))
            if len(errors) == MAX_INVALID:
                break
    refuse(errors, at_least=len(errors) == MAX_INVALID)
    body[-1:] = b"]}"
    return bytes(body)


def _envelope(one: Any, at: int, format: Format) -> dict[str, Any]:
    """Returns a message as HTTP takes it. Its value is embedded, so it has to be one JSON value and nothing more."""
    found: dict[str, Any] = {}
    if one.upload_id:
        if one.value:
            detail = f"messages[{at}] must have either a value or an upload_id, not both"
            raise InvalidRequest(detail, field=f"messages[{at}].upload_id")
        found["reference"] = {"upload_id": one.upload_id}
    elif format is Format.BYTES:
        found["value_base64"] = b64encode(one.value).decode()
    else:
        found["value"] = _json_value(one.value, at)
    if one.HasField("key"):
        found["key"] = one.key
    if one.headers:
        found["headers"] = dict(one.headers)
    if one.HasField("timestamp"):
        found["timestamp"] = moment(one.timestamp, f"messages[{at}].timestamp")
    if one.HasField("expires_in_s"):
        found["expires_in_s"] = finite(one.expires_in_s, f"messages[{at}].expires_in_s")
    return found


def _json_value(value: bytes, at: int) -> msgspec.Raw:
    try:
        return _ONE_VALUE.decode(value)
    except msgspec.DecodeError as error:
        reason = f"the value is {in_words(error)}"
    except RecursionError:
        reason = f"the value is nested deeper than {MAX_DEPTH} levels"
    raise InvalidRequest(f"messages[{at}]: {reason}", field=f"messages[{at}].value")


def _published(message: Any, found: Incoming) -> None:
    published = _PUBLISHED.decode(found.body)
    message.count, message.duplicate = published.count, published.duplicate
    for rows in published.segments:
        message.segments.add(**rows)
    message.ids.extend(published.ids)


def _counted(message: Any, found: Incoming) -> None:
    _published(message, found)
    streams = _STREAMS.decode(found.body)
    message.streams, message.silent_brokers = streams.streams, streams.silent_brokers


def _published_more(message: Any, found: Incoming) -> None:
    """Adds an answer to those before it."""
    published = _PUBLISHED.decode(found.body)
    message.batches += 1
    message.messages += published.count
    message.duplicates += published.duplicate


@dataclass(frozen=True)
class Streaming:
    """A method that answers with a stream: a WebSocket of its route, whose frames become messages. `again` tells a
    client that was too slow what to do. One that `says` something takes messages behind the first one, and makes the
    WebSocket's messages of them."""

    name: str
    takes: type[Message]
    gives: type[Message]
    request: Callable[[Any], Outgoing]
    answer: Callable[[Any, bytes], None]
    again: str
    says: Callable[[Any], str] | None = None


QUEUE = (
    Unary("Publish", pb.PublishRequest, pb.PublishResponse, _publish, _published, by_format=True),
    Unary("Broadcast", pb.BroadcastRequest, pb.BroadcastResponse, _broadcast, _counted, by_format=True),
    Unary(
        "PublishStream",
        pb.PublishStreamRequest,
        pb.PublishStreamResponse,
        _publish,
        _published_more,
        by_format=True,
        repeats=True,
    ),
    Unary("Fetch", pb.FetchRequest, pb.FetchResponse, _fetch, _fetched, lasts=True),
    Streaming(
        "Read",
        pb.ReadRequest,
        pb.ReadResponse,
        _read,
        _part,
        "call again with the positions of the last received batch",
    ),
    Streaming(
        "Subscribe",
        pb.SubscribeRequest,
        pb.SubscribeResponse,
        _subscribe,
        _leased,
        "subscribe again, and send each ack without an answer again",
        _said,
    ),
)
ADMIN = (
    Unary("ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse, _list_topics, _list_answer),
    _managing("GetTopic", "GET", TOPIC, "topic"),
    _managing("CreateTopic", "PUT", TOPIC, "topic"),
    _managing("UpdateTopic", "PATCH", TOPIC, "topic"),
    _managing("DeleteTopic", "DELETE", TOPIC),
    _managing("ListSegments", "GET", f"{TOPIC}/segments"),
    _managing("GetSegment", "GET", SEGMENT, "segment"),
    _managing("ListSubscriptions", "GET", f"{TOPIC}/subscriptions"),
    _managing("GetSubscription", "GET", SUBSCRIPTION, "subscription"),
    _managing("CreateSubscription", "PUT", SUBSCRIPTION, "subscription"),
    _managing("UpdateSubscription", "PATCH", SUBSCRIPTION, "subscription"),
    _managing("DeleteSubscription", "DELETE", SUBSCRIPTION),
    _managing("SeekSubscription", "POST", f"{SUBSCRIPTION}/seek"),
)
METHODS: Mapping[str, tuple[Unary | Streaming, ...]] = {"QueueService": QUEUE, "AdminService": ADMIN}


def decoded(kind: type[Message], content: bytes, into: type[Message] | None = None) -> Any:
    """Returns a message of a kind, or those of its fields that `into` has."""
    try:
        return (into or kind).FromString(content)
    except DecodeError:
        raise UnreadableBody(f"the message is not a {kind.DESCRIPTOR.full_name}") from None


def answered(method: Any, found: Incoming | bytes) -> bytes:
    """Returns the message of an answer, or of a frame."""
    answer = method.gives()
    method.answer(answer, found)
    return bytes(answer.SerializeToString())
