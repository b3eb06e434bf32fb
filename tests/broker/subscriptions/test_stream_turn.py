"""The turns of a stream, by a model of its leases: nothing twice, nothing over its bound, and what may kill its
consumer goes alone.
"""

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from seaweedq.broker.subscriptions.cursor import SegmentCursor
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.leases import ASKS_S, Leases, Position, Streams, parse_lease
from seaweedq.broker.subscriptions.policy import FEW, PullLimits, Rules
from seaweedq.broker.subscriptions.pull_rounds import NewLease, Resend, next_turn
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.coordination.records import CursorRecord
from seaweedq.coordination.versioned import Versioned


class Frontier:
    """All segments are open."""

    def __init__(self, segments: dict[int, SegmentCursor]) -> None:
        self.open = list(segments)


class Shared:
    """As much of a subscription as turns look at: segments of END messages each, in mode shared."""

    END = 12

    def __init__(self, segments: int = 2) -> None:
        self.leases = Leases()
        self.record = SimpleNamespace(mode="shared")
        rules = Rules("shared")
        self.cursors = {
            number: SegmentCursor(Versioned.new(CursorRecord(1, 0)), rules, self.leases) for number in range(segments)
        }
        self.frontier = Frontier(self.cursors)

    held_by_stream = Subscription.held_by_stream

    def turn(self, position: Position) -> Resend | NewLease | None:
        return next_turn(self, position, 0.0)  # type: ignore[arg-type]

    def lease(self, fresh: NewLease, consumer: str) -> list[tuple[int, int]]:
        """Leases what a new lease gets, as `Leasing` does."""
        lease = self.leases.make(fresh.name, consumer)
        found: list[tuple[int, int]] = []
        kind = None
        for number, cursor in self.cursors.items():
            want = PullLimits(lease.consumer, fresh.count - len(found), kind)
            due = cursor.delivery.available(want, self.END) if fresh.count > len(found) else np.zeros(0, np.int64)
            if len(due):
                kind = cursor.delivery.kind_of(int(due[0]))
                cursor.delivery.leases.lease(due, lease.number, lease.consumer, due_s=1e9)
                lease.segments.add(number)
                found += [(number, int(offset)) for offset in due]
        if found:
            self.leases.add(lease)
        return found

    def held(self, name: str) -> list[tuple[int, int]]:
        lease = self.leases.find(name)
        assert lease
        return [
            (number, int(offset))
            for number, cursor in self.cursors.items()
            for offset in cursor.delivery.leases.held_by(lease.number)
        ]

    def ack(self, segment: int, offset: int) -> None:
        delivery: SegmentDelivery = self.cursors[segment].delivery
        taken = np.array([offset])
        delivery.begin_ack(taken)
        delivery.end_ack(taken, durable=True)

    def nack(self, segment: int, offset: int) -> None:
        self.cursors[segment].delivery.nack(np.array([offset]), 0.0, 0.0)


def serial_of(name: str) -> int:
    parsed = parse_lease(name)
    assert parsed
    return parsed[1]


class Client:
    """A stream and its client: `sent` has the places of what was sent, in that order."""

    def __init__(self, name: str, shared: Shared, bound: int) -> None:
        self.shared = shared
        self.begin = self.position = Position(name, name, name, bound)
        self.sent: list[tuple[int, int, int]] = []

    def step(self) -> list[tuple[int, int, int]]:
        """One turn: what is sent by it."""
        turn = self.shared.turn(self.position)
        if turn is None:
            return []
        if isinstance(turn, Resend):
            name = turn.lease.name
            found = [
                (segment, offset)
                for segment, offset in sorted(self.shared.held(name))
                if len(turn.behind(segment, np.array([offset])))
            ]
        else:
            name = turn.name
            found = sorted(self.shared.lease(turn, self.begin.consumer))
        places = [(serial_of(name), *one) for one in found]
        if places:
            self.position = self.position.at(*places[-1])
            self.sent += places
        return places

    def holds(self) -> list[tuple[int, int, int]]:
        """What is with this stream, in the order in which it was sent."""
        leases = self.shared.leases.streams.get(self.begin.stream)
        return sorted(
            (serial, *one)
            for serial in leases.serials.values()
            for one in self.shared.held(self.begin.at(serial).lease)
        )

    def come_back(self, at: int) -> None:
        """The client has lost its connection, and names an event that it got."""
        serial, segment, offset = self.sent[at]
        self.position = Position(*self._names(), serial, segment, offset, resumed=True)
        del self.sent[at + 1 :]

    def _names(self) -> tuple[str, str, str, int]:
        return self.begin.stream, self.begin.stream, self.begin.consumer, self.begin.max_in_flight


