"""The messages that a `work` holds: which of them may be handled now, whose leases go on, which are lost. Pure.

In `ordered` the messages of a segment, and in `keyed` those of a key, are a *lane*: one of them is handled at a time,
in their order. When one fails, the broker ends the leases of all behind it, which come again after it; so they are
dropped before the broker is told. If that was the last attempt, the broker ends no other lease: so the dropped ones
are given back before the lane goes on. One that is rejected holds up nothing, and nothing is dropped. A pull that is
answered meanwhile, or was under way when the broker knew of the failure, may bring messages that were leased before:
these are dropped too, unless they begin with the failed one. The same holds for a message whose lease is over before it
was begun: it is given back, with all behind it, and nothing of its lane from a pull under way overtakes it.

A slow lane must not take all the places of those that wait: if workers have nothing to do, and all waiting messages are
behind running ones, the ends of the longest lanes are given back, and the next pull may bring other lanes. In `keyed`
the broker brings no more of a key that is leased; in `ordered` it may bring the same again: then the next time comes
later. No pull is under way meanwhile, and the next one is sent once the broker has taken them back, so that their order
stays.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UnsetType

from seaweedq.client.core.message import Answer, nack_of
from seaweedq.client.core.pulling import Mode, Pulling, PullOptions, PullResult
from seaweedq.client.core.wire import WireMessage

REASON_CHARS = 255
WAIT_S = 2.0  # of a sync pull: so long a stop may take
BUSY_S = 0.1  # of a pull at least, while something is handled that may come again
LONGEST_PAUSE_S = 5.0  # between two times that room is made in vain


class Reject(Exception):
    """Raise this in a handler for a message that can never be handled: the message goes to the dead-letter topic, with
    this reason. Without a dead-letter topic, the message is redelivered."""


@dataclass(slots=True)
class Worked:
    """How many messages a `work` has handled. `acked` messages are done, `failed` messages are redelivered, and
    `rejected` messages became dead letters. `unknown` messages were handled, but their acks arrived after the leases
    had ended, so they are redelivered, too."""

    acked: int = 0
    failed: int = 0
    rejected: int = 0
    unknown: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """A message that is held since `since_s`, until `due_s`. `verdict` is the handler's own nack."""

    wire: WireMessage
    lease: str | None
    lane: Hashable
    since_s: float
    due_s: float
    verdict: Answer | None = None


@dataclass(slots=True)
class Failure:
    """The message of a lane that failed, or whose lease was over; `is_told` once a broker knows of that."""

    segment: int
    offset: int
    is_told: bool = False


