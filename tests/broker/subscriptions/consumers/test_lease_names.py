"""The names of leases and consumers at a dispatcher: each one's own, and a bounded number of them."""

import pytest

from seaweedq.broker.subscriptions import leases
from seaweedq.broker.subscriptions.cursor import SegmentCursor
from seaweedq.broker.subscriptions.leases import UNKNOWN, Asker, Leases
from seaweedq.coordination.records.subscriptions import CursorRecord
from seaweedq.coordination.records.versioned import Versioned


def test_of_very_many_leases_the_last_ones_to_end_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_ENDED", 10)
    names, keep_s = Leases(), 43_200.0
    for n in range(50):
        names.add(names.make(f"lease-{n}", f"consumer-{n}"))
    oldest = names.find("lease-0")
    assert oldest is not None
    names.sweep({oldest.number}, set(), 1.0, keep_s)
    assert [n for n in range(50) if names.find(f"lease-{n}")] == [0, *range(40, 50)], "an open one stays"
    assert names.known_consumer("consumer-1") == UNKNOWN
    assert names.known_consumer("consumer-0") != UNKNOWN
    names.sweep(set(), set(), 2.0, keep_s)
    assert [n for n in range(50) if names.find(f"lease-{n}")] == [0, *range(41, 50)], "it ended last"
    names.sweep(set(), set(), 1.0 + keep_s, keep_s)
    assert [n for n in range(50) if names.find(f"lease-{n}")] == [0]


def test_leases_of_an_earlier_version_stay_with_the_consumer_of_their_segment() -> None:
    names = Leases()
    for segment, consumer in enumerate(("a", "b")):
        record = CursorRecord(7, 0, delivered_to=5, leases=((0, 5, 20.0),), consumer=consumer)
        cursor = SegmentCursor(Versioned.new(record), leases=names)
        cursor.take_over(segment, 8, 0.0)
        asker = Asker(names.known_consumer(consumer))
        assert cursor.delivery.judge(range(5), asker).unknown == []
