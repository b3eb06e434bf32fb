"""The steps of a subscriber: create the subscription, pull, ack, and end when idle. No I/O."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from seaweedq.client.core.calls import MAX_WAIT_S, subscription_path
from seaweedq.client.core.effects import JSON, Request, Steps
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.wire import Acked, WireMessage, decode_acked, decode_pull, encode
from seaweedq.errors import SubscriptionConflict

# Acks wait for company, but no longer than this, and no more of them than that.
ACK_LINGER_S = 0.1
ACK_BATCH = 500
REPORT_S = 10.0
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LateAcks:
    """Counts acks that came too late, and says when to report them: at once, then at most every REPORT_S. `example` is
    the id of one."""

    count: int = 0
    example: str = ""
    _reported_s: float = -inf

    def note(self, late: Sequence[str], now_s: float) -> int:
        """Adds acks by their ids. Returns how many are to be reported now."""
        self.count += len(late)
        self.example = late[0] if late else self.example
        if not self.count or now_s - self._reported_s < REPORT_S:
            return 0
        due, self.count, self._reported_s = self.count, 0, now_s
        return due


@dataclass(frozen=True, slots=True)
class Pulling:
    """One consumer of a subscription."""

    topic: str
    subscription: str
    consumer: str
    max_messages: int
    idle_timeout_s: float | None
    patience: Patience
    late: LateAcks = field(default_factory=LateAcks)

    def ensure(self, start: str | Mapping[str, Any], ack_deadline_s: float) -> Steps[None]:
        """Creates the subscription; an existing one is used as it is. A repeated request finds the subscription that it
        made."""
        body = {"mode": "ordered", "start": start, "ack_deadline_s": ack_deadline_s}
        path = subscription_path(self.topic, self.subscription)
        try:
            yield from self.patience.send(Request("PUT", path, {}, encode(body), {"Content-Type": JSON}))
        except SubscriptionConflict:
            return

    def pull(self) -> Steps[list[WireMessage] | None]:
        """Waits for messages. Returns at least one, or None once brokers had none for `idle_timeout_s`.

        Only waits that a broker answered count as idle; an outage raises an error after the timeout.
        """
        left_s = self.idle_timeout_s
        while True:
            wait_s = MAX_WAIT_S if left_s is None else min(MAX_WAIT_S, left_s)
            body = {"max_messages": self.max_messages, "wait_s": wait_s, "consumer": self.consumer}
            reply = yield from self.patience.send(self._post("pull", body, wait_s))
            if messages := decode_pull(reply.body).messages:
                return messages
            if left_s is not None:
                left_s -= wait_s
                if left_s <= 0:
                    return None

    def ack(self, ids: list[str]) -> Steps[Acked]:
        """Acks; once a broker answers 200, the acks are durable, but for those of ended leases, which it logs."""
        reply = yield from self.patience.send(self._post("ack", {"ids": ids, "consumer": self.consumer}))
        acked = decode_acked(reply.body)
        if late := self.late.note(acked.unknown, self.patience.monotonic_s()):
            logger.warning(
                "%d acks of subscription %s of topic %s came after their leases had ended, so these messages come "
                "again, for example %s; ack sooner, pull fewer (max_messages=%d), or give ack_deadline_s more time",
                late,
                self.subscription,
                self.topic,
                self.late.example,
                self.max_messages,
            )
        return acked

    def _post(self, verb: str, body: dict[str, Any], wait_s: float = 0) -> Request:
        path = f"{subscription_path(self.topic, self.subscription)}/{verb}"
        return Request("POST", path, {}, encode(body), {"Content-Type": JSON}, wait_s, repeatable=True)
