"""Republishes dead letters as an idempotent producer, so that a repeated run publishes no letter twice.

The letters of a segment arrive in offset order and are published one by one. The producer is named after the topic, the
subscription, its last seek and the segment, and a letter's offset is its sequence. So a sequence that is not above the
newest one was already published since the last seek, while a letter that a seek delivers again is published again. If a
letter seems to be published already, the subscription may have been moved by a seek after the producer was named: the
name is then computed again, and the letter is published under the new name. Brokers remember a producer for a day.

A run continues until no letter is left, or `most` are republished. Letters that a killed run had leased are redelivered
when those leases end; the run says so, and waits for as long as a lease lasts. Letters that another consumer holds for
longer are counted and reported at the end."""

import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from seaweedq.cli.shared.common import complain, counted
from seaweedq.cli.shared.contexts import credentials_of
from seaweedq.client.core.attempts import Brokers, Patience, parse_urls
from seaweedq.client.core.calls import publish_request
from seaweedq.client.core.effects import JSON
from seaweedq.client.core.wire import decode_published, envelope, reference_envelope
from seaweedq.client.sync.transport import SyncTransport
from seaweedq.errors import ClientError, SequenceOutOfOrder, TopicNotFound

if TYPE_CHECKING:
    from seaweedq.client import Client, Message

ANSWER_S, TOTAL_S = 30.0, 120.0
PREFIX = "dead-letter-"


