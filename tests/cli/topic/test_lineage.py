"""What a segment map says of who replaced whom."""

from datetime import UTC, datetime

import pytest

from seaweedq.cli.topic.lineage import Segment, by_range, changes, share
from seaweedq.cli.topic.watch_picture import Snapshot, WatchHistory, moves
from tests.support.cli.some_segments import after, by_id, segment, split_and_merged

ANSWER = {
    "id": 3, "low": 5, "high": 9, "state": "open", "predecessors": [1], "successors": [], "owner": "b.1", "owner_url": "http://b",
    "start_offset": 0, "flushed_offset": 0, "end_offset": 70, "rates": {}, "created_at": "2026-01-31T12:00:00.5Z",
    "sealed_at": None,
}  # fmt: skip


def test_a_segment_of_the_answer() -> None:
    created = datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC)
    plain = Segment(3, 5, 9, True, "b.1", 70, created, None, (1,))
    assert Segment.from_answer(ANSWER) == plain
    rates = {"messages_per_s": [1.0, 2.0, 3.0, 4.0], "bytes_per_s": [10.0, 20.0, 30.0, 40.0]}
    rated = Segment.from_answer({**ANSWER, "rates": rates})
    assert (rated.messages_per_s, rated.bytes_per_s) == ((1.0, 2.0, 3.0, 4.0), (10.0, 20.0, 30.0, 40.0))
    assert Segment.from_answer({**ANSWER, "rates": None, "hot_key": None}) == plain
    assert Segment.from_answer({**ANSWER, "hot_key": {"hash": 7, "share": 0.5}}).hot_key == (7, 0.5)
    sealed = Segment.from_answer({**ANSWER, "state": "sealed", "owner": None, "sealed_at": "2026-01-31T12:00:10.5Z"})
    assert (sealed.is_open, sealed.lived_s(after(99)), sealed.mean_rate(after(99))) == (False, 10, 7)


def test_a_segment_that_was_just_made_has_no_rate() -> None:
    assert segment(0, end_offset=5).mean_rate(after(0)) == 0
    assert segment(0, end_offset=5, created=9).lived_s(after(0)) == 0  # the broker's clock is ahead


def test_every_replacement_once_and_in_order() -> None:
    found = [(change.at, str(change)) for change in changes(split_and_merged()[::-1])]
    assert found == [
        (after(10), "split 0 → 1, 2, 3"),
        (after(20), "merge 1, 2 → 4"),
        (after(30), "roll 3 → 5"),
    ]


def test_ids_are_told_in_the_order_of_their_ranges() -> None:
    segments = [
        segment(7, 0.5, 1, sealed=5, successors=(9,)),
        segment(8, 0, 0.5, sealed=5, successors=(9,)),
        segment(9, 0, 1, created=5, predecessors=(7, 8)),
    ]
    assert [str(change) for change in changes(segments)] == ["merge 8, 7 → 9"]


def test_segments_that_are_recut_together_are_one_change() -> None:
    segments = [
        segment(0, 0, 0.5, sealed=5, successors=(2, 3)),
        segment(1, 0.5, 1, sealed=5, successors=(3,)),
        segment(2, 0, 0.3, created=5, predecessors=(0,)),
        segment(3, 0.3, 1, created=5, predecessors=(0, 1)),
    ]
    assert [str(change) for change in changes(segments)] == ["recut 0, 1 → 2, 3"]


def test_what_is_known_of_others_that_are_not_in_the_map() -> None:
    segments = [segment(4, sealed=5, predecessors=(1, 2), successors=(5, 6))]
    assert [str(change) for change in changes(segments)] == ["split 4 → 5, 6"]


def test_open_ones_by_range() -> None:
    assert [one.id for one in by_range(split_and_merged())] == [4, 5]
    assert (share(0), share(2**30), share(2**31 - 1)) == ("0.0%", "50.0%", "100.0%")


def look(at_s: float, *segments: Segment) -> Snapshot:
    return Snapshot(100 + at_s, after(at_s), by_id(*segments))


def test_rates_are_the_differences_of_end_offsets_over_the_last_seconds() -> None:
    watched = WatchHistory(look(0, segment(0, end_offset=100)))
    assert watched.rates() == {0: None}
    watched.add(look(1, segment(0, end_offset=150)))
    assert watched.rates() == {0: 50}
    watched.add(look(2, segment(0, end_offset=350)))
    assert watched.rates() == {0: 125}
    for second in range(3, 13):
        watched.add(look(second, segment(0, end_offset=350 + 10 * (second - 2))))
    assert watched.rates() == {0: 10}


def test_looks_that_are_far_apart_have_rates_too() -> None:
    watched = WatchHistory(look(0, segment(0, end_offset=0)))
    for second in (60, 120):
        watched.add(look(second, segment(0, end_offset=second * 3)))
    assert watched.rates() == {0: 3}


def test_a_new_segment_began_at_offset_0_since_the_look_before() -> None:
    watched = WatchHistory(look(0, segment(0)))
    watched.add(look(2, segment(0, sealed=1, successors=(1,)), segment(1, created=1, end_offset=10)))
    assert watched.rates() == {1: 5}


def test_a_segment_that_lost_unacknowledged_rows_has_no_negative_rate() -> None:
    watched = WatchHistory(look(0, segment(0, end_offset=9)))
    watched.add(look(1, segment(0, end_offset=4)))
    assert watched.rates() == {0: 0}


def test_the_broker_knows_better() -> None:
    watched = WatchHistory(look(0, segment(0, end_offset=9, messages_per_s=(7.0, 6.0, 5.0, 4.0))))
    assert watched.rates() == {0: 7}


@pytest.mark.parametrize("owner", ["broker.bb22", None])
def test_moves_are_told_in_the_log_beside_replacements(owner: str | None) -> None:
    watched = WatchHistory(look(10, *split_and_merged()[:1], segment(1), segment(2, owner=None)))
    watched.add(look(15, *split_and_merged()[:1], segment(1, owner=owner), segment(2, owner="broker.cc33")))
    assert watched.log() == [
        (after(10), "split 0 → 1, 2, 3"),
        (after(15), f"move 1: broker.aa11 → {owner or 'nobody'}"),
        (after(15), "move 2: nobody → broker.cc33"),
    ]


def test_what_is_sealed_or_new_has_not_moved() -> None:
    assert moves(by_id(segment(0)), by_id(segment(0, sealed=1, successors=(1,)), segment(1, owner="broker.x"))) == []
