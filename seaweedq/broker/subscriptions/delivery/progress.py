"""The progress of one subscription in one segment: acked below `acked_to`, and which offsets beyond it. Pure.

It is all that becomes durable (`CursorRecord`): the frames of acks first, then a checkpoint. Leases and delays, which
do not, are those of broker/subscriptions/delivery/segment_delivery.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from seaweedq.broker.log.intervals import Offsets, Run, runs_of
from seaweedq.broker.subscriptions.delivery.window import ACKED, ACKING, MOST_ATTEMPTS, Array, Window
from seaweedq.coordination.records.subscriptions import SUBSCRIPTION_LEVEL, CursorRecord

PACKED_LEVEL = 2  # of the cluster, from which on cursors are packed (coordination/records/cursor_form)


EMPTY: Offsets = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Asker:
    """The consumer or lease in whose name something is acked, nacked or extended; None for any. A lease comes with its
    consumer. `anything`: it may ack whatever lies in the window, delivered by this dispatcher or not, unless it may
    have been delivered before a seek."""

    consumer: int | None = None
    lease: int | None = None
    anything: bool = False


@dataclass(slots=True)
class AckResult:
    """The result of an ack of some offsets: `taken` (sorted) must be made durable, `known` counts the acked ones,
    `late` those of them whose lease had ended, `unknown` are neither leased nor acked."""

    taken: Offsets = field(default_factory=lambda: EMPTY)
    known: int = 0
    late: int = 0
    unknown: list[int] = field(default_factory=list)


class Progress:
    """Everything below `acked_to` is acked, and `acked_count` offsets beyond it; offsets from `delivered_to` on were
    never delivered. Those below `sought_below` may have been delivered before a seek."""

    def __init__(
        self, acked_to: int, acked: Iterable[Run], attempts: Mapping[int, int] | None, delivered_to: int
    ) -> None:
        acked = list(acked)
        self.acked_to = acked_to
        self.acked_count = 0
        self.sought_below = 0
        # After a crash acks are newer than the checkpoint.
        self.delivered_to = max(delivered_to, acked_to, *(high for _, high in acked))
        self._window = Window(acked_to)
        self._window.reach(self.delivered_to)
        self._window.span("attempts", acked_to)[:] = 1
        for offset, count in (attempts or {}).items():
            if acked_to <= offset < self.delivered_to:
                self._window.put("attempts", np.array([offset]), min(count, MOST_ATTEMPTS))
        self.pass_over_all(acked)

    def record(self, epoch: int, level: int = 1) -> CursorRecord:
        """Returns the state as a cursor's record of a level, without leases."""
        needs = PACKED_LEVEL if level >= PACKED_LEVEL else UNSET
        attempts = self._attempts(least=2 if needs is UNSET else 0)
        record = CursorRecord(
            epoch, self.acked_to, tuple(self.acked_runs()), attempts, self.delivered_to, needs_level=needs
        )
        if self.sought_below <= self.acked_to:
            return record
        return replace(record, needs_level=SUBSCRIPTION_LEVEL, sought_below=self.sought_below)

    @property
    def is_idle(self) -> bool:
        """Whether nothing beyond `acked_to` is leased, delayed or acked. Most segments of most subscriptions are."""
        return self._window.end <= self.acked_to

    def acked_runs(self) -> list[Run]:
        """Returns what is acked beyond `acked_to`."""
        if not self.acked_count:
            return []
        return runs_of(self._window.find(self.acked_to, ACKED))

    def attempts_of(self, offsets: Offsets) -> Array:
        """Returns how often each of these offsets was delivered."""
        return self._window.of("attempts", offsets)

    def in_use(self, name: str) -> set[int]:
        """Returns the numbers of the leases, or consumers, that had some unacked offset last."""
        return self._window.numbers(name)

    def pass_over(self, low: int, high: int) -> None:
        """Counts offsets that nobody will get (expired messages) as acked. They need not become durable."""
        low = max(low, self.acked_to)
        if low == self.acked_to and high >= self._window.end:  # a recovery passes over millions at a time
            self.acked_count = 0
            self.acked_to, self.delivered_to = max(low, high), max(self.delivered_to, high)
            self._window.forget(self.acked_to)
        elif low < high:
            self._window.reach(high)
            self._settle(np.arange(low, high, dtype=np.int64))

    def retire(self, below: int) -> int:
        """Counts what is below an offset as acked, since retention has removed it. Returns how many of them nobody had
        acked."""
        span = self._window.span("state", self.acked_to, max(self.acked_to, min(below, self._window.end)))
        acked = int((span >= ACKING).sum())
        skipped = max(0, below - self.acked_to) - acked
        self.pass_over(self.acked_to, below)
        return skipped

    def pass_over_all(self, runs: Iterable[Run]) -> None:
        """As `pass_over`, of rising runs, which may be very many: what lies behind a hole is settled at once."""
        left = deque(runs)
        while left and left[0][0] <= self.acked_to:
            self.pass_over(*left.popleft())
        if left:
            self._window.reach(left[-1][1])
            self._settle(np.concatenate([np.arange(low, high, dtype=np.int64) for low, high in left]))

    def settle(self, offsets: Offsets) -> None:
        """As `pass_over`, of some offsets of the window."""
        if len(offsets):
            self._settle(offsets)

    def _settle(self, offsets: Offsets) -> None:
        self.acked_count += int((self._window.of("state", offsets) != ACKED).sum())
        self._window.move(offsets, ACKED)
        self.delivered_to = max(self.delivered_to, int(offsets[-1]) + 1)
        span = self._window.span("state", self.acked_to)
        if len(span) and span[0] == ACKED:
            others = span != ACKED
            count = int(others.argmax()) if others.any() else len(span)
            self.acked_to += count
            self.acked_count -= count
            self._window.forget(self.acked_to)

    def _attempts(self, least: int) -> dict[str, int]:
        """Returns the attempts of unacked offsets below `delivered_to` that were not delivered just once."""
        if self.is_idle:
            return {}
        span = slice(self.acked_to, self.delivered_to)
        attempts = self._window.span("attempts", span.start, span.stop)
        states = self._window.span("state", span.start, span.stop)
        at = np.flatnonzero((attempts != 1) & (attempts >= least) & (states != ACKED))
        return dict(zip(map(str, (at + self.acked_to).tolist()), attempts[at].tolist(), strict=True))

    def _is_ragged(self, max_runs: int) -> bool:
        if self.acked_count < max_runs:
            return False
        acked = self._window.span("state", self.acked_to) == ACKED
        return int((acked[1:] & ~acked[:-1]).sum()) + int(acked[0]) >= max_runs
