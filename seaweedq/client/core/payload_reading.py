"""Reads a payload: from the store by the message's URL, else through a broker; checks its digest. No I/O.

The URL expires soon, and the store may be unreachable from here: then a broker sends the same bytes. An interrupted
read resumes where it ended. The last bytes are handed over only once the digest of all bytes was checked.
"""

import hashlib
import re
from dataclasses import dataclass

from seaweedq.client.core.attempts import Patience
from seaweedq.client.core.calls import topic_path
from seaweedq.client.core.effects import Chunk, Pause, Read, Reply, Request, SignedRequest, Steps
from seaweedq.client.core.problems import TRANSIENT, error_of, refusal
from seaweedq.client.core.wire import Reference, WireMessage
from seaweedq.errors import ConnectionFailed, Damaged, SeaweedqError

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def payload(topic: str, wire: WireMessage, patience: Patience) -> Steps[None]:
    """Reads the bytes of a message's payload, if it has one. Raises as `PayloadReader.chunks`."""
    if wire.reference:
        location = Location(topic, wire.id, wire.segment, wire.offset)
        yield from PayloadReader(wire.reference, location, patience).chunks()


@dataclass(frozen=True, slots=True)
class Location:
    """The position of a message."""

    topic: str
    id: str
    segment: int
    offset: int

    @property
    def path(self) -> str:
        """Returns the path at which a broker sends its payload."""
        return f"{topic_path(self.topic)}/segments/{self.segment}/messages/{self.offset}/payload"


class _TransientFailure(Exception):
    """A failure that may not recur a moment later, or at another broker."""

    def __init__(self, error: SeaweedqError) -> None:
        self.error = error


class PayloadReader:
    """One read of a payload, from its beginning to its end."""

    def __init__(self, reference: Reference, location: Location, patience: Patience) -> None:
        self._wanted, self._location, self._patience = reference, location, patience
        self._digest = hashlib.sha256()
        self._at = 0
        self._url = reference.url

    def chunks(self) -> Steps[None]:
        """Yields the payload's bytes. Raises Damaged if they differ from the published ones, PayloadNotFound,
        ConnectionFailed."""
        began_s, attempt = self._patience.monotonic_s(), 0
        if not self._wanted.size:
            self._check_end()
        while self._at < self._wanted.size:
            before = self._at
            try:
                yield from self._read_body((yield from self._ask()))
            except (ConnectionFailed, _TransientFailure) as failed:
                error = failed.error if isinstance(failed, _TransientFailure) else failed
            if self._at > before:
                began_s, attempt = self._patience.monotonic_s(), 0
            elif self._url:
                self._url = None  # from now on through a broker
                continue
            if self._at == self._wanted.size:
                return
            wait_s = self._patience.pause_s(attempt)
            if self._patience.monotonic_s() + wait_s > began_s + self._patience.total_s:
                raise error
            attempt += 1
            yield Pause(wait_s)

    def _ask(self) -> Steps[Reply]:
        """Requests the bytes that are still missing. Raises _TransientFailure, ConnectionFailed, and the broker's final
        errors."""
        headers = {"Range": f"bytes={self._at}-"} if self._at else {}
        reply: Reply
        if self._url:
            reply = yield SignedRequest(self._url, headers=headers, streamed=True)
            if reply.stream is None:
                raise _TransientFailure(refusal(reply, f"the payload of message {self._location.id}"))
            return reply
        reply = yield Request("GET", self._location.path, headers=headers, streamed=True)
        if reply.stream is None:
            error = error_of(reply)
            raise _TransientFailure(error) if reply.status in TRANSIENT else error
        return reply

    def _read_body(self, reply: Reply) -> Steps[None]:
        skip = self._begin_of(reply)
        while self._at < self._wanted.size:
            data: bytes = yield Read(reply.stream)
            if not data:
                raise ConnectionFailed(
                    f"the payload of message {self._location.id} is incomplete: the connection ended at "
                    f"byte {self._at} of the payload"
                )
            data, skip = data[skip:], max(0, skip - len(data))
            if not data:
                continue
            if self._at + len(data) > self._wanted.size:
                raise self._damaged(f"more than {self._wanted.size} bytes arrived")
            self._digest.update(data)
            self._at += len(data)
            if self._at == self._wanted.size:
                self._check_end()
            yield Chunk(data)

    def _begin_of(self, reply: Reply) -> int:
        """Returns how many bytes of the answer were received before."""
        found = _RANGE.fullmatch(reply.headers.get("content-range", "")) if reply.status == 206 else None
        if reply.status == 206 and (found is None or int(found[1]) != self._at):
            raise _TransientFailure(Damaged("the broker's answer does not begin at the requested byte of the payload"))
        total = (found[2] if found else reply.headers.get("content-length")) or "*"
        if reply.headers.get("content-encoding", "identity") != "identity":
            raise _TransientFailure(
                Damaged("the broker's answer has a content encoding, although the request allowed none")
            )
        if total.isdigit() and int(total) != self._wanted.size:
            error = self._damaged(f"it has {total} bytes, not {self._wanted.size}")
            raise _TransientFailure(error) if self._url else error
        return 0 if found else self._at

    def _check_end(self) -> None:
        found = self._digest.hexdigest()
        if found != self._wanted.sha256:
            raise self._damaged(f"the SHA-256 of the received payload is {found}, not {self._wanted.sha256}")

    def _damaged(self, how: str) -> Damaged:
        return Damaged(
            f"the payload of message {self._location.id} differs from the published one: {how}", id=self._location.id
        )