class Redriver:
    """Republishes the letters of a dead-letter topic, as `subscription` delivers them, to the topics that they came
    from."""

    def __init__(self, client: "Client", url: str, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        self._client = client
        self._is_bytes = client.topic(topic)["format"] == "bytes"
        self._there: dict[str, Mapping[str, Any] | None] = {}  # topics that exist, with their schemas
        self._name = ""
        self._transport = SyncTransport(
            Brokers(parse_urls(url), time.monotonic), ANSWER_S, None, credentials=credentials_of(url)
        )

    def redrive(self, letter: "Message") -> Literal["published", "there"] | None:
        """Republishes a letter unless an earlier run did. Returns None for a message that is not a dead letter. Raises
        TopicNotFound and the errors of a publish."""
        source = letter.headers.get(f"{PREFIX}topic")
        if source is None:
            return None
        self._check_there(source, letter)
        headers = {name: value for name, value in letter.headers.items() if not name.startswith(PREFIX)}
        content = self._content(source, letter, headers)
        name = self._name or self._renamed()
        outcome = self._publish(source, letter, content, name)
        if outcome == "there" and self._renamed() != name:
            outcome = self._publish(source, letter, content, self._name)
        return outcome

    def _renamed(self) -> str:
        """Returns the producer's name, which changes with each seek."""
        epoch = self._client.subscription(self.topic, self.subscription).get("seek_epoch", 0)
        of = "\0".join((self.topic, self.subscription, str(epoch)))
        self._name = hashlib.sha256(of.encode()).hexdigest()[:16]
        return self._name

    def _publish(self, source: str, letter: "Message", content: bytes, name: str) -> Literal["published", "there"]:
        producer = {"Producer-Id": f"redrive.{name}.{letter.segment}", "Producer-Sequence": str(letter.offset)}
        request = replace(publish_request(source, JSON, content, producer), repeatable=True)
        patience = Patience(TOTAL_S, time.monotonic, random.random)
        try:
            reply = self._transport.run(patience.send(request))
        except SequenceOutOfOrder as error:
            if int(error.fields.get("newest", -1)) < letter.offset:
                raise
            return "there"
        return "there" if decode_published(reply.body).duplicate else "published"

    def _check_there(self, source: str, letter: "Message") -> None:
        """Raises TopicNotFound if the topic does not exist, because a publish might create it in another format."""
        if source in self._there:
            return
        try:
            self._there[source] = self._client.topic(source)["schema"]
        except TopicNotFound as error:
            error.fields["hint"] = f"create the topic, or ack message {letter.id}; the letters before it are published"
            raise

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def _content(self, source: str, letter: "Message", headers: Mapping[str, str]) -> bytes:
        """Returns the original message. Its payload is uploaded to the original topic again."""
        given = dict(headers) or None
        if letter.reference is None:
            schema = self._there[source]
            raw = fitted(letter.raw, schema) if schema else letter.raw
            value = raw if self._is_bytes else msgspec.Raw(raw)
            return envelope(value, letter.key, given, letter.timestamp)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "payload"
            letter.download(path)
            upload = self._client.upload(source, path, letter.reference.content_type)
        return reference_envelope(upload, letter.key, given, letter.timestamp)


if TYPE_CHECKING:
    from seaweedq.client import Client, Message


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def fitted(value: bytes, schema: Mapping[str, Any]) -> bytes:
    """Returns a value with the names that fields have in a topic's schema by now, and without nulls in fields that the
    topic does not have: a dead-letter topic may have more of them. Raises ClientError for a field with two
    values."""
    fields = _fields(value)
    names = {alias: one["name"] for one in schema["fields"] for alias in one.get("aliases", ())}
    known = {one["name"] for one in schema["fields"]}
    found: dict[str, msgspec.Raw] = {}
    for name, one in fields.items():
        is_null = bytes(one) == b"null"
        now = name if name in known else names.get(name, name)
        if not is_null and bytes(found.get(now, b"null")) != b"null":
            detail = f"the letter has two values for the field {now!r}, one of them under an earlier name of the field"
            raise ClientError(detail, field=now)
        if not is_null or (name in known and now not in found):
            found[now] = one
    return msgspec.json.encode(found)


IDLE_S, PAGE = 1.0, 500
MARGIN_S = 2.0  # beyond the deadline of a lease, until its messages come again


class RedriveRun:
    """Counts the letters that this run republished (`done`), that an earlier run had published (`again`), and that
    other consumers hold at the end (`held`), and the messages that are not letters (`left`)."""

    def __init__(
        self, client: "Client", redriving: Redriver, most: int | None, progress: Callable[[int], None], consumer: str
    ) -> None:
        self._client, self._redriving, self._progress, self._consumer = client, redriving, progress, consumer
        self._most = most
        self.done = self.again = self.held = 0
        self.left: dict[str, Message] = {}
        self._waited_s = 0.0

    def run(self) -> None:
        """Republishes letters. Raises the errors of a publish."""
        try:
            while self._publish_all() and self._may_come_again():
                pass
        finally:
            for message in self.left.values():
                message.nack(0)

    def _publish_all(self) -> bool:
        """Republishes letters until a second passes without any. Returns False if the requested number is reached."""
        pulled = min(self._most or PAGE, PAGE)
        named: dict[str, Any] = {"max_messages": pulled, "mode": "ordered", "consumer": self._consumer}
        topic, subscription = self._redriving.topic, self._redriving.subscription
        messages: Any = self._client.subscribe(topic, subscription, "earliest", IDLE_S, **named)
        with closing(messages):  # sends the acks, also after an error
            for message in messages:
                self._waited_s = 0.0
                self._redrive(message)
                if self._most is not None and self.done + self.again + len(self.left) >= self._most:
                    return False
        return True

    def _redrive(self, message: "Message") -> None:
        if message.id in self.left:
            self.left[message.id] = message  # under another lease by now
            return
        outcome = self._redriving.redrive(message)
        if outcome is None:
            complain(
                f"skipped message {message.id}: it is not a dead letter, because it has no header dead-letter-topic"
            )
            self.left[message.id] = message
            return
        message.ack()
        self.done, self.again = self.done + (outcome == "published"), self.again + (outcome == "there")
        self._progress(self.done)

    def _may_come_again(self) -> bool:
        """Returns whether letters that other consumers hold are delivered within the length of a lease."""
        shown = self._client.subscription(self._redriving.topic, self._redriving.subscription)
        lag = shown["lag_total"]
        self.held = max(0, lag["in_flight"] + lag["delayed"] - len(self.left))
        if not self.held or shown["paused"]:
            return False
        longest_s = shown["ack_deadline_s"] + MARGIN_S
        if not self._waited_s:
            leased = f"{counted(self.held, 'letter')} {'is' if self.held == 1 else 'are'} leased"
            complain(f"{leased}, perhaps by a run that was killed; waiting up to {longest_s:g} s")
        self._waited_s += IDLE_S
        return bool(self._waited_s < longest_s)
