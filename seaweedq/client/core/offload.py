"""Messages that a producer sends by reference: files, and values over the broker's limit for one message. No I/O.

The limit is the broker's setting `max_message_bytes`. A client cannot ask for it: it uses the user's value (by default
the setting's default), and learns a smaller one from a refusal.
"""

import os
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from mimetypes import MimeTypes
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq.client.core.calls import call, topic_path
from seaweedq.client.core.effects import JSON, Steps, Work
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.segment_map import KeyRule, Keys, fetch_rule
from seaweedq.client.core.uploading import ANY_BYTES, Uploading
from seaweedq.client.core.wire import reference_envelope
from seaweedq.client.files import Progress, Source
from seaweedq.errors import MessageTooLarge, TopicNotFound


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


@dataclass(frozen=True, slots=True)
class SentLine:
    """The line that names an upload, and the upload; None if the value is sent inline after all."""

    line: bytes
    upload_id: str | None


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
        """Uploads a file. Raises as `Uploading.run` does."""
        source: Source = yield Work(lambda: Source.of(job.path))
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
            rule = KeyRule.of((yield from call("PUT", topic_path(self._topic), {})))
        if rule.typed:
            return SentLine(line, None)
        found = _decode(line)
        key = found.key
        if key is None and rule.field is not None:
            key = Keys(rule).of_line(None, line)
        content_type = JSON if isinstance(found.value_base64, UnsetType) else ANY_BYTES
        upload_id = yield from self._upload(Source.of(found.content), content_type, None)
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
            upload = Uploading(self._topic, source, content_type, self._patience, self._brokers, progress)
            return (yield from upload.run())
        finally:
            source.close()
