"""One run of `seaweedq dead-letters redrive`: the letters of a subscription, until none is left or `most` are done.

What an earlier run had leased when it was killed comes once those leases have ended: the run waits for that, for as
long as a lease lasts, and says so. What another consumer holds for longer is counted, and told at the end.
"""

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from seaweedq.cli.letters.redriving import Redriving
from seaweedq.cli.shared.common import complain, counted

if TYPE_CHECKING:
    from seaweedq.client import Client, Message

IDLE_S, PAGE = 1.0, 500
MARGIN_S = 2.0  # beyond the deadline of a lease, until its messages come again


class RedriveRun:
    """Counts letters that are `done` now, were published `again` before, and messages that are `left`, which are no
    letters. `held` letters are with others at the end."""

    def __init__(
        self, client: "Client", redriving: Redriving, most: int | None, told: Callable[[int], None], consumer: str
    ) -> None:
        self._client, self._redriving, self._told, self._consumer = client, redriving, told, consumer
        self._most = most
        self.done = self.again = self.held = 0
        self.left: dict[str, Message] = {}
        self._waited_s = 0.0

    def run(self) -> None:
        """Publishes letters. Raises the errors of a publish."""
        try:
            while self._publish_all() and self._may_come_again():
                pass
        finally:
            for message in self.left.values():
                message.nack(0)

    @property
    def _is_full(self) -> bool:
        return self._most is not None and self.done + self.again + len(self.left) >= self._most

    def _publish_all(self) -> bool:
        """Publishes what comes within a second of the one before. Returns False where that is all that was asked
        for."""
        pulled = min(self._most or PAGE, PAGE)
        named: dict[str, Any] = {"max_messages": pulled, "mode": "ordered", "consumer": self._consumer}
        topic, subscription = self._redriving.topic, self._redriving.subscription
        messages: Any = self._client.subscribe(topic, subscription, "earliest", IDLE_S, **named)
        with closing(messages):  # sends the acks, also of what an error ends
            for message in messages:
                self._waited_s = 0.0
                self._take(message)
                if self._is_full:
                    return False
        return True

    def _take(self, message: "Message") -> None:
        if message.id in self.left:
            self.left[message.id] = message  # under another lease by now
            return
        outcome = self._redriving.redrive(message)
        if outcome is None:
            complain(f"message {message.id} has no header dead-letter-topic, so it is no dead letter; it stays")
            self.left[message.id] = message
            return
        message.ack()
        self.done, self.again = self.done + (outcome == "published"), self.again + (outcome == "there")
        self._told(self.done)

    def _may_come_again(self) -> bool:
        """Tells whether letters that others hold come within the deadline of a lease."""
        shown = self._client.subscription(self._redriving.topic, self._redriving.subscription)
        lag = shown["lag_total"]
        self.held = max(0, lag["in_flight"] + lag["delayed"] - len(self.left))
        if not self.held or shown["paused"]:
            return False
        longest_s = shown["ack_deadline_s"] + MARGIN_S
        if not self._waited_s:
            leased = f"{counted(self.held, 'letter')} {'is' if self.held == 1 else 'are'} leased"
            complain(f"{leased}, perhaps by a run that ended; waiting up to {longest_s:g} s")
        self._waited_s += IDLE_S
        return bool(self._waited_s < longest_s)
