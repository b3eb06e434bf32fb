"""The core's calls, one per route: each builds its request and decodes the answer. No I/O.

A call is one request, which `attempts.Brokers` may offer to several brokers; only `Patience` repeats requests. The
configuration of topics and subscriptions is as keywords name it; durations and sizes may be texts with units.
"""

import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict
from urllib.parse import quote, urlencode

import msgspec

from seaweedq.client.core.effects import JSON, NDJSON, Request, Steps
from seaweedq.client.core.message import M, Make, Page
from seaweedq.client.core.problems import check
from seaweedq.client.core.wire import (
    Published,
    decode_page,
    decode_published,
    encode,
    envelope,
    reference_envelope,
)
from seaweedq.errors import ClientError, InvalidName, SchemaNotFound, SegmentNotFound
from seaweedq.traces import TRACEPARENT, of_program

Seconds: TypeAlias = float | str
Bytes: TypeAlias = int | str
Start: TypeAlias = str | Mapping[str, Any]
TopicFormat: TypeAlias = Literal["json", "bytes", "typed"]
Lines: TypeAlias = Literal["envelope", "bare"]
Compatibility: TypeAlias = Literal["backward", "forward", "full", "none"]


class Scaling(TypedDict, total=False):
    """When a topic's segments split and merge; None means the default."""

    target_messages_per_s: int | None
    target_bytes_per_s: Bytes | None
    min_segments: int | None
    max_segments: int | None
    cool_down_s: Seconds | None
    enabled: bool | None


class Flush(TypedDict, total=False):
    """When buffered messages are written to a file; None means the broker's setting."""

    max_bytes: Bytes | None
    min_bytes: Bytes | None
    max_age_s: Seconds | None


class Retention(TypedDict, total=False):
    """Which messages a topic keeps; None means no limit."""

    max_age_s: Seconds | None
    max_bytes: Bytes | None
    keep_unread: bool
    delete_read: bool
    grace_s: Seconds | None


class Filter(TypedDict, total=False):
    """Which messages a subscription delivers."""

    key_prefix: str
    headers: Mapping[str, str]


def given_fields(**fields: Any) -> dict[str, Any]:
    """Returns the fields that have a value: those that a caller has named."""
    return {name: value for name, value in fields.items() if value is not None}


Method = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]
# Messages whose `_expires` is over are left out, or are there as all others.
Expired = Literal["skip", "keep"]
# Longest wait that a broker grants.
MAX_WAIT_S = 30.0
_FLUSH_WAIT_S = 300.0
_IDS = 10**10  # of segments
_LOOKS = 5  # at a topic and its map


def topic_path(topic: str) -> str:
    """Returns the path of a topic. The name is quoted, so that the broker refuses an invalid one. Raises InvalidName
    for one that would lead to another path."""
    return f"/v1/topics/{_part(topic, 'topic')}"


def subscription_path(topic: str, subscription: str) -> str:
    """Returns the path of a subscription. Raises as `topic_path`."""
    return f"{topic_path(topic)}/subscriptions/{_part(subscription, 'subscription')}"


def write_path(topic: str, writer: str) -> str:
    """Returns the path of a writer's writes. Raises as `topic_path`."""
    return f"{topic_path(topic)}/writes/{_part(writer, 'writer')}"


def access_path(kind: str, name: str) -> str:
    """Returns the path of one of the `principals`, `tokens` or `denials`. Raises as `topic_path`."""
    return f"/v1/{kind}/{_part(name, kind.removesuffix('s'))}"


