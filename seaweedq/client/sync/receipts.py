"""Receipts of a sync producer: like futures, settled by its threads."""

import threading

import msgspec

from seaweedq.client.core.producing.delivery import Outcome, shown
from seaweedq.client.core.protocol.wire import Published


class Delivery:
    """The outcome of one request of a producer, like a future."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._outcome = Outcome()

    def settle(self, outcome: Outcome) -> None:
        """States the outcome."""
        self._outcome = outcome
        self._done.set()

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Waits for the outcome and returns it. Raises TimeoutError after `timeout_s`."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"the outcome is still unknown after {timeout_s} s")
        return self._outcome

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._done.is_set()

    def known(self) -> Outcome | None:
        """Returns the outcome; None while it is not known."""
        return self._outcome if self.done() else None

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Returns the error if any of the messages failed, else None. Raises TimeoutError after `timeout_s`."""
        return self.outcome(timeout_s).error

    def result(self, timeout_s: float | None = None) -> Published:
        """Returns the broker's answer; raises the delivery's error. Raises TimeoutError after `timeout_s`."""
        outcome = self.outcome(timeout_s)
        if outcome.error:
            raise outcome.error
        assert outcome.published is not None
        return outcome.published


class Receipt(msgspec.Struct, gc=False, eq=False):
    """The outcome of one message, like a future whose result is the message's id."""

    _delivery: Delivery
    _index: int

    def done(self) -> bool:
        """Returns whether the outcome is known."""
        return self._delivery.done()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Returns the message's error if it failed, else None. Raises TimeoutError after `timeout_s`."""
        return self._delivery.outcome(timeout_s).error_of(self._index)

    def result(self, timeout_s: float | None = None) -> str:
        """Returns the id `{segment}-{offset}`; raises the message's error. Raises TimeoutError after `timeout_s`."""
        return self._delivery.outcome(timeout_s).id_of(self._index)

    def __repr__(self) -> str:
        return shown("Receipt", self._delivery.known(), self._index)
