"""Publishing dead letters again, as an idempotent producer: no repeat doubles what a run before has published.

The letters of a segment come in the order of their offsets, and are published one by one, each with its offset as the
sequence of a producer that is named after topic, subscription, its last seek, and the segment. So a sequence that is
not above the newest one was published before, since the last seek: what a seek brings again is published again. Where
a letter counts as published, the subscription may have been sought after the name was made: then the name is made
anew, and the letter is published under that one. Brokers remember a producer for a day.
"""

import hashlib
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from seaweedq.client.core.broker_choice import Brokers, parse_urls
from seaweedq.client.core.calls import publish_request
from seaweedq.client.core.effects import JSON
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.wire import decode_published, envelope, reference_envelope
from seaweedq.client.sync.transport import SyncTransport
from seaweedq.errors import SequenceOutOfOrder, TopicNotFound

if TYPE_CHECKING:
    from seaweedq.client import Client, Message

ANSWER_S, TOTAL_S = 30.0, 120.0
PREFIX = "dead-letter-"


class Redriving:
    """Publishes the letters of one topic to those that they came from, as its `subscription` brings them."""

    def __init__(self, client: "Client", url: str, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        self._client = client
        self._is_bytes = client.topic(topic)["format"] == "bytes"
        self._there: set[str] = set()  # topics that exist
        self._name = ""
        self._transport = SyncTransport(Brokers(parse_urls(url), time.monotonic), ANSWER_S, None)

    def redrive(self, letter: "Message") -> Literal["published", "there"] | None:
        """Publishes a letter, unless that was done. Returns None for a message that is no letter. Raises TopicNotFound
        and the errors of a publish."""
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
        """Returns the producer's name, which is another one after each seek."""
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
        """Raises TopicNotFound; a publish might create the topic, in another format than it had."""
        if source in self._there:
            return
        try:
            self._client.topic(source)
        except TopicNotFound as error:
            error.fields["hint"] = f"create the topic, or ack message {letter.id}; the letters before it are published"
            raise
        self._there.add(source)

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def _content(self, source: str, letter: "Message", headers: Mapping[str, str]) -> bytes:
        """Returns the message as it was; its payload is uploaded to the topic again."""
        given = dict(headers) or None
        if letter.reference is None:
            value = letter.raw if self._is_bytes else msgspec.Raw(letter.raw)
            return envelope(value, letter.key, given, letter.timestamp)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "payload"
            letter.download(path)
            upload = self._client.upload(source, path, letter.reference.content_type)
        return reference_envelope(upload, letter.key, given, letter.timestamp)
