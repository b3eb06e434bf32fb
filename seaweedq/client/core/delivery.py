"""The delivery of a batch, common to all producers: how it is sent, and the outcome of each of its messages. No I/O.

Files, and values over the broker's limit for one message, are uploaded and sent by reference. The limit is the broker's
setting `max_message_bytes`. A client cannot ask for it: it uses the user's value (by default the setting's default),
and learns a smaller one from a refusal.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq.client.core.attempts import Patience
from seaweedq.client.core.batching import ProducerBatch, SentLine
from seaweedq.client.core.calls import call, of_span, of_version, publish_request, topic_path
from seaweedq.client.core.effects import ARROW, JSON, BlockingCall, Steps
from seaweedq.client.core.segment_map import KeyRule, Keys, SegmentMap, fetch_map, fetch_rule
from seaweedq.client.core.streams import ProducerStream
from seaweedq.client.core.uploading import ANY_BYTES, Upload, abort
from seaweedq.client.core.wire import Published, decode_published, reference_envelope
from seaweedq.client.files import Progress, Source
from seaweedq.errors import InvalidMessages, InvalidRequest, MessageTooLarge, SeaweedqError, TopicNotFound
from seaweedq.traces import Traces, of_program


class _Line(msgspec.Struct):
    """A message's line, as encoded by this client."""

    value: msgspec.Raw | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    key: str | None = None
    headers: dict[str, str] | None = None
    timestamp: str | None = None
    expires_in_s: float | None = None

    @property
    def content(self) -> bytes:
        """Returns the value's bytes, as the broker counts them."""
        if isinstance(self.value, UnsetType):
            return b"" if isinstance(self.value_base64, UnsetType) else self.value_base64
        return bytes(self.value)


# A producer uploads so many at a time; each may have several parts in flight.
MOST_UPLOADS = 4
_KINDS = MimeTypes()
_decode = msgspec.json.Decoder(_Line).decode


@dataclass(frozen=True, slots=True)
class FileJob:
    """A file to be sent."""

    path: Path
    key: str | None
    headers: dict[str, str] | None
    timestamp: datetime | str | None
    expires_in_s: float | None
    content_type: str
    progress: Progress | None


def type_of(path: Path) -> str:
    """Returns the content type that a file's suffix stands for, the same on every machine."""
    kind, encoding = _KINDS.guess_type(path.name)
    return kind if kind and not encoding else ANY_BYTES


def file_job(
    path: str | os.PathLike[str],
    key: str | None,
    headers: dict[str, str] | None,
    content_type: str | None,
    progress: Progress | None,
    timestamp: datetime | str | None,
    expires_in_s: float | None,
) -> FileJob:
    """Describes the upload of a file. Raises OSError if it cannot be read, and the errors of `envelope`."""
    file = Path(path)
    with file.open("rb"):
        reference_envelope("", key, headers, timestamp, expires_in_s)
    return FileJob(file, key, headers, timestamp, expires_in_s, content_type or type_of(file), progress)


