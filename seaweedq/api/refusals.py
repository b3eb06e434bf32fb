"""Counts what was refused to strangers, by reason, and logs it: else nobody sees an attack, or a bound that is too low.

The first refusal for a reason is logged, then one line each EVERY_S with the number of those between.
"""

import logging
from collections.abc import Callable

from seaweedq.access.tokens import masked
from seaweedq.clock import Clock
from seaweedq.errors import (
    Forbidden,
    ForeignOrigin,
    MissingContentType,
    RateLimited,
    SeaweedqError,
    TooManySegments,
    TooManyTopics,
    Unauthenticated,
    WrongHost,
)

REASON_OF: dict[type[SeaweedqError], str] = {
    WrongHost: "host",
    ForeignOrigin: "origin",
    MissingContentType: "content_type",
    RateLimited: "rate",
    Unauthenticated: "unauthenticated",
    Forbidden: "forbidden",
    TooManyTopics: "topics",
    TooManySegments: "segments",
}
OF_BODIES, OF_ANSWERS = ("bodies", "slow_body", "unread_body"), ("answers", "slow_reader", "unread_answer")
OF_CONNECTIONS = ("connection", "quiet_connection", "slow_head", "handshake", "staying", "tls", "address")
OF_PEERS = ("peer",)
REASONS = (*REASON_OF.values(), *OF_PEERS, *OF_BODIES, *OF_ANSWERS, *OF_CONNECTIONS)
EVERY_S = 10.0
logger = logging.getLogger(__name__)


class Refusals:
    """The counts of one broker, by reason. `throttled_s` are the seconds that limits have told clients to wait."""

    def __init__(self, clock: Clock, masked: Callable[[str], str] = masked) -> None:
        self.counts = dict.fromkeys(REASONS, 0)
        self.throttled_s = 0.0
        self._clock = clock
        self._masked = masked
        self._logged: dict[str, tuple[float, int]] = {}  # when, and the count then

    def note_error(self, error: SeaweedqError) -> None:
        """Counts an error with which a client is answered, if it is one of REASON_OF."""
        if isinstance(error, RateLimited):
            self.throttled_s += error.fields.get("retry_after_s", 0)
        if reason := REASON_OF.get(type(error)):
            self.note(reason, error.detail)

    def note(self, reason: str, detail: str) -> None:
        """Counts a refusal, and logs it where none was logged for a while."""
        self.counts[reason] += 1
        now_s = self._clock.monotonic_s()
        at_s, count = self._logged.get(reason, (-EVERY_S, 0))
        if now_s - at_s >= EVERY_S:
            self._logged[reason] = now_s, self.counts[reason]
            between = self.counts[reason] - count - 1
            told = self._masked(detail)
            logger.warning("refused for %s: %s (%d more since the last such line)", reason, told, between)
