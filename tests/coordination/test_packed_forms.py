"""The stored form of cursors: it reads back, and is small."""

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.log.intervals import runs_of
from seaweedq.broker.subscriptions.dead_lettering import MOST
from seaweedq.checks import InvariantViolated
from seaweedq.coordination import packed_forms
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.keys import CURSORS
from seaweedq.coordination.packed_forms import CURSOR_MAX_BYTES
from seaweedq.coordination.records import CursorRecord, HeldLease
from seaweedq.coordination.versioned import NOTHING, Versioned
from seaweedq.errors import NeedsNewerBroker
from tests.support.brokers.stored import record_of

LEASES = tuple(HeldLease(f"{n:032x}", "c" * 64, 1234.5678901234567, ((n, n + 1),)) for n in range(80))


def _stored(record: CursorRecord) -> bytes:
    return CURSORS.encode(Versioned.new(record))


def _record(acked_to: int, acked: set[int], attempts: dict[int, int]) -> CursorRecord:
    counts = {str(offset): count for offset, count in sorted(attempts.items())}
    return CursorRecord(7, acked_to, tuple(runs_of(acked)), counts, acked_to + 200_000)


@given(
    acked_to=st.integers(0, 10**15),
    acked=st.sets(st.integers(1, 3000)),
    attempts=st.dictionaries(st.integers(0, 3000), st.integers(2, 65_535), max_size=50),
)
def test_a_cursor_reads_back(acked_to: int, acked: set[int], attempts: dict[int, int]) -> None:
    acked = {acked_to + offset for offset in acked}
    record = _record(acked_to, acked, {acked_to + offset: count for offset, count in attempts.items()})
    held = CURSORS.read(Entry("k", _stored(record), 3))
    assert held == Versioned(record, 3, NOTHING)


def test_one_without_acks_and_attempts_has_nothing_packed() -> None:
    assert _stored(_record(5, set(), {})) == b'{"epoch":7,"acked_to":5,"delivered_to":200005}'
    assert msgspec.json.decode(_stored(_record(5, {7}, {}))).keys() == {"epoch", "acked_to", "delivered_to", "packed"}


@pytest.mark.default
def test_the_largest_cursor_is_small_and_keeps_every_ack() -> None:
    """Random acks of half of the window, and every other one delivered often."""
    draw = random.Random(1)
    acked = {offset for offset in range(1, 100_000) if draw.random() < 0.5}
    attempts = {offset: draw.randint(2, 65_535) for offset in range(100_000) if offset not in acked}
    record = msgspec.structs.replace(_record(0, acked, attempts), held=LEASES)
    assert len(_stored(record)) <= CURSOR_MAX_BYTES
    found = record_of(CURSORS, _stored(record))
    assert (found.acked, found.held) == (record.acked, record.held)
    assert 0 < len(found.attempts) < len(attempts)
    assert min(found.attempts.values()) >= np.quantile(list(attempts.values()), 0.5)


@pytest.mark.parametrize("packed", ["", "!", "AAAA", "eJwDAAAAAAE="])
def test_packed_acks_that_cannot_be_read_need_a_newer_broker(packed: str) -> None:
    value = msgspec.json.encode({"epoch": 1, "acked_to": 0, "packed": packed})
    with pytest.raises(NeedsNewerBroker, match="this broker cannot read the record"):
        record_of(CURSORS, value)


def test_what_nobody_began_is_kept_before_all_other_attempts() -> None:
    """Beyond some 21,000 offsets they were dropped first, and so read as delivered once: with `max_attempts` 1 messages
    died that nobody had begun."""
    unbegun = dict.fromkeys(range(20_000, 100_000), 0)
    attempts = {**dict.fromkeys(range(0, 20_000, 3), 2), 19_999: 7, **unbegun}
    stored = _stored(_record(0, {1, 4}, attempts))
    found = {int(offset): count for offset, count in record_of(CURSORS, stored).attempts.items()}
    assert len(stored) <= CURSOR_MAX_BYTES
    assert {offset: count for offset, count in found.items() if not count} == unbegun
    assert found == attempts


@pytest.mark.default
def test_the_lowest_attempts_go_where_all_is_too_much() -> None:
    rng = random.Random(7)
    attempts = {n: rng.choice((0, 2, 3, 60_000)) for n in range(100_000)}
    acked = set(rng.sample(range(100_000), 50_000))
    stored = _stored(_record(0, acked, attempts))
    found = {int(offset): count for offset, count in record_of(CURSORS, stored).attempts.items()}
    assert len(stored) <= CURSOR_MAX_BYTES
    assert {n for n, count in found.items() if not count} == {n for n, count in attempts.items() if not count}
    assert set(found.values()) == {0, 60_000}
    assert list(found) == sorted(found)


@pytest.mark.default
def test_a_batch_of_dead_letters_has_room_beside_all_else() -> None:
    """Without it whoever takes over would send the letters again under another identity."""
    rng, first = random.Random(7), 10**9
    attempts = {first + n: rng.choice((0, 2, 3, 60_000)) for n in range(100_000)}
    acked = {first + n for n in rng.sample(range(100_000), 50_000)}
    runs = tuple((n, n + 1) for n in range(first, first + MOST, 2))
    batch = HeldLease("l" * 100, "", 0.0, runs, ("rejected", "\x00" * 255))
    stored = _stored(msgspec.structs.replace(_record(first, acked, attempts), held=(*LEASES, batch)))
    assert len(stored) <= CURSOR_MAX_BYTES
    assert batch in record_of(CURSORS, stored).held


def test_a_cursor_without_room_for_a_batch_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_forms, "CURSOR_MAX_BYTES", 1_100)
    batch = HeldLease("letters", "", 0.0, ((1, 2),), ("rejected", "d" * 100))
    with pytest.raises(InvariantViolated):
        _stored(msgspec.structs.replace(_record(0, {1}, {}), held=(batch,)))