class Offload:
    """Uploads of a producer's topic. `limit_bytes` is the largest value that is sent inline; it only becomes
    smaller."""

    def __init__(self, topic: str, patience: Patience, brokers: tuple[str, ...], limit_bytes: int) -> None:
        self._topic, self._patience, self._brokers = topic, patience, brokers
        self.limit_bytes = limit_bytes

    def is_large(self, line: bytes) -> bool:
        """Tells whether the value of a message is over the limit."""
        return len(line) > self.limit_bytes and len(_decode(line).content) > self.limit_bytes

    def file(self, job: FileJob) -> Steps[SentLine]:
        """Uploads a file. Raises as `Upload.run` does."""
        source: Source = yield BlockingCall(lambda: Source.open(job.path))
        upload_id = yield from self._upload(source, job.content_type, job.progress)
        more = (job.key, job.headers, job.timestamp, job.expires_in_s)
        return SentLine(reference_envelope(upload_id, *more), upload_id)

    def line(self, line: bytes, make: bool = False) -> Steps[SentLine]:
        """Uploads the value of a message, unless the topic is typed: such a topic takes no references, so the broker
        decides about the line as it is. The same goes for a missing topic, unless `make` asks to create it: a 413 of a
        broker that would have created the topic does."""
        try:
            # Asked for each time: another topic may have taken the name, and an upload costs more.
            rule = yield from fetch_rule(self._topic)
        except TopicNotFound:
            if not make:
                return SentLine(line, None)
            rule = KeyRule.from_topic((yield from call("PUT", topic_path(self._topic), {})))
        if rule.typed:
            return SentLine(line, None)
        found = _decode(line)
        key = found.key
        if key is None and rule.field is not None:
            key = Keys(rule).key_of_line(None, line)
        content_type = JSON if isinstance(found.value_base64, UnsetType) else ANY_BYTES
        upload_id = yield from self._upload(Source.open(found.content), content_type, None)
        return SentLine(
            reference_envelope(upload_id, key, found.headers, found.timestamp, found.expires_in_s), upload_id
        )

    def again(self, lines: list[bytes], error: MessageTooLarge) -> Steps[list[bytes]]:
        """Returns the same messages, with the values over the broker's limit uploaded."""
        limit = error.fields.get("limit_bytes")
        if isinstance(limit, int):
            self.limit_bytes = min(self.limit_bytes, limit)
        found = []
        for line in lines:
            sent = (yield from self.line(line, make=True)) if self.is_large(line) else SentLine(line, None)
            found.append(sent.line)
        return found

    def exceeds(self, line: bytes, limit_bytes: int) -> bool:
        """Tells whether a message's value, or its key and headers together, have more bytes than a broker takes."""
        if len(line) <= limit_bytes:
            return False
        found = _decode(line)
        texts = [found.key or "", *chain.from_iterable((found.headers or {}).items())]
        return max(len(found.content), sum(len(text.encode()) for text in texts)) > limit_bytes

    def _upload(self, source: Source, content_type: str, progress: Progress | None) -> Steps[str]:
        try:
            upload = Upload(self._topic, source, content_type, self._patience, self._brokers, progress)
            return (yield from upload.run())
        finally:
            source.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a batch: published, apart from the `rejected` indexes, or failed as a whole with `error`.

    Of several errors that rejected messages `error` is the first; `errors` are those of the messages, by index.

    `misrouted`: a broker or segment was not where the producer expected it, so its segment map may be stale.
    """

    published: Published | None = None
    error: Exception | None = None
    rejected: tuple[int, ...] = ()
    errors: Mapping[int, Exception] = field(default_factory=dict)
    misrouted: bool = False

    def error_of(self, index: int) -> Exception | None:
        """Returns why message number `index` was not published; None if it was."""
        if self.published is None or index in self.rejected:
            row = next((row for row in _reasons(self.error) if row.get("index") == index), None)
            return self.errors.get(index) or _alone(self.error, row)
        return None

    def id_of(self, index: int) -> str:
        """Returns the id of message number `index`; raises its error."""
        if error := self.error_of(index):
            raise error
        assert self.published is not None
        at = index - bisect_left(self.rejected, index)
        if self.published.ids is None:
            raise LookupError(
                "the ids of a table's messages are unknown, because send_table does not ask the broker for them"
            )
        return self.published.ids[at]


def receipt_repr(name: str, outcome: Outcome | None, index: int) -> str:
    """Returns the repr of a receipt: the id of its message, or its error; without either while it waits."""
    if outcome is None:
        return f"{name}(waiting)"
    error = outcome.error_of(index)
    return f"{name}(error={error!r})" if error else f"{name}(id={outcome.id_of(index)!r})"


@dataclass(frozen=True, slots=True)
class Route:
    """How a producer's batches reach their topic. `given` are the brokers that the user named, and the messages have
    the version `schema_id` of the topic's schema, by default the newest. `traces` makes spans, if the program has
    configured OpenTelemetry."""

    topic: str
    patience: Patience
    new_id: Callable[[], str]
    given: tuple[str, ...] = ()
    offload: Offload | None = None
    schema_id: int | None = None
    traces: Traces | None = field(default_factory=of_program)

    def fetch_map(self) -> Steps[tuple[SegmentMap, KeyRule]]:
        """Fetches the segment map, and the topic's rule: another topic may have taken its name."""
        seen = yield from fetch_map(self.topic)
        return seen, (yield from fetch_rule(self.topic, self.schema_id))

    def deliver(self, stream: ProducerStream[Any], batch: ProducerBatch[Any]) -> Steps[Outcome]:
        """Publishes a batch until a broker accepts it. Every attempt has the same id and sequence, so that none is
        appended twice.

        If the broker names invalid messages, it appended none, and the others are sent again without them; if it has
        more than it names, it names the next ones then. A batch of which an earlier attempt stored a part (`taken`)
        fails as a whole. If it names one that is too large, all values that are too
        large are sent again by reference, and messages that no reference makes smaller (key and headers, values of
        typed topics) are left out. If the others fail in the end, the refused ones keep the reasons of their own.
        """
        if batch.error:
            raise batch.error
        if self.traces is None or not batch.contexts:
            return (yield from self._deliver(stream, batch))
        with self.traces.span(
            "send", self.topic, batch.contexts, "CLIENT", is_apart=True, count=batch.count
        ) as batch.traceparent:
            return (yield from self._deliver(stream, batch))

    def _deliver(self, stream: ProducerStream[Any], batch: ProducerBatch[Any]) -> Steps[Outcome]:
        try:
            if batch.content_type == ARROW and batch.rows is not None:
                try:
                    # Of another format, which a topic made anew may have, it is to take none: texts would become bytes.
                    kind = {"ids": "true", "format": "bytes" if batch.rows.is_binary else "json"}
                    return (yield from self._publish(stream, batch, [batch.rows.stream()], kind))
                except (InvalidMessages, InvalidRequest, MessageTooLarge) as error:
                    # It took none of them; of lines it names each that it refuses.
                    batch.is_unfit = isinstance(error, InvalidRequest)
            batch.unroll()
            if batch.content_type == ARROW:
                return (yield from self._publish(stream, batch, batch.lines))
            return (yield from self._publish_valid(stream, batch))
        except SeaweedqError:
            if batch.upload_id:  # a broker keeps it if the message is there after all
                yield from abort(self.topic, batch.upload_id)
            raise

    def _publish_valid(self, stream: ProducerStream[Any], batch: ProducerBatch[Any]) -> Steps[Outcome]:
        """Publishes the batch's lines, apart from those that brokers refuse. Brokers count the lines of a request, so
        a line that they name is looked up among those of the request."""
        kept = dict(enumerate(batch.lines))
        first: SeaweedqError | None = None
        errors: dict[int, Exception] = {}
        offload = self.offload  # once: a message that no reference makes smaller is left out
        while True:
            lines = [*kept.values()]
            try:
                outcome = yield from self._publish(stream, batch, lines)
            except SeaweedqError as refusal:
                error = refusal
                if isinstance(refusal, MessageTooLarge) and offload is not None:
                    found, offload = (yield from _by_reference(offload, lines, refusal)), None
                    if not isinstance(found, SeaweedqError):
                        kept = dict(zip(kept, found, strict=True))
                        continue
                    error = found
                refused = self._refused(error, lines)
                if len(refused) in (0, len(lines)) and first is None:
                    raise error from error.__cause__  # as it came
                first = first or error
                refused = refused or {*range(len(lines))}
                reasons = {row.get("index"): row for row in _reasons(error)}
                errors |= {i: _alone(error, reasons.get(at)) for at, i in enumerate(kept) if at in refused}
                kept = {index: line for at, (index, line) in enumerate(kept.items()) if at not in refused}
                if kept:
                    continue
                outcome = Outcome()
            if first is None:
                return outcome
            return replace(outcome, error=first, rejected=tuple(sorted(errors)), errors=errors)

    def _refused(self, error: SeaweedqError, lines: list[bytes]) -> set[int]:
        """Returns the indexes of messages that the error concerns; none if that is not known, or some were taken by an
        earlier attempt: its repeats must have the same messages."""
        if error.fields.get("taken"):
            return set()
        if isinstance(error, InvalidMessages):
            # A broker names all, or the first of them. If it counts as many as there are, none needs to be sent again.
            if error.fields.get("invalid") == len(lines):
                return {*range(len(lines))}
            return {row["index"] for row in error.fields.get("errors", [])} & {*range(len(lines))}
        limit, index = error.fields.get("limit_bytes"), error.fields.get("index")
        if self.offload is None or not isinstance(limit, int) or not isinstance(index, int) or index >= len(lines):
            return set()
        return {index, *(at for at, line in enumerate(lines) if self.offload.exceeds(line, limit))}

    def _publish(
        self,
        stream: ProducerStream[Any],
        batch: ProducerBatch[Any],
        lines: list[bytes],
        params: Mapping[str, str] | None = None,
    ) -> Steps[Outcome]:
        identity = {"Producer-Id": stream.producer_id, "Producer-Sequence": str(batch.sequence)}
        headers = identity | of_version(self.schema_id) | of_span(batch.traceparent)
        request = publish_request(self.topic, batch.content_type, batch.content(lines), headers, params)
        request = replace(request, urls=stream.urls, repeatable=True, is_hedged=True)
        reply = yield from self.patience.send(request, batch.opened_s)
        published = decode_published(reply.body)
        detour, known = bool(request.urls) and reply.url != request.urls[0], stream.segments
        return Outcome(
            published,
            misrouted=detour or (known is not None and any(rows.segment not in known for rows in published.segments)),
        )


def _by_reference(offload: Offload, lines: list[bytes], error: MessageTooLarge) -> Steps[list[bytes] | SeaweedqError]:
    """Returns the lines with the values that are too large uploaded; if none of them is, or an upload fails, the
    error of those that remain."""
    try:
        smaller = yield from offload.again(lines, error)
    except SeaweedqError as failed:
        return failed
    return error if smaller == lines else smaller


def _reasons(error: Any) -> Sequence[Mapping[str, Any]]:
    """Returns the reasons that an error gives for single messages, if it is about several."""
    named = error.fields.get("errors", ()) if isinstance(error, InvalidMessages) else ()
    return named if len(named) > 1 else ()


def _alone(error: Any, row: Mapping[str, Any] | None) -> Any:
    """Returns the error as that of the one message that a row is about; without a row, as it is."""
    if row is None:
        return error
    return type(error)(f"the message is not valid: {row.get('reason')}", errors=[{**row, "index": 0}], invalid=1)