STEPS = st.lists(
    st.tuples(st.sampled_from(["turn", "turn", "ack", "nack", "back"]), st.integers(0, 1), st.integers(0, 50)),
    max_size=60,
)


@given(steps=STEPS, bound=st.integers(1, 9))
def test_a_stream_that_goes_on_anywhere_gets_the_unacked_rest_in_order(steps: Any, bound: int) -> None:
    shared = Shared()
    clients = [Client("a", shared, bound), Client("b", shared, bound)]
    for step, who, number in steps:
        client = clients[who]
        before = client.holds()
        if step == "turn":
            known = set(client.sent)
            sent = client.step()
            assert not known.intersection(sent), "nothing is sent twice"
            assert sent == sorted(sent)
            assert len(client.holds()) <= bound
        elif step == "back" and client.sent:
            client.come_back(number % len(client.sent))
            place = client.sent[-1]
            missing = [one for one in before if one > place]
            got: list[tuple[int, int, int]] = []
            while len(got) < len(missing):
                more = client.step()
                assert more
                got += more
            assert got[: len(missing)] == missing
        elif before:
            serial, segment, offset = before[number % len(before)]
            (shared.ack if step == "ack" else shared.nack)(segment, offset)
            del serial
    assert not set(clients[0].holds()).intersection(clients[1].holds())


def test_what_may_have_killed_its_consumer_goes_alone() -> None:
    shared = Shared(1)
    client = Client("a", shared, 100)
    client.step()
    for _ in range(2):
        shared.nack(0, 0)
        shared.nack(0, 1)
        client.step()
    assert len(client.holds()) == Shared.END - 2
    assert client.shared.turn(client.position) is None, "two are due for the third time, and the stream holds others"
    for _, segment, offset in client.holds():
        shared.ack(segment, offset)
    assert [one[1:] for one in client.step()] == [(0, 0), (0, 1)]
    assert len(client.holds()) <= FEW
    assert client.shared.turn(client.position) is None, "nothing beside them"
    shared.ack(0, 0)
    shared.ack(0, 1)
    assert client.shared.turn(client.position)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("a.1", ("a", 1)),
        ("a.b.0", ("a.b", 0)),
        ("a", None),
        (".1", None),
        ("a.", None),
        ("a.01", None),
        ("a.-1", None),
        ("a.١", None),
        ("a." + "1" * 19, None),
    ],
)
def test_names_of_leases(name: str, parsed: tuple[str, int] | None) -> None:
    assert parse_lease(name) == parsed


def test_streams_are_forgotten_once_they_hold_nothing() -> None:
    streams = Streams()
    streams.add("a.3", 1)
    streams.add("plain", 2)
    streams.leave(Position("a", "gone", "c", 1), 0.0)
    assert streams.get("a").last == 3
    streams.sweep({1}, 1.0)
    assert streams.get("a").last == 3
    assert streams.has_left("gone")
    streams.sweep({2}, 1000.0)
    assert streams.get("a").last == 0
    assert not streams.has_left("gone")


def test_leases_named_like_a_streams_are_forgotten_beside_a_newer_one() -> None:
    """A worker that numbers its leases always holds one: each of them cost memory for ever."""
    streams = Streams()
    for number in range(5):
        streams.add(f"worker.{number}", number)
    streams.sweep({4}, 0.0)
    assert (streams.get("worker").serials, streams.get("worker").last) == ({4: 4}, 4)


def test_the_newest_stream_of_a_consumer_began_last_and_asks() -> None:
    streams = Streams()
    old, new = (Position(name, name, "c", 10) for name in ("old", "new"))
    assert streams.is_newest(old, 0)
    assert streams.is_newest(new, 1)
    assert not streams.is_newest(old, 2), "a later ask does not make it newer"
    assert streams.is_newest(new, 2)
    assert not streams.is_newest(old, 2 + ASKS_S - 1)
    assert streams.is_newest(old, 2 + ASKS_S), "the newest one asks no more"
    streams.sweep((), 2 + 3 * ASKS_S)
    assert streams.is_newest(new, 2 + 3 * ASKS_S)
    assert not streams.is_newest(old.at(3), 2 + 3 * ASKS_S), "it has had messages, so it began earlier"
    streams.leave(Position("new", "new", "c", 10, frees=True), 200)
    assert streams.is_newest(old.at(3), 201)
    assert streams.is_newest(Position("one", "one", "one", 10), 0), "a stream without a name is a consumer of its own"
