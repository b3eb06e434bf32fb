"""The reports of suspicion, and the marks of ended leases, as coordination has them: watched, so possibly behind.

A mark is written before a lease is ended on suspicion (broker/cluster/revoker). As long as it is there, nobody
dispatches in that broker's place (broker/subscriptions/assignment).
"""

from collections.abc import Callable

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination, Entry
from seaweedq.coordination.records import RevocationRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.coordination.view import View


class SuspicionReports:
    """The reports on each broker (`by_broker`), by reporter, with their revisions; and the marks of `revoked` brokers.
    `changed` is called after every change."""

    def __init__(self, coordination: Coordination, changed: Callable[[], None]) -> None:
        self.by_broker: dict[str, dict[str, int]] = {}
        self.revoked: dict[str, Versioned[RevocationRecord]] = {}
        self._changed = changed
        view = View(coordination, [keys.SUSPICIONS.prefix(), keys.REVOCATIONS.prefix()], self._apply)
        self.load = view.load
        self.follow = view.follow

    def _apply(self, change: Change) -> None:
        if keys.SUSPICIONS.matches(change.key):
            self._apply_report(change)
        elif keys.REVOCATIONS.matches(change.key):
            self._apply_mark(change)
        self._changed()

    def _apply_report(self, change: Change) -> None:
        broker, reporter = keys.SUSPICIONS.parse(change.key)
        reports = self.by_broker.setdefault(broker, {})
        reports.pop(reporter, None)
        if change.value is not None:
            reports[reporter] = change.revision
        if not reports:
            del self.by_broker[broker]

    def _apply_mark(self, change: Change) -> None:
        (broker,) = keys.REVOCATIONS.parse(change.key)
        self.revoked.pop(broker, None)
        if change.value is not None:
            found = keys.REVOCATIONS.read(Entry(change.key, change.value, change.revision))
            if isinstance(found, Versioned):  # one that cannot be read stays for a newer leader
                self.revoked[broker] = found
