"""What a mirror has room for: it counts what it has to keep, and no commit twice."""

import sys

import pytest

from seaweedq.clock import SystemIds
from seaweedq.journal.holdings import HoldHeader, Holdings, HoldState, PackedCommit, encode_hold
from tests.support.journal.sim_disk import acks

COMMIT = PackedCommit.pack(acks(b"x" * 1000))


def opened(limit_bytes: int) -> tuple[Holdings, str]:
    """Holdings of so many bytes, with an empty one."""
    holdings = Holdings(limit_bytes, SystemIds())
    return holdings, holdings.hold("o", encode_hold(HoldHeader(), ())).holding


def call(holding: str, stored: int, first: int, count: int) -> bytes:
    """A call that brings so many commits."""
    return encode_hold(HoldHeader(holding, stored, first), [COMMIT] * count)


@pytest.mark.parametrize(("stored", "first", "count", "end"), [(0, 0, 2, 2), (0, 1, 1, 2), (1, 2, 1, 3), (2, 2, 2, 4)])
def test_repeats_and_what_goes_need_no_room(stored: int, first: int, count: int, end: int) -> None:
    """The answer to the first call is lost; the next one may bring the same, and says what is stored by now."""
    holdings, holding = opened(2 * COMMIT.size_bytes)
    for told in (call(holding, 0, 0, 2), call(holding, stored, first, count)):
        answer = holdings.hold("o", told)
        assert answer.state is HoldState.HELD
    assert answer.end == end
    assert holdings.size_bytes == (end - stored) * COMMIT.size_bytes


def test_one_that_has_no_room_keeps_what_it_has() -> None:
    holdings, holding = opened(2 * COMMIT.size_bytes)
    holdings.hold("o", call(holding, 0, 0, 2))
    assert holdings.hold("o", call(holding, 0, 2, 1)).state is HoldState.FULL
    assert holdings.size_bytes == 2 * COMMIT.size_bytes
    assert [(one.first, one.end) for one in holdings.fence("o")] == [(0, 2)]


def test_a_small_commit_keeps_no_large_call() -> None:
    """It kept the other commits of its call, of up to 32 MiB, and counted as itself alone."""
    holdings, holding = opened(10 * COMMIT.size_bytes)
    data = call(holding, 0, 0, 2)
    before = sys.getrefcount(data)
    assert holdings.hold("o", data).end == 2
    assert sys.getrefcount(data) == before
