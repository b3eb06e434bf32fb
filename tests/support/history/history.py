"""The history of a run: what clients asked, and what they were told, one line a message, in memory and as JSON lines.

`invoke` comes before the request is sent. `ok` says it happened; `fail`, that it certainly did not; `info`, that nobody
knows: it may have happened, once. A retry is a call of its own, for the same value (`hash`).
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

Op = Literal["publish", "deliver", "wait", "ack", "nack", "reject", "seek", "cursor", "read", "fault", "heal"]
Type = Literal["invoke", "ok", "fail", "info"]
LEAVES = "leaves"
"""The note of a publish whose client goes before the answer."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `call` joins the lines of one request; an op without all fields leaves them None.

    `broker` is the one that was asked. `attempt` is that of a delivery. A `seek` has a line for each segment, with the
    `offset` to which it goes. A `deliver` that brought nothing is told as a `wait`; `wait_s` is how long it
    was to wait, and `took_s` how long its last request took, if it had several: the others had no answer. A line of an
    ack is told `fail` where the id was unknown. A `fault` and a `heal` last from `invoke` to
    `ok`, a `heal` ends where the lag is zero, `wait_s` of it without processors; `note` names the fault, `segment` one
    that it hits.
    """

    t: float
    proc: str
    op: Op
    type: Type
    call: int
    topic: str = "t"
    key: str | None = None
    producer: str | None = None
    seq: int | None = None
    segment: int | None = None
    offset: int | None = None
    hash: str | None = None
    acked_to: int | None = None
    broker: str | None = None
    note: str | None = None
    subscription: str = "s"
    wait_s: float = 0.0
    took_s: float | None = None
    attempt: int = 1


class Row(NamedTuple):
    """A message as it was read at last, from HTTP or from a file."""

    segment: int
    offset: int
    key: str | None
    producer: str
    seq: int
    hash: str


class Letter(NamedTuple):
    """A dead letter as it was read at last: of which message and subscription it says to be, why, and what it holds."""

    subscription: str
    segment: int
    offset: int
    reason: str
    attempts: int
    hash: str


class History:
    """Lines from many threads, in the order in which they came; `before` are those of a run that this one goes on."""

    def __init__(self, path: Path, before: Sequence[Event] = ()) -> None:
        self.events = [*before]
        self._lock = threading.Lock()
        self._calls = max((event.call for event in before), default=0)
        self._file = path.open("w")

    def invoke(self, proc: str, op: Op, fields: Sequence[dict[str, Any]]) -> int:
        """A request about to be sent, with a line for each of its messages: its call."""
        with self._lock:
            self._calls += 1
            call = self._calls
        self._add(proc, op, "invoke", call, fields)
        return call

    def told(self, proc: str, op: Op, type: Type, call: int, fields: Sequence[dict[str, Any]]) -> None:
        """What became of it."""
        self._add(proc, op, type, call, fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def _add(self, proc: str, op: Op, type: Type, call: int, fields: Iterable[dict[str, Any]]) -> None:
        with self._lock:
            now = time.monotonic()
            events = [Event(now, proc, op, type, call, **each) for each in fields]
            self.events += events
            self._file.writelines(json.dumps(asdict(event)) + "\n" for event in events)


def digest(key: str | None, value: Any) -> str:
    """The hash of a message: of all that its publisher gave."""
    return hashlib.sha1(json.dumps([key, value], sort_keys=True).encode()).hexdigest()[:16]


def row(segment: int, offset: int, key: str | None, value: dict[str, Any]) -> Row:
    """A message of the load (`load.message`), as it was read."""
    return Row(segment, offset, key, value["p"], value["n"], digest(key, value))
