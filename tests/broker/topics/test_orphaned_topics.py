"""What brokers that are gone have left, as observers are told it: whose segments wait, and why."""

from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.broker.topics.orphaned_topics import TOPICS, find_orphaned_topics
from seaweedq.coordination.records import BrokerRecord, JournalRecord
from seaweedq.coordination.versioned import Unreadable, Versioned

LIVING = BrokerRecord("http://b", "b", 0)


class Cluster:
    """A catalog and a roster in one."""

    def __init__(self, owned: dict[str | None, list[Any]], journals: dict[str, Any], living: BrokerRecord = LIVING):
        self.owned = owned
        self.journals = {one: journal for one, journal in journals.items() if not isinstance(journal, Unreadable)}
        self.unreadable_journals = {one: each for one, each in journals.items() if isinstance(each, Unreadable)}
        self.brokers = {"living": SimpleNamespace(record=living)}

    def owners(self) -> list[str | None]:
        return list(self.owned)

    def owned_by(self, owner: str | None) -> list[Any]:
        return self.owned.get(owner, [])

    def alive(self, broker: str | None) -> bool:
        return broker in self.brokers

    def journal(self, broker: str) -> Any:
        return self.journals.get(broker) or self.unreadable_journals.get(broker)


def held(**more: Any) -> Any:
    return Versioned.new(JournalRecord("file", "f1", **more))


def told(owned: dict[str | None, list[Any]], journals: dict[str, Any], **more: Any) -> list[Any]:
    cluster: Any = Cluster(owned, journals, **more)
    return find_orphaned_topics(cluster, cluster)


def test_nothing_is_left_where_all_live() -> None:
    assert told({"living": [("t", 0, 0)]}, {"living": held()}) == []
    assert told({}, {"dead": held(recovered=True)}) == [], "only its content is still to be removed"


@pytest.mark.parametrize(
    ("journal", "state", "says"),
    [
        (held(), "recovering", "of kind file"),
        (held(path="/data"), "recovering", "in the folder /data"),
        (held(needs_newer=True, lowest=2, highest=9), "needs-newer-broker", "of levels 2 to 9"),
        (held(left=("u",)), "partly-recovered", "cannot be read: u"),
        (held(recovered=True), "unassigned", "about to give them"),
        (Unreadable("journals/dead", "of level 9", 3), "needs-newer-broker", "of level 9"),
        (None, "unassigned", "about to give them"),
    ],
)
def test_why_the_segments_of_a_dead_broker_wait(journal: Any, state: str, says: str) -> None:
    (found,) = told({"dead": [("t", 0, 1), ("t", 0, 2), ("u", 0, 0)]}, {"dead": journal} if journal else {})
    assert (found.broker, found.state, found.segments, found.topics) == ("dead", state, 3, ("t", "u"))
    assert says in found.why


def test_segments_without_owner_journals_without_segments_and_no_taker() -> None:
    many = [(f"t{n:02d}", 0, 0) for n in range(30)]
    found = told({None: many}, {"dead": held()})
    assert [(one.broker, one.segments, len(one.topics)) for one in found] == [(None, 30, TOPICS), ("dead", 0, 0)]
    draining = BrokerRecord("http://b", "b", 0, draining=True)
    (one,) = told({None: many}, {}, living=draining)
    assert one.why == "no broker takes segments now"
