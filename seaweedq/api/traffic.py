"""Counts the answers of a broker by route and status, and how long those of the hot routes took: for metrics.

A route is known by its path in the table of rules, so that no name of a client's becomes a label. A request that
another broker has relayed was counted there.
"""

from collections import Counter

from seaweedq.api.request import EMPTY, OK, WAITED, Request
from seaweedq.api.routes import NO_ROUTE, SEGMENT, SUBSCRIPTION, TOPIC
from seaweedq.clock import Clock
from seaweedq.durations import Durations, by_outcome

REFUSED, FAILED = "refused", "failed"
OPERATIONS = {
    f"{TOPIC}/messages": "publish",
    f"{SUBSCRIPTION}/pull": "pull",
    f"{SUBSCRIPTION}/ack": "ack",
    f"{SUBSCRIPTION}/nack": "nack",
    f"{SUBSCRIPTION}/extend": "extend",
    f"{SEGMENT}/messages": "fetch",
}
SWITCHED = 101  # the status of a request that became a WebSocket


class Traffic:
    """The counts of one broker."""

    def __init__(self, clock: Clock) -> None:
        self.responses: Counter[tuple[str, str, int]] = Counter()
        self.durations: dict[str, dict[str, Durations]] = {
            one: by_outcome(OK, *([WAITED, EMPTY] if one == "pull" else []), REFUSED, FAILED)
            for one in OPERATIONS.values()
        }
        self._clock = clock
        self._timed = {route: self.durations[operation] for route, operation in OPERATIONS.items()}

    def begin(self) -> float:
        """Returns when a request has begun."""
        return self._clock.monotonic_s()

    def note(self, request: Request, status: int, began_s: float) -> None:
        """Counts an answer."""
        if request.is_relayed:
            return
        path = request.route.path
        self.responses["other" if request.route is NO_ROUTE else request.method, path, status] += 1
        timed = self._timed.get(path)
        if timed is not None:
            outcome = request.outcome if status < 400 else REFUSED if status < 500 else FAILED
            timed[outcome].add(self._clock.monotonic_s() - began_s)
