"""What a sync producer gives back for what it took: like futures, settled by its threads."""

import threading

from seaweedq.client.core.delivery import Outcome
from seaweedq.client.core.wire import Published


class Delivery:
    """What becomes of one request of a producer."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._outcome = Outcome()

    def settle(self, outcome: Outcome) -> None:
        """State the outcome."""
        self._outcome = outcome
        self._done.set()

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """The outcome, once it is known; waits at most `timeout_s`, then raises TimeoutError."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"no outcome within {timeout_s} s")
        return self._outcome

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """The error, if all or some of it failed; waits at most `timeout_s`, then raises TimeoutError."""
        return self.outcome(timeout_s).error

    def result(self, timeout_s: float | None = None) -> Published:
        """What the broker answered; raises the delivery's error, or TimeoutError after `timeout_s`."""
        outcome = self.outcome(timeout_s)
        if outcome.error:
            raise outcome.error
        assert outcome.published is not None
        return outcome.published


class Receipt:
    """What becomes of one message: like a future whose result is the message's id."""

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: Delivery, index: int) -> None:
        self._delivery, self._index = delivery, index

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._delivery.done()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """The error, if it failed; waits at most `timeout_s`, then raises TimeoutError."""
        return self._delivery.outcome(timeout_s).error_of(self._index)

    def result(self, timeout_s: float | None = None) -> str:
        """The id `{segment}-{offset}`; raises the message's error, or TimeoutError after `timeout_s`."""
        return self._delivery.outcome(timeout_s).id_of(self._index)
