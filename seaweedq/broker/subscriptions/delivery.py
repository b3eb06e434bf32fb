"""Delivery of one segment to one subscription, mode `ordered`: acked, leased and next offsets.

Pure: the time is an argument, nothing is read or written. One consumer at a time has the segment. When a lease ends
without an ack, those of all later offsets end with it; delivery begins again at the first unacked offset, and skips
acked ones. An ack counts once the journal has it: until then its offsets are `acking`, neither due nor acked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from seaweedq.broker.log.intervals import Run, Runs, runs_of
from seaweedq.coordination.records import CursorRecord

WINDOW = 100_000
MAX_RUNS = 1_000  # acked runs that a cursor carries before nothing new is delivered


@dataclass(slots=True)
class Lease:
    """The offsets [low, high), which the consumer has until `deadline_s` (monotonic)."""

    low: int
    high: int
    deadline_s: float


@dataclass(slots=True)
class AckResult:
    """The result of an ack of some offsets: `runs` must be made durable, `known` counts the acked ones, `unknown` are
    neither."""

    runs: list[Run] = field(default_factory=list)
    known: int = 0
    unknown: list[int] = field(default_factory=list)


class Delivery:
    """The state of a segment in a subscription: everything below `acked_to` is acked, and `leases` belong to
    `consumer`."""

    def __init__(
        self,
        acked_to: int,
        acked: Iterable[Run] = (),
        attempts: dict[int, int] | None = None,
        delivered_to: int = 0,
        leases: Iterable[Lease] = (),
        consumer: str | None = None,
    ) -> None:
        self.acked_to = acked_to
        self.acked = Runs(acked)
        self.attempts = attempts or {}  # of those delivered more than once
        self.delivered_to = max(delivered_to, acked_to, self.acked.end)  # after a crash acks are newer than checkpoints
        self._acking = Runs()
        self._leases = list(leases)
        self._consumer = consumer
        self.position = max(acked_to, self._leases[-1].high) if self._leases else acked_to

    @staticmethod
    def of(record: CursorRecord, leases: Iterable[Lease] = ()) -> "Delivery":
        """Returns the state that a cursor's record holds, with the leases of its consumer."""
        attempts = {int(offset): count for offset, count in record.attempts.items()}
        consumer = record.consumer if leases else None
        return Delivery(record.acked_to, record.acked, attempts, record.delivered_to, leases, consumer)

    def record(self, epoch: int) -> CursorRecord:
        """Returns the state as a cursor's record, without leases."""
        attempts = {str(offset): count for offset, count in self.attempts.items()}
        return CursorRecord(epoch, self.acked_to, tuple(self.acked), attempts, self.delivered_to)

    def expire(self, now_s: float) -> None:
        """Ends the leases whose time is over, and all that follow the first offset of those."""
        for lease in self._leases:
            open_runs = self._unanswered(lease) if lease.deadline_s <= now_s else []
            if open_runs:
                self._rewind(open_runs[0][0])
                break
        self._leases = [lease for lease in self._leases if self._unanswered(lease)]

    def leased(self) -> tuple[list[Lease], str | None]:
        """Returns the leases, and their consumer."""
        return list(self._leases), self._consumer

    def next_deadline(self) -> float | None:
        """Returns the time at which the next lease ends (monotonic seconds), or None."""
        return min((lease.deadline_s for lease in self._leases), default=None)

    def available(self, consumer: str, end: int, limit: int) -> Run | None:
        """Returns the next offsets for this consumer, at most `limit`, below `end`; None where there are none, or where
        it is another consumer's turn."""
        if self._leases and self._consumer != consumer:
            return None
        low = self._skip(self.position)
        ragged = len(self.acked) >= MAX_RUNS
        high = min(end, low + limit, self.delivered_to if ragged else self.acked_to + WINDOW)
        if low >= high:
            return None
        return low, self._acking.gap_end(low, self.acked.gap_end(low, high))

    def lease(self, run: Run, consumer: str, deadline_s: float) -> None:
        """Leases a run to a consumer; counts another attempt of offsets that were delivered before."""
        low, high = run
        for offset in range(low, min(high, self.delivered_to)):
            self.attempts[offset] = self.attempts.get(offset, 1) + 1
        self._consumer = consumer
        last = self._leases[-1] if self._leases else None
        if last and last.high == self.position and last.deadline_s == deadline_s:
            last.high = high  # what lies between is acked, or is about to be
        else:
            self._leases.append(Lease(low, high, deadline_s))
        self.position = high
        self.delivered_to = max(self.delivered_to, high)

    def pass_over(self, low: int, high: int) -> None:
        """Counts offsets that nobody will get (expired messages) as acked. They need not become durable."""
        self._apply(low, high)

    def judge(self, offsets: Iterable[int], consumer: str | None) -> AckResult:
        """Sorts the offsets of an ack into leased, acked and unknown ones.

        An offset whose ack is on its way to the journal goes there once more, so that the repeated request waits for
        durability too.
        """
        judged = AckResult()
        mine = consumer is None or consumer == self._consumer
        for low, high in runs_of(offsets):
            for low_open, high_open in self._gaps(low, high):
                acking = Runs(self._acking.gaps(low_open, high_open)).gaps(low_open, high_open)
                taken = Runs([*acking, *(self._leased(low_open, high_open) if mine else ())])
                judged.runs += taken
                judged.unknown += [o for a, b in taken.gaps(low_open, high_open) for o in range(a, b)]
            judged.known += high - low
        judged.known -= len(judged.unknown)
        return judged

    def begin_ack(self, runs: Iterable[Run]) -> None:
        """Marks runs whose ack is on its way to the journal."""
        for run in runs:
            self._acking.add(*run)

    def end_ack(self, runs: Iterable[Run], durable: bool) -> None:
        """Takes in the outcome of an ack: `durable`, or the runs are delivered again."""
        for low, high in runs:
            self._acking.discard(low, high)
            if durable:
                self._apply(low, high)
            else:
                self._rewind(low)

    def _apply(self, low: int, high: int) -> None:
        self.acked.add(max(low, self.acked_to), high)
        self.delivered_to = max(self.delivered_to, high)  # a recovery adds acks that are newer than the checkpoint
        before, self.acked_to = self.acked_to, self.acked.end_of(self.acked_to)
        self.acked.discard(before, self.acked_to)
        for offset in range(low, high) if high - low < len(self.attempts) else [*self.attempts]:
            if low <= offset < high:
                self.attempts.pop(offset, None)

    def _rewind(self, offset: int) -> None:
        self.position = min(self.position, offset)
        self._leases = [Lease(x.low, min(x.high, offset), x.deadline_s) for x in self._leases if x.low < offset]

    def _unanswered(self, lease: Lease) -> list[Run]:
        return [gap for run in self._gaps(lease.low, lease.high) for gap in self._acking.gaps(*run)]

    def _gaps(self, low: int, high: int) -> list[Run]:
        return self.acked.gaps(max(low, self.acked_to), high)

    def _leased(self, low: int, high: int) -> list[Run]:
        return [(max(low, x.low), min(high, x.high)) for x in self._leases if x.low < high and low < x.high]

    def _skip(self, offset: int) -> int:
        offset = max(offset, self.acked_to)
        while (after := self._acking.end_of(self.acked.end_of(offset))) != offset:
            offset = after
        return offset