def _part(name: str, kind: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a {kind} name must be a str, but it is {reprlib.repr(name)} ({type(name).__name__})")
    if "/" in name or name in ("", ".", ".."):
        why = '"/" is not allowed' if "/" in name else "use 1 to 127 of A-Z a-z 0-9 . _ -, first a letter or a digit"
        raise InvalidName(f"invalid {kind} name {reprlib.repr(name)}: {why}", name=name[:100])
    return quote(name, safe="")


def call(
    method: Method, path: str, body: Mapping[str, Any] | None = None, wait_s: float = 0, repeatable: bool = False
) -> Steps[Any]:
    """Sends JSON (or nothing), and returns the decoded answer: None if it is empty."""
    content, headers = (b"", {}) if body is None else (encode(body), {"Content-Type": JSON})
    reply = check((yield Request(method, path, {}, content, headers, wait_s, repeatable=repeatable)))
    return msgspec.json.decode(reply.body) if reply.body else None


def create(path: str, config: Mapping[str, Any]) -> Steps[bool]:
    """Creates a topic or a subscription. Returns False if there is one already, which matches."""
    reply = check((yield Request("PUT", path, {}, encode(config), {"Content-Type": JSON})))
    return reply.status == 201


def preview_retention(topic: str, retention: Mapping[str, Any]) -> Steps[Any]:
    """Asks what a retention would take, without a change."""
    content, headers = encode({"retention": retention}), {"Content-Type": JSON}
    reply = check((yield Request("PATCH", topic_path(topic), {"dry_run": "true"}, content, headers, repeatable=True)))
    return msgspec.json.decode(reply.body)


def flush(topic: str) -> Steps[Any]:
    """Flushes a topic, with a long timeout for large tails."""
    return (yield from call("POST", f"{topic_path(topic)}/flush", wait_s=_FLUSH_WAIT_S, repeatable=True))


def pages(path: str, member: str) -> Steps[list[Any]]:
    """Returns a whole paged list: continues while the answer has a `next_page_token`."""
    found: list[Any] = []
    params: dict[str, str] = {}
    while True:
        reply = check((yield Request("GET", path, params)))
        answer = msgspec.json.decode(reply.body)
        found += answer.get(member, [])
        token = answer.get("next_page_token")
        if not token:
            return found
        params = {"page_token": str(token)}


def seek(topic: str, name: str, to: str | datetime | Mapping[str, Any], id: str) -> Steps[dict[str, Any]]:
    """Seeks a subscription; under its id once, however often it is sent. Raises ValueError for a time without zone."""
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise ValueError(f"the time {to.isoformat()} has no time zone")
        to = {"timestamp": to.isoformat()}
    path = f"{subscription_path(topic, name)}/seek"
    found: dict[str, Any] = yield from call("POST", path, {"to": to, "id": id}, repeatable=True)
    return found


def segments(topic: str) -> Steps[list[dict[str, Any]]]:
    """Returns a topic's segments, as its map has them."""
    answer = yield from segment_map(topic)
    found: list[dict[str, Any]] = answer["segments"]
    return found


def schemas(topic: str) -> Steps[list[int]]:
    """Returns the ids of all versions of a topic's schema."""
    found: dict[str, list[int]] = yield from call("GET", f"{topic_path(topic)}/schemas")
    return found["schema_ids"]


def schema(topic: str, schema_id: int | None) -> Steps[dict[str, Any]]:
    """Returns a version of a topic's schema, by default the newest."""
    if schema_id is None:
        schema_id = max((yield from schemas(topic)), default=0)
    found: dict[str, Any] = yield from call("GET", f"{topic_path(topic)}/schemas/{schema_id}")
    return found["schema"]  # type: ignore[no-any-return]


def evolve_schema(
    topic: str, schema: Mapping[str, Any], if_schema_id: int | None, dry_run: bool
) -> Steps[dict[str, Any]]:
    """Makes a schema the topic's next version. Returns its `schema_id` and `schema`, and `warnings`."""
    body = {"schema": schema, **({} if if_schema_id is None else {"if_schema_id": if_schema_id})}
    path = f"{topic_path(topic)}{'?dry_run=true' if dry_run else ''}"
    found: dict[str, Any] = yield from call("PATCH", path, body)
    return {name: found[name] for name in ("schema_id", "schema", "warnings")}


def segment_map(topic: str) -> Steps[dict[str, Any]]:
    """Returns a topic's `segments`, and the cluster's time, `now`, by which messages expire."""
    found: dict[str, Any] = yield from call("GET", f"{topic_path(topic)}/segments")
    return found


def history(topic: str, since: datetime | None, until: datetime | None, cells: int | None) -> Steps[Any]:
    """Returns what each range of a topic's key hashes took in the last hour."""
    given = {"since": since and since.isoformat(), "until": until and until.isoformat(), "cells": cells}
    asked = urlencode({name: value for name, value in given.items() if value is not None})
    return (yield from call("GET", f"{topic_path(topic)}/history{'?' if asked else ''}{asked}"))


def describe_topic(topic: str) -> Steps[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns a topic as a broker shows it, and its segment map. The map is asked for first; if the topic was
    created anew between, both are asked for again, as they are of two topics. Raises ClientError if that goes on."""
    for _ in range(_LOOKS):
        there = yield from segment_map(topic)
        facts: dict[str, Any] = yield from call("GET", topic_path(topic))
        if not segments_of_another(facts["created_at"], there["segments"]):
            return facts, there
    raise ClientError(
        f"topic {topic!r} was deleted and created again {_LOOKS} times while it was being read", name=topic
    )


def with_newest_schema(topic: str, facts: dict[str, Any]) -> Steps[dict[str, Any]]:
    """Returns a topic as a broker shows it, with the newest version of its schema: asked for a later version, a broker
    whose watch lags reads the topic's record. The rows that brokers had acknowledged before have no later version."""
    while facts.get("schema"):
        try:
            later = yield from call("GET", f"{topic_path(topic)}/schemas/{facts['schema_id'] + 1}")
        except SchemaNotFound:
            break
        facts = {**facts, "schema": later["schema"], "schema_id": later["schema_id"]}
    return facts


def segments_of_another(created_at: str, known: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns the segments of a map that are of another topic of the same name than the one created at that time: the
    first segments of a topic are created with it."""
    return [each for each in known if not each["predecessors"] and each["created_at"] != created_at]


def with_removed(topic: str, known: Sequence[Mapping[str, Any]], *named: object) -> Steps[Sequence[Mapping[str, Any]]]:
    """Returns the segments of a map, and those that retention has removed since: of each collection of numbers that is
    `named`, as brokers remember them. They end where they begin. A number that brokers do not know is left out."""
    numbers = {n for some in named if isinstance(some, Collection) for n in some if type(n) is int and 0 <= n < _IDS}
    found = []
    for number in sorted(numbers - {each["id"] for each in known}):
        try:
            one = yield from call("GET", f"{topic_path(topic)}/segments/{number}")
        except SegmentNotFound:
            continue
        if one["state"] == "removed":
            found.append({**one, "flushed_offset": one["end_offset"]})
    return [*known, *found]


def of_version(schema_id: int | None) -> dict[str, str]:
    """Returns the header of messages of a version of a typed topic's schema; none for those of the newest."""
    return {} if schema_id is None else {"Schema-Id": str(schema_id)}


def of_span(traceparent: str | None) -> dict[str, str]:
    """Returns the header of a request within a span; none without a span."""
    return {} if traceparent is None else {TRACEPARENT: traceparent}


def publish(
    topic: str, messages: Mapping[str, Any] | Iterable[Mapping[str, Any]], schema_id: int | None
) -> Steps[Published]:
    """Publishes a message, or several, in one request."""
    traces = of_program()
    if traces is None:
        return (yield from _publish(topic, messages, of_version(schema_id)))
    with traces.send(topic) as traceparent:
        return (yield from _publish(topic, messages, of_version(schema_id) | of_span(traceparent)))


def _publish(
    topic: str, messages: Mapping[str, Any] | Iterable[Mapping[str, Any]], headers: Mapping[str, str]
) -> Steps[Published]:
    """Publishes messages, which have the same context as their request."""
    line = partial(_line, context=of_span(headers.get(TRACEPARENT)))
    if isinstance(messages, Mapping):
        request = publish_request(topic, JSON, line(messages), headers)
    elif isinstance(messages, str | bytes | bytearray | memoryview) or not isinstance(messages, Iterable):
        raise _no_message(messages)
    else:
        request = publish_request(topic, NDJSON, b"\n".join(map(line, messages)), headers)
    reply = check((yield request))
    return decode_published(reply.body)


def _no_message(given: object) -> TypeError:
    return TypeError(
        f"a message must be a mapping such as {{'value': ..., 'key': ...}}, or a list of such mappings, "
        f"not {reprlib.repr(given)} ({type(given).__name__})"
    )


def _line(message: Mapping[str, Any], context: Mapping[str, str]) -> bytes:
    if not isinstance(message, Mapping):
        raise _no_message(message)
    if context:
        message = {**message, "headers": {**context, **(message.get("headers") or {})}}
    what = "reference" if "reference" in message else "value"
    unknown = message.keys() - {what, "key", "headers", "timestamp", "expires_in_s"}
    if unknown or what not in message:
        reason = f"a message has no field {min(map(repr, unknown))}" if unknown else "the message has no value"
        raise ValueError(
            f"{reason}; a message must have either value or reference, and can also have "
            "key, headers, timestamp and expires_in_s"
        )
    if what == "value":
        return envelope(**message)
    reference = message[what]
    if not isinstance(reference, Mapping) or reference.keys() != {"upload_id"}:
        raise ValueError(f'a reference must be {{"upload_id": ...}}, not {reprlib.repr(reference)}')
    more = {name: field for name, field in message.items() if name != what}
    return reference_envelope(str(reference["upload_id"]), **more)


def publish_request(
    topic: str,
    content_type: str,
    content: bytes,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Request:
    """Builds the request of a publish. Its lines are messages, whatever the topic takes a line for by default."""
    params = {**(params or {}), **({"bare": "false"} if content_type == NDJSON else {})}
    return Request(
        "POST", f"{topic_path(topic)}/messages", params, content, {"Content-Type": content_type, **(headers or {})}
    )


def fetch_request(
    topic: str,
    segment: int,
    offset: int,
    limit: int,
    wait_s: float = 0,
    accept: str = JSON,
    expired: Expired = "skip",
) -> Request:
    """Builds the request of a fetch."""
    params = {"offset": str(offset), "limit": str(limit), "wait_s": f"{wait_s:g}"}
    if expired != "skip":
        params["expired"] = expired
    path = f"{topic_path(topic)}/segments/{segment}/messages"
    return Request("GET", path, params, headers={"Accept": accept}, wait_s=wait_s)


def fetch(topic: str, segment: int, offset: int, limit: int, wait_s: float, message: Make[M]) -> Steps[Page[M]]:
    """Returns messages of a segment from an offset on."""
    reply = check((yield fetch_request(topic, segment, offset, limit, wait_s)))
    return Page(decode_page(reply.body), message)


class TopicFile(msgspec.Struct, frozen=True):
    """A file with rows of [first_offset, next_offset). The broker may know its schema's id, and the largest
    `_timestamp` up to its end."""

    segment: int
    name: str
    first_offset: int
    next_offset: int
    bytes: int
    schema_id: int | None
    max_timestamp: datetime | None

    @property
    def path(self) -> str:
        """Returns its place below the topic's folder."""
        return f"segment={self.segment}/{self.name}"

    @property
    def place(self) -> str:
        """Returns what later files come `after`."""
        return f"{self.segment}/{self.name}"


class FilesAnswer(msgspec.Struct):
    """A page of files."""

    files: Sequence[TopicFile]
    next: str | None = None


class OffsetsAnswer(msgspec.Struct):
    """Offsets by segment."""

    offsets: dict[int, int]


_FILES, _OFFSETS = msgspec.json.Decoder(FilesAnswer), msgspec.json.Decoder(OffsetsAnswer)


def topic_files(topic: str, segment: int | None = None, after: str | None = None) -> Steps[list[TopicFile]]:
    """Returns all files with rows of a topic, or of one of its segments; only those `after` a file's place."""
    found: list[TopicFile] = []
    params = {} if segment is None else {"segment": str(segment)}
    while True:
        params = params if after is None else {**params, "after": after}
        answer = _FILES.decode(check((yield Request("GET", f"{topic_path(topic)}/files", params))).body)
        found += answer.files
        if answer.next is None:
            return found
        after = answer.next


def offsets_at(topic: str, moment: datetime) -> Steps[dict[int, int]]:
    """Returns, by segment, the offset from which on no message of this time or of a later one is missed. Raises
    ValueError for a time without zone."""
    if moment.tzinfo is None:
        raise ValueError(f"the time {moment.isoformat()} has no time zone")
    request = Request("GET", f"{topic_path(topic)}/offsets", {"timestamp": moment.isoformat()})
    return _OFFSETS.decode(check((yield request)).body).offsets