class HeldMessages:
    """All messages that are held: `running` ones, and `waiting` many others. Room is made `pause_s` after it was made
    in vain."""

    def __init__(self, mode: Mode, ack_deadline_s: float, max_extension_s: float) -> None:
        self._mode = mode
        self.ack_deadline_s = ack_deadline_s
        self._max_extension_s = max_extension_s
        self.running: set[Job] = set()
        self._ready: deque[Job] = deque()
        self._behind: dict[Hashable, deque[Job]] = {}  # of the lanes of which one is ready or runs
        self._failures: dict[Hashable, Failure] = {}
        self._lost: list[Job] = []  # their leases were over before they were begun
        self._leaving: dict[Job, None] = {}  # they are just being given back
        self._made_room = False
        self.pause_s = 0.0

    @property
    def waiting(self) -> int:
        """Returns how many messages are held and not begun."""
        return len(self._ready) + sum(map(len, self._behind.values()))

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing is held."""
        return not self.running and not self.waiting

    def wait_s(self, longest_s: float, limit_s: float | None, idle_s: float) -> float:
        """Returns how long the next pull is to wait, of one that ends after `limit_s` seconds without messages, and has
        had none for `idle_s`."""
        if limit_s is None:
            return longest_s
        return min(longest_s, max(limit_s - idle_s, 0 if self.is_empty else BUSY_S))

    def begin_pull(self) -> None:
        """Records that a pull is sent: one at a time. It brings nothing that ended with a failure told before."""
        self._failures = {lane: one for lane, one in self._failures.items() if not one.is_told}

    def add(self, pulled: PullResult, now_s: float) -> list[Job]:
        """Adds the messages of the last pull. Returns those that are dropped at once."""
        stale = []
        for wire in pulled.items:
            lane = {"ordered": wire.segment, "keyed": wire.key}.get(self._mode)
            job = Job(wire, pulled.lease, lane, now_s, now_s + self.ack_deadline_s)
            if self._is_stale(job):
                stale.append(job)
            else:
                self._queue(job)
        if self._made_room:
            self._made_room = False
            self.pause_s = 0 if self._ready else min(max(BUSY_S, 2 * self.pause_s), LONGEST_PAUSE_S)
        return stale

    def next(self, now_s: float) -> Job | None:
        """Returns the next message to handle, which is `running` from now on; those whose leases are over are lost, and
        so are those behind them."""
        while self._ready:
            job = self._ready.popleft()
            if job.due_s > now_s:
                self.running.add(job)
                return job
            self._lost.append(job)
            if job.lane is not None:
                self._lost += self._behind.pop(job.lane)
                self._failures[job.lane] = Failure(job.wire.segment, job.wire.offset)
        return None

    def pop_lost(self) -> list[Job]:
        """Returns the messages to give back, since `next` found that their leases were over."""
        lost, self._lost = self._lost, []
        self._leaving |= dict.fromkeys(lost)
        return lost

    def is_crowded(self, workers: int) -> bool:
        """Tells whether some of the workers have nothing to do, and all waiting messages are behind running ones."""
        idle = 0 < len(self.running) < workers
        return idle and not self._ready and any(self._behind.values())

    def make_room(self, most: int) -> list[Job]:
        """Drops the ends of the longest lanes until at most so many messages wait, to be given back. No pull is under
        way."""
        dropped: list[Job] = []
        while self.waiting > most and (longest := max(self._behind.values(), key=len, default=None)):
            dropped.append(longest.pop())
        self._leaving |= dict.fromkeys(dropped)
        self._made_room = bool(dropped)
        return dropped[::-1]

    def returned(self, jobs: Iterable[Job]) -> None:
        """Notes that a broker has what was given back."""
        for job in jobs:
            self._leaving.pop(job, None)
            self._mark_told(job)

    def fail(self, job: Job) -> list[Job]:
        """Drops the messages behind one that failed, before a broker is told. Returns them."""
        if job.lane is None:
            return []
        dropped = [*self._behind[job.lane]]
        self._behind[job.lane].clear()
        self._failures[job.lane] = Failure(job.wire.segment, job.wire.offset)
        return dropped

    def finish(self, job: Job) -> None:
        """Removes a message that was handled, or of whose failure a broker knows: the next one of its lane is
        ready."""
        self.running.discard(job)
        self._mark_told(job)
        behind = self._behind.get(job.lane)
        if behind:
            self._ready.append(behind.popleft())
        elif behind is not None:
            del self._behind[job.lane]

    def to_extend(self, now_s: float) -> list[Job]:
        """Returns the messages whose leases are to go on, the first of them first."""
        waiting = [*self._ready, *(job for behind in self._behind.values() for job in behind)]
        return [job for job in (*self.running, *waiting) if now_s < job.since_s + self._max_extension_s]

    def record_extension(self, jobs: Iterable[Job], unknown: Collection[str], sent_s: float) -> None:
        """Records the answer to an extension that was sent then; unknown messages are another consumer's."""
        for job in jobs:
            job.due_s = 0 if job.wire.id in unknown else sent_s + self.ack_deadline_s

    def clear(self) -> list[Job]:
        """Removes the messages that are not begun, and returns them, also those that are just being given back."""
        waiting = [*self._ready, *(job for behind in self._behind.values() for job in behind)]
        waiting += [*self._lost, *self._leaving]
        self._lost, self._leaving = [], {}
        self._ready.clear()
        for behind in self._behind.values():
            behind.clear()
        return waiting

    def _queue(self, job: Job) -> None:
        if job.lane in self._behind:
            self._behind[job.lane].append(job)
            return
        self._ready.append(job)
        if job.lane is not None:
            self._behind[job.lane] = deque()

    def _mark_told(self, job: Job) -> None:
        """Records that a broker knows of a message's failure, if it is that of its lane."""
        failure = self._failures.get(job.lane)
        if failure and (failure.segment, failure.offset) == (job.wire.segment, job.wire.offset):
            failure.is_told = True

    def _is_stale(self, job: Job) -> bool:
        failure = self._failures.get(job.lane)
        if failure is None or job.wire.segment != failure.segment:
            return False
        if job.wire.offset > failure.offset:
            return True
        del self._failures[job.lane]
        return False


def held_messages(shown: Mapping[str, Any], wanted: PullOptions, max_extension_s: float) -> HeldMessages:
    """Returns an empty one for a subscription, as a broker shows it."""
    return HeldMessages(
        shown.get("mode", "ordered"), shown.get("ack_deadline_s", wanted.ack_deadline_s), max_extension_s
    )


def failure_of(job: Job, error: BaseException) -> Answer:
    """Returns the nack of a message whose handler raised this."""
    if isinstance(error, Reject):
        return nack_of(job.wire.id, job.lease, reject=True, reason=str(error)[:REASON_CHARS] or None)
    return nack_of(job.wire.id, job.lease, reason=f"{type(error).__name__}: {error}"[:REASON_CHARS])


def failure_text(job: Job, pulling: Pulling, shown: Mapping[str, Any]) -> str:
    """Returns the words for a handler's failure; `shown` is the subscription as a broker shows it."""
    attempt = 1 if isinstance(job.wire.attempt, UnsetType) else job.wire.attempt
    most, backoff_s = shown.get("max_attempts") or 0, shown.get("backoff_s") or [0]
    if most and attempt >= most:
        then = f"moving it to dead-letter topic {shown.get('dead_letter_topic')}"
    else:
        delay_s = backoff_s[min(attempt, len(backoff_s)) - 1]
        then = f"retrying in {delay_s:g} s" if delay_s else "retrying at once"
    place = f"{pulling.topic}/{pulling.subscription} {job.wire.id}"
    return f"handler failed for {place} (attempt {attempt}{f' of {most}' if most else ''}); {then}"


def without_reject(verdict: Answer) -> Answer:
    """Returns a nack that does not reject."""
    return Answer("nack", verdict.id, verdict.lease, tuple(one for one in verdict.more if one[0] != "reject"))


def is_reject(verdict: Answer) -> bool:
    """Tells whether a nack rejects."""
    return ("reject", True) in verdict.more


def ids_by_lease(jobs: Sequence[Job]) -> Iterator[tuple[str | None, list[str]]]:
    """Yields each lease of messages with their ids."""
    for lease in {job.lease: None for job in jobs}:
        yield lease, [job.wire.id for job in jobs if job.lease == lease]
