"""The messages of one segment that a subscription has given up: they are delivered to nobody, until they are acked.

Pure. A message dies when it is rejected, or when its `max_attempts`-th delivery fails. It is DYING from then on
(delivery/window), with the reason, and ends so by an ack alone, which follows a durable dead letter
(broker/letters). It holds up nothing: it does not come again, so nothing has to wait for it.

    leased → dying → acking → acked      delayed → dying (its attempts are over)      acking → dying (journal refuses)
"""

from typing import NamedTuple

import numpy as np

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.subscriptions.delivery.window import ACKING, DYING, NOBODY, Window

REJECTED, MAX_ATTEMPTS = "rejected", "max-attempts"
NO_ANSWER = "no answer came before the deadline"


class Death(NamedTuple):
    """The reason for which messages were given up, REJECTED or MAX_ATTEMPTS, and what the consumer said of it."""

    reason: str
    detail: str = ""


class Sent(NamedTuple):
    """A batch of dead letters that may have been published: under which identity, and of which offsets."""

    producer: str
    sequence: int
    offsets: tuple[int, ...]

    @property
    def name(self) -> str:
        """Returns the identity as a text, which `parse` takes."""
        return f"{self.producer}:{self.sequence}"

    @staticmethod
    def parse(name: str, offsets: tuple[int, ...]) -> "Sent":
        """Returns the batch of an identity."""
        producer, _, sequence = name.rpartition(":")
        return Sent(producer, int(sequence), offsets)


class Deaths:
    """The offsets that die in a window, with their reasons. `sent` is the batch of them that is published first, as it
    was begun: at this dispatcher, or at one before."""

    def __init__(self, window: Window) -> None:
        self.sent: Sent | None = None
        self._window = window
        self._why: dict[int, Death] = {}

    def __bool__(self) -> bool:
        return bool(self._why)

    def take(self, offsets: Offsets, death: Death, due_s: float) -> None:
        """Lets offsets of the window die; they are with nobody any more."""
        self._window.move(offsets, DYING)
        for name, value in (("lease", NOBODY), ("consumer", NOBODY), ("due_s", due_s)):
            self._window.put(name, offsets, value)
        self._why.update(dict.fromkeys(offsets.tolist(), death))

    def take_again(self, failed: Offsets) -> Offsets:
        """Lets those offsets die on whose ack was refused. Returns the others."""
        is_dying = np.fromiter((offset in self._why for offset in failed.tolist()), bool, len(failed))
        self._window.move(failed[is_dying], DYING)
        others: Offsets = failed[~is_dying]
        return others

    def all(self) -> Offsets:
        """Returns the offsets that are dying, and forgets the reasons of those that ended."""
        if not self._why:
            return np.zeros(0, np.int64)
        known = np.array(sorted(offset for offset in self._why if offset >= self._window.low), np.int64)
        states = self._window.of("state", known)
        self._why = {offset: self._why[offset] for offset in known[(states == DYING) | (states == ACKING)].tolist()}
        found: Offsets = known[states == DYING]
        return found

    def unacked(self) -> list[int]:
        """Returns the offsets that are dying, and those whose ack is on its way."""
        self.all()
        return sorted(self._why)

    def begun(self) -> Sent | None:
        """Returns the batch that may have been published. It forgets one of which some is gone or acked: that cannot be
        repeated as it was."""
        if self.sent and not set(self.sent.offsets) <= set(self.unacked()):
            self.sent = None
        return self.sent

    def due(self, now_s: float) -> Offsets:
        """Returns the offsets whose dead letters are to be published now."""
        found = self.all()
        due: Offsets = found[self._window.of("due_s", found) <= now_s]
        return due

    def still(self, offsets: Offsets) -> Offsets:
        """Returns those of these offsets that are dying now."""
        found: Offsets = np.intersect1d(offsets, self.all(), assume_unique=True)
        return found

    def why(self, offset: int) -> Death:
        """Returns the reason of an offset that is dying."""
        return self._why[offset]

    def due_s(self, offsets: Offsets) -> list[float]:
        """Returns when the dead letters of dying offsets are to be published (monotonic seconds)."""
        found: list[float] = self._window.of("due_s", offsets).tolist()
        return found

    def postpone(self, offsets: Offsets, due_s: float) -> None:
        """Lets the dead letters of offsets that are still dying wait."""
        self._window.put("due_s", self.still(offsets), due_s)
