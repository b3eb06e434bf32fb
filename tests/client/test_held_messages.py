"""What a `work` holds, without I/O: lanes, failures, extensions, ends of leases."""

from datetime import UTC, datetime

import pytest

from seaweedq.client.core.held_messages import HeldMessages, Job, Reject, failure_of, is_reject, without_reject
from seaweedq.client.core.pulling import Mode, PullResult
from seaweedq.client.core.wire import WireMessage


def wire(offset: int, key: str | None = None, segment: int = 0) -> WireMessage:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return WireMessage(id=f"{segment}-{offset}", key=key, timestamp=moment, segment=segment, offset=offset)


def held_with(mode: Mode, *wires: WireMessage) -> HeldMessages:
    held = HeldMessages(mode, 30, 100)
    held.begin_pull()
    assert held.add(PullResult("a", list(wires)), 0) == []
    return held


def begun(held: HeldMessages, now_s: float = 0) -> list[Job]:
    """All that may run now."""
    jobs = []
    while job := held.next(now_s):
        jobs.append(job)
    return jobs


def ids(jobs: list[Job]) -> list[str]:
    return [job.wire.id for job in jobs]


@pytest.mark.parametrize(
    ("mode", "first"), [("ordered", ["0-0", "1-0"]), ("keyed", ["0-0", "0-1", "0-3", "1-0"]), ("shared", None)]
)
def test_a_lane_has_one_message_at_work(mode: Mode, first: list[str] | None) -> None:
    wires = [wire(0, "a"), wire(1, "b"), wire(2, "a"), wire(3), wire(0, "c", 1)]
    held = held_with(mode, *wires)
    jobs = begun(held)
    assert ids(jobs) == (first or [one.id for one in wires])
    seen = ids(jobs)
    while jobs:
        held.finish(jobs.pop(0))
        jobs += (more := begun(held))
        seen += ids(more)
    assert sorted(seen) == sorted(one.id for one in wires)
    assert held.is_empty


def test_a_failure_drops_what_is_behind_it() -> None:
    held = held_with("keyed", wire(0, "a"), wire(1, "b"), wire(2, "a"), wire(3, "b"))
    first, second = begun(held)
    held.fail(first)
    held.finish(first)
    held.finish(second)
    assert ids(begun(held)) == ["0-3"], "0-2 comes again, after 0-0"


def test_a_pull_under_way_may_bring_what_a_failure_has_ended() -> None:
    """It was answered before the failure was told: its messages come again after the failed one."""
    held = held_with("ordered", wire(0), wire(1))
    (first,) = begun(held)
    held.begin_pull()
    held.fail(first)
    held.finish(first)
    assert ids(held.add(PullResult("b", [wire(2), wire(3), wire(7, segment=1)]), 0)) == ["0-2", "0-3"]
    assert ids(begun(held)) == ["1-7"]
    held.begin_pull()
    assert held.add(PullResult("c", [wire(0), wire(1)]), 0) == []
    assert ids(begun(held)) == ["0-0"]


def test_a_pull_under_way_may_bring_the_failed_message_again() -> None:
    held = held_with("ordered", wire(0), wire(1))
    (first,) = begun(held)
    held.begin_pull()
    held.fail(first)
    held.finish(first)
    assert held.add(PullResult("b", [wire(0), wire(1)]), 0) == []
    assert ids(begun(held)) == ["0-0"]


def test_a_repeat_before_its_failure_is_answered_waits_for_the_answer() -> None:
    """It was dropped with what was behind the failed one: leased, handled by nobody, and overtaken."""
    held = held_with("ordered", wire(0), wire(1))
    (first,) = begun(held)
    held.begin_pull()
    held.fail(first)
    assert held.add(PullResult("b", [wire(0), wire(1)]), 0) == []
    assert begun(held) == []
    held.finish(first)
    (again,) = begun(held)
    held.finish(again)
    assert ids([again, *begun(held)]) == ["0-0", "0-1"]


def test_what_has_lost_its_lease_is_not_begun() -> None:
    held = held_with("shared", wire(0), wire(1), wire(2))
    assert len(held.to_extend(20)) == 3
    held.record_extension(held.to_extend(20), {"0-1"}, 20)
    assert ids(begun(held, 49)) == ["0-0", "0-2"]
    assert begun(held_with("ordered", wire(0), wire(1)), 30) == []


def test_leases_go_on_for_so_long_at_most() -> None:
    held = held_with("shared", wire(0), wire(1))
    held.next(0)
    assert len(held.to_extend(99.9)) == 2
    assert held.to_extend(100) == []


def test_what_a_handler_raises_is_told() -> None:
    job = Job(wire(0), "a", None, 0, 30)
    plain = failure_of(job, ValueError("x" * 1000))
    reason = dict(plain.more)["reason"]
    assert (plain.verb, reason[:13], len(reason), is_reject(plain)) == ("nack", "ValueError: x", 255, False)
    rejected = failure_of(job, Reject("broken"))
    assert (is_reject(rejected), dict(rejected.more)) == (True, {"reject": True, "reason": "broken"})
    assert dict(without_reject(rejected).more) == {"reason": "broken"}
    assert dict(failure_of(job, Reject()).more) == {"reject": True}


def test_nothing_overtakes_what_was_lost() -> None:
    """A pull under way brought what was leased behind a message whose lease was over, and it was handled first."""
    held = held_with("ordered", wire(5), wire(6))
    held.begin_pull()
    assert begun(held, 30) == []
    lost = held.pop_lost()
    assert ids(lost) == ["0-5", "0-6"]
    assert ids(held.add(PullResult("b", [wire(7), wire(0, segment=1)]), 30)) == ["0-7"]
    assert ids(begun(held, 30)) == ["1-0"]
    held.begin_pull()
    assert ids(held.add(PullResult("c", [wire(8)]), 30)) == ["0-8"], "no broker has them back yet"
    held.returned(lost)
    held.begin_pull()
    assert held.add(PullResult("d", [wire(5), wire(6)]), 30) == []
    assert ids(begun(held, 30)) == ["0-5"]
    assert held.clear()[0].wire.id == "0-6"


def test_what_another_message_of_the_lane_does_tells_no_failure() -> None:
    held = held_with("ordered", wire(5))
    begun(held, 30)
    held.begin_pull()
    assert held.add(PullResult("b", [wire(3)]), 30) == []
    (other,) = begun(held, 30)
    held.finish(other)
    assert ids(held.pop_lost()) == ["0-5"]


def test_a_slow_lane_leaves_room_for_others() -> None:
    """All that waits is behind what runs, and workers have nothing to do."""
    held = held_with("keyed", *(wire(n, "slow") for n in range(7)), wire(7, "b"), wire(8, "b"))
    begun(held)
    assert held.waiting == 7
    assert not held.is_crowded(2), "both are at work"
    assert held.is_crowded(3)
    crowd = held.make_room(3)
    assert ids(crowd) == ["0-3", "0-4", "0-5", "0-6"]
    assert [held.waiting, len(held.to_extend(1))] == [3, 5]
    held.returned(crowd)
    held.begin_pull()
    assert held.add(PullResult("b", [wire(9, "c")]), 0) == []
    assert ids(begun(held)) == ["0-9"]
    assert held.pause_s == 0


def test_room_that_helps_nobody_is_made_less_often() -> None:
    held = held_with("ordered", *(wire(n) for n in range(5)))
    begun(held)
    pauses = []
    for _ in range(8):
        crowd = held.make_room(2)
        held.returned(crowd)
        held.begin_pull()
        held.add(PullResult("b", [job.wire for job in crowd]), 0)
        pauses.append(held.pause_s)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
