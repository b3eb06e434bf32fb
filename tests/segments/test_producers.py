"""The producer table never calls duplicate what it does not hold, nor new what it may hold."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from seaweedq.levels import HIGHEST
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.producers import (
    FORWARD,
    GUARDS,
    IMPORT,
    Duplicate,
    Guard,
    Kind,
    New,
    OutOfOrder,
    ProducerTable,
    ProducerTables,
)

ALL = KeyRange(0, KEY_SPACE)
PRODUCERS = st.sampled_from(["a", "b", "c"])
Request = tuple[str, int, int, int]  # producer, low, high, count


def encoded(table: ProducerTable) -> bytes:
    return ProducerTables([table]).encode(HIGHEST)


def table(limit: int = 1000, remembered: int = 8, lifetime_s: float = 1e9) -> ProducerTable:
    return ProducerTable(0, ALL, {**GUARDS, Kind.CLIENT: Guard(limit, remembered, lifetime_s)})


def test_requests_above_an_end_are_forgotten_and_no_others() -> None:
    """An accepted loss took their rows, of which a file of earlier rows tells (seed 420169)."""
    before = table()
    before.record("a", 5, 6, 90, 2, 0)  # of the predecessor, whose offsets are others
    tables = ProducerTables([before.inherit(1, ALL)])
    for producer, sequence, first_offset in (("a", 7, 8), ("a", 8, 9), ("b", 1, 11)):
        tables.record(0, producer, sequence, sequence, first_offset, 2, 0)
    tables.forget_above(10)
    assert tables.judge(0, "a", 5, 6, 2) == Duplicate(0, 90)
    assert tables.judge(0, "a", 7, 7, 2) == Duplicate(1, 8)
    assert tables.judge(0, "a", 8, 8, 2) == New()
    assert tables.judge(0, "b", 1, 1, 2) == New()


class Producers(RuleBasedStateMachine):
    """Producers whose requests get lost, come again, come late or come changed; a segment that takes what is new."""

    @initialize(remembered=st.integers(1, 4))
    def begin(self, remembered: int) -> None:
        self.remembered = remembered
        self.table = table(remembered=remembered)
        self.sent: list[Request] = []
        self.held: dict[Request, int] = {}  # first offsets, in the order of recording
        self.end = self.now_us = 0

    def arrive(self, request: Request) -> None:
        producer, low, _, _ = request
        mine = [held for held in self.held if held[0] == producer]
        newest = mine[-1][2] if mine else -1
        match self.table.judge(*request):
            case New():
                assert low > newest
                self.take(request)
            case Duplicate(0, first_offset):
                assert self.held[request] == first_offset
                assert request in mine[-self.remembered :]
            case OutOfOrder(known):
                assert known == newest >= low
                assert request not in mine[-self.remembered :]

    def take(self, request: Request) -> None:
        producer, low, high, count = request
        self.now_us += 1
        self.table.record(producer, low, high, self.end, count, self.now_us)
        self.held[request] = self.end
        self.end += count

    @rule(
        producer=PRODUCERS, gap=st.integers(0, 3), length=st.integers(1, 5), share=st.integers(1, 5), lost=st.booleans()
    )
    def send_next(self, producer: str, gap: int, length: int, share: int, lost: bool) -> None:
        """The next request of a producer; some of its rows may go to other segments, some requests get lost."""
        highs = [high for name, _, high, _ in self.sent if name == producer]
        low = max(highs, default=-1) + 1 + gap
        request = (producer, low, low + length - 1, min(share, length))
        self.sent.append(request)
        if not lost:
            assert self.table.judge(*request) == New()
            self.arrive(request)

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Any request that was ever sent comes (again), now."""
        if self.sent:
            self.arrive(data.draw(st.sampled_from(self.sent)))

    @rule(data=st.data(), low=st.integers(-2, 2), high=st.integers(-2, 2), count=st.integers(-1, 1))
    def forge(self, data: st.DataObject, low: int, high: int, count: int) -> None:
        """A client that cuts its requests anew after a restart."""
        if self.sent:
            producer, old_low, old_high, old_count = data.draw(st.sampled_from(self.sent))
            low, high = max(old_low + low, 0), max(old_high + high, old_low + low, 0)
            forged = (producer, low, high, min(max(old_count + count, 1), high - low + 1))
            self.sent.append(forged)
            self.arrive(forged)

    @rule(data=st.data())
    def recover(self, data: st.DataObject) -> None:
        """The table comes back from its encoding, and frames that it knows already are recorded once more."""
        (self.table,) = ProducerTables.decode(encoded(self.table), 0, self.table.guards).parts
        held = list(self.held.items())
        for (producer, low, high, count), offset in held[data.draw(st.integers(0, len(held))) :]:
            before = encoded(self.table)
            self.table.record(producer, low, high, offset, count, self.now_us)
            assert encoded(self.table) == before


TestProducers = Producers.TestCase


def test_requests_above_the_newest_are_new_with_and_without_a_gap() -> None:
    known = table()
    assert known.judge("p", 5, 9, 5) == New()
    known.record("p", 5, 9, 100, 5, 0)
    assert known.judge("p", 10, 10, 1) == New()
    assert known.judge("p", 20, 25, 6) == New()
    assert known.judge("other", 0, 0, 1) == New()


