"""The stored forms of cursors: what level 1 writes is as it was, what level 2 writes reads back, and both are small."""

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from seaweedq.broker.log.intervals import runs_of
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.keys import CURSORS
from seaweedq.coordination.records.cursor_form import MAX_BYTES, MAX_LEASES, fits
from seaweedq.coordination.records.subscriptions import CursorRecord
from seaweedq.coordination.records.versioned import NOTHING, Versioned
from seaweedq.errors import NeedsNewerBroker
from tests.support.brokers.stored import record_of

LEASES = tuple((10**12 + n, 10**12 + n + 1, 1234.5678901234567) for n in range(MAX_LEASES))


def _stored(record: CursorRecord) -> bytes:
    return CURSORS.encode(Versioned.new(record))


def _record(
    acked_to: int, acked: set[int], attempts: dict[int, int], needs_level: int | msgspec.UnsetType
) -> CursorRecord:
    counts = {str(offset): count for offset, count in sorted(attempts.items())}
    return CursorRecord(7, acked_to, tuple(runs_of(acked)), counts, acked_to + 200_000, needs_level=needs_level)


@pytest.mark.parametrize("needs_level", [UNSET, 2])
@given(
    acked_to=st.integers(0, 10**15),
    acked=st.sets(st.integers(1, 3000)),
    attempts=st.dictionaries(st.integers(0, 3000), st.integers(2, 65_535), max_size=50),
)
def test_a_cursor_reads_back(
    needs_level: int | msgspec.UnsetType, acked_to: int, acked: set[int], attempts: dict[int, int]
) -> None:
    acked = {acked_to + offset for offset in sorted(acked)[:900]}
    record = _record(acked_to, acked, {acked_to + offset: count for offset, count in attempts.items()}, needs_level)
    held = CURSORS.read(Entry("k", _stored(record), 3))
    assert held == Versioned(record, 3, NOTHING)


def test_the_form_of_level_1_is_as_it_was() -> None:
    record = _record(5, {7, 8, 11}, {9: 2}, UNSET)
    assert _stored(record) == (
        b'{"epoch":7,"acked_to":5,"acked":[[7,9],[11,12]],"attempts":{"9":2},"delivered_to":200005,"leases":[],'
        b'"consumer":null}'
    )
    assert b"needs_level" in _stored(_record(5, set(), {}, 2))


def test_the_largest_cursor_of_level_2_is_small_and_keeps_every_ack() -> None:
    """Random acks of half of the window, and every other one delivered often."""
    draw = random.Random(1)
    acked = {offset for offset in range(1, 100_000) if draw.random() < 0.5}
    attempts = {offset: draw.randint(2, 65_535) for offset in range(100_000) if offset not in acked}
    record = msgspec.structs.replace(_record(0, acked, attempts, 2), leases=LEASES, consumer="c" * 255)
    assert fits(record)
    assert len(_stored(record)) <= MAX_BYTES
    found = record_of(CURSORS, _stored(record))
    assert (found.acked, found.leases) == (record.acked, record.leases)
    assert 0 < len(found.attempts) < len(attempts)
    assert min(found.attempts.values()) >= np.quantile(list(attempts.values()), 0.5)


def test_level_1_loses_the_lowest_attempts_and_says_when_runs_are_too_many() -> None:
    attempts = {offset: 2 + offset % 7 for offset in range(1, 100_000, 2)}
    record = msgspec.structs.replace(
        _record(10**12, {10**12 + offset for offset in range(1, 2_000, 2)}, attempts, UNSET), consumer="c" * 255
    )
    assert fits(record)
    assert len(_stored(record)) <= MAX_BYTES
    assert set(record_of(CURSORS, _stored(record)).attempts.values()) == {8}
    assert not fits(_record(0, set(range(1, 4_000, 2)), {}, UNSET))


@pytest.mark.parametrize("packed", ["", "!", "AAAA", "eJwDAAAAAAE="])
def test_packed_acks_that_cannot_be_read_need_a_newer_broker(packed: str) -> None:
    value = msgspec.json.encode({"epoch": 1, "acked_to": 0, "needs_level": 2, "packed": packed})
    with pytest.raises(NeedsNewerBroker, match="cannot be read"):
        record_of(CURSORS, value)


def test_what_nobody_began_is_kept_before_all_other_attempts() -> None:
    """Beyond some 21,000 offsets they were dropped first, and so read as delivered once: with `max_attempts` 1 messages
    died that nobody had begun."""
    unbegun = dict.fromkeys(range(20_000, 100_000), 0)
    attempts = {**dict.fromkeys(range(0, 20_000, 3), 2), 19_999: 7, **unbegun}
    stored = _stored(_record(0, {1, 4}, attempts, 2))
    found = {int(offset): count for offset, count in record_of(CURSORS, stored).attempts.items()}
    assert len(stored) <= MAX_BYTES
    assert {offset: count for offset, count in found.items() if not count} == unbegun
    assert found == attempts


def test_the_lowest_attempts_go_where_all_is_too_much() -> None:
    rng = random.Random(7)
    attempts = {n: rng.choice((0, 2, 3, 60_000)) for n in range(100_000)}
    acked = set(rng.sample(range(100_000), 50_000))
    stored = _stored(_record(0, acked, attempts, 2))
    found = {int(offset): count for offset, count in record_of(CURSORS, stored).attempts.items()}
    assert len(stored) <= MAX_BYTES
    assert {n for n, count in found.items() if not count} == {n for n, count in attempts.items() if not count}
    assert set(found.values()) == {0, 60_000}
    assert list(found) == sorted(found)
