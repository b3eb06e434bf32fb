"""Counts the answers of a broker by route and status, and how long those of the hot routes took: for metrics.

A route is known by its path in the table of rules, so that no name of a client's becomes a label. A request that
another broker has relayed was counted there.
"""

from collections import Counter

from seaweedq.api.access.authentication import RELAYED, RULE
from seaweedq.api.access.rules import SEGMENT, SOCKET, SUBSCRIPTION, TOPIC
from seaweedq.api.request import Scope
from seaweedq.clock import Clock
from seaweedq.durations import Durations, by_outcome

OUTCOME = "seaweedq.outcome"  # the key in a scope of how a request ended, where its status does not tell
WAITED, EMPTY = "waited", "empty"
OK, REFUSED, FAILED = "ok", "refused", "failed"
NO_ROUTE = "none"
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

    def note(self, scope: Scope, status: int, began_s: float) -> None:
        """Counts an answer."""
        if RELAYED in scope:
            return
        found = scope.get(RULE)
        if found is None:
            self.responses["other", NO_ROUTE, status] += 1
            return
        route = found[0].route
        method = SOCKET if scope["type"] == "websocket" else scope["method"]
        self.responses[method, route, status] += 1
        timed = self._timed.get(route)
        if timed is not None:
            outcome = scope.get(OUTCOME, OK) if status < 400 else REFUSED if status < 500 else FAILED
            timed[outcome].add(self._clock.monotonic_s() - began_s)