@pytest.mark.parametrize("request_", [(5, 9, 4), (5, 8, 4), (6, 9, 4), (9, 12, 4), (4, 4, 1), (0, 20, 5)])
def test_anything_that_touches_or_precedes_the_newest_is_out_of_order(request_: tuple[int, int, int]) -> None:
    known = table()
    known.record("p", 5, 9, 100, 5, 0)
    assert known.judge("p", 5, 9, 5) == Duplicate(0, 100)
    assert known.judge("p", *request_) == OutOfOrder(9)


def test_a_forgotten_request_is_out_of_order_and_never_new() -> None:
    known = table(remembered=2)
    for n in range(3):
        known.record("p", n, n, n, 1, 0)
    assert known.judge("p", 0, 0, 1) == OutOfOrder(2)
    assert known.judge("p", 1, 1, 1) == Duplicate(0, 1)


def test_the_least_recently_used_producer_goes_first() -> None:
    known = table(limit=2)
    for now_us, producer in enumerate(["a", "b", "a", "c"]):
        known.record(producer, now_us, now_us, now_us, 1, now_us)
    assert known.judge("b", 1, 1, 1) == New()
    assert known.judge("a", 2, 2, 1) == Duplicate(0, 2)
    assert known.judge("c", 3, 3, 1) == Duplicate(0, 3)


def test_idle_producers_go_after_their_time_and_not_before() -> None:
    known = table(lifetime_s=10)
    known.record("a", 0, 0, 0, 1, 0)
    known.record("b", 0, 0, 1, 1, 0)
    known.expire(100)
    known.record("b", 1, 1, 2, 1, 0)
    known.expire(110)
    assert known.judge("a", 0, 0, 1) == Duplicate(0, 0)
    known.expire(110.1)
    assert known.judge("a", 0, 0, 1) == New()
    known.expire(120)
    assert known.judge("b", 1, 1, 1) == Duplicate(0, 2)
    known.expire(121)
    assert known.judge("b", 1, 1, 1) == New()


def test_no_wall_clock_evicts_a_producer() -> None:
    """A clock that was days ahead made a repeat new."""
    known = table(lifetime_s=10)
    known.record("a", 0, 0, 0, 1, 0)
    known.record("b", 0, 0, 1, 1, 3 * 24 * 3600 * 1_000_000)
    known.expire(0)
    (again,) = ProducerTables.decode(encoded(known), 0, known.guards).parts
    again.record("c", 0, 0, 2, 1, 5 * 24 * 3600 * 1_000_000)
    again.expire(1_000_000)  # another process: its monotonic clock has nothing to do with the one before
    assert [again.judge(name, 0, 0, 1) for name in "abc"] == [Duplicate(0, offset) for offset in range(3)]


def test_each_kind_of_producer_has_places_and_a_lifetime_of_its_own() -> None:
    known = ProducerTable(0, ALL)
    known.record("client", 0, 0, 0, 1, 0)
    known.record(f"{IMPORT}u", 0, 0, 1, 1, 0)
    known.record("~old-broker.0.1", 0, 0, 2, 1, 0)
    for number in range(2_000):
        known.record(f"{FORWARD}b{number}.0.0", 0, 0, 3 + number, 1, 0)
    mine = ["client", f"{IMPORT}u", "~old-broker.0.1", f"{FORWARD}b0.0.0"]
    known.expire(0)
    assert [known.judge(name, 0, 0, 1) for name in mine] == [Duplicate(0, offset) for offset in range(4)]
    known.expire(601)
    assert [known.judge(name, 0, 0, 1) for name in mine] == [Duplicate(0, 0), Duplicate(0, 1), New(), New()]
    known.expire(24 * 3600 + 1)
    assert [known.judge(name, 0, 0, 1) for name in mine[:2]] == [New(), Duplicate(0, 1)]
    assert not any(one.startswith(other) for one in (FORWARD, IMPORT) for other in (FORWARD, IMPORT) if one != other)


def test_the_encoding_carries_the_key_range_and_the_order_of_use() -> None:
    known = ProducerTable(0, KeyRange(7, 19))
    for now_us, producer in enumerate(["a", "b", "c", "a"]):
        known.record(producer, now_us, now_us, now_us, 1, now_us)
    (again,) = ProducerTables.decode(encoded(known), 0, table(limit=2).guards).parts
    assert again.key_range == KeyRange(7, 19)
    again.record("d", 0, 0, 9, 1, 9)
    assert [again.judge(p, 0, 0, 1) for p in "bca"] == [New(), New(), Duplicate(0, 0)]


@pytest.mark.parametrize("data", [b"", b"x", encoded(ProducerTable(0, ALL))[:-1]])
def test_what_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="producer tables cannot be read"):
        ProducerTables.decode(data, 0)


def test_a_full_table_stays_small_enough_for_file_metadata() -> None:
    known = table()
    for request in range(8):
        for producer in range(1000):
            offset = (request * 1000 + producer) * 500
            known.record(f"client-{producer:08x}", request * 500, request * 500 + 499, offset, 500, offset)
    assert len(encoded(known)) < 64 * 1024
