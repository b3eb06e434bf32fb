"""The checker finds each kind of damage in a history that is sound but for that one, and nothing in the sound one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from seaweedq.broker.log.intervals import Runs
from tests.support.history.checker import RULES, Run, check
from tests.support.history.history import Event, Row, digest
from tests.support.history.judged import Lapse


def value(n: int, producer: str = "p") -> str:
    return digest("k", {"p": producer, "n": n})


def published(n: int, producer: str = "p", *, type: str = "ok", call: int | None = None, at: int | None = None):
    call, at = n if call is None else call, n if at is None else at
    line = Event(10.0 * call, producer, "publish", "invoke", call, "t", "k", producer, n, hash=value(n, producer))
    place = {"segment": 0, "offset": at} if type == "ok" else {}
    return [line, replace(line, t=10.0 * call + 5, type=type, **place)]


def delivered(offset: int, call: int, t: float):
    line = Event(t, "c", "deliver", "invoke", call)
    return [line, replace(line, t=t + 1, type="ok", segment=0, offset=offset, hash=value(offset))]


def acked(offset: int, call: int, t: float):
    line = Event(t, "c", "ack", "invoke", call, segment=0, offset=offset)
    return [line, replace(line, t=t + 1, type="ok")]


def cursor(acked_to: int, call: int, t: float):
    line = Event(t, "o", "cursor", "invoke", call)
    return [line, replace(line, t=t + 1, type="ok", segment=0, acked_to=acked_to)]


def read(start: int, offsets: list[int], call: int, t: float):
    line = Event(t, "r", "read", "invoke", call, segment=0, offset=start, broker="b")
    page = [replace(line, t=t + 1, type="ok", offset=n, hash=value(n)) for n in offsets]
    return [line, *(page or [replace(line, t=t + 1, type="ok")])]


def heal(call: int, t: float, lasted: float):
    line = Event(t, "nemesis", "heal", "invoke", call)
    return [line, replace(line, t=t + lasted, type="ok")]


def row(n: int, offset: int | None = None, producer: str = "p") -> Row:
    return Row(0, n if offset is None else offset, "k", producer, n, value(n, producer))


def sound() -> Run:
    """Three ok publishes and one info that is there, two of them delivered and acked; reads and a table in between."""
    events = [e for n in range(3) for e in published(n)] + published(3, type="info")
    events += [e for n in range(2) for e in delivered(n, 10 + n, 100.0 + n)]
    events += [e for n in range(2) for e in acked(n, 20 + n, 110.0 + n)]
    events += [e for n in range(3) for e in cursor(n, 30 + n, 120.0 + 2 * n)]
    events += [*read(0, [0, 1], 40, 130.0), *read(2, [2], 41, 132.0), *read(3, [], 42, 134.0)]
    events += heal(50, -1.0, 20.0)
    rows = [row(n) for n in range(4)]
    return Run(events, rows, list(rows), [[], rows[:2]], {"b": list(rows)})


def without_last_ok(run: Run) -> None:
    run.http, run.files, run.listings = run.http[:2], run.files[:2], []
    run.events = [e for e in run.events if e.seq != 3]


def doubled_info(run: Run) -> None:
    run.http = run.files = [*run.http, row(3, 4)]


def never_sent(run: Run) -> None:
    run.http = run.files = [*run.http, row(9, 4)]


def failed_and_there(run: Run) -> None:
    run.events = [replace(e, type="fail") if e.type == "info" else e for e in run.events]


def hole(run: Run) -> None:
    run.http = run.files = [*run.http[:3], row(3, 4)]


def other_content_for_a_subscriber(run: Run) -> None:
    run.events = [replace(e, hash=value(7)) if e.op == "deliver" and e.offset == 1 else e for e in run.events]


def other_content_in_a_file(run: Run) -> None:
    run.listings = [[row(8, 1)]]


def retried_with_another_id(run: Run) -> None:
    run.events = [*run.events, *published(2, call=8, at=3)]


def read_under_two_ids(run: Run) -> None:
    run.http = run.files = [*run.http, row(2, 4)]


def key_turned_round(run: Run) -> None:
    run.http = run.files = [row(0), row(2, 1), row(1, 2), row(3)]


def later_with_smaller_offset(run: Run) -> None:
    late = [*published(0, "q", call=5, at=4), *published(1, "q", call=6, at=4)]
    late[3] = replace(late[3], offset=3)
    run.events = [*(e for e in run.events if e.seq != 3), *late]
    run.http = run.files = [*run.http[:3], row(1, 3, "q"), row(0, 4, "q")]


def cursor_went_back(run: Run) -> None:
    run.events = [*run.events, *cursor(1, 40, 200.0)]


def acked_came_again(run: Run) -> None:
    run.events = [*run.events, *delivered(0, 50, 200.0)]


def cursor_over_undelivered(run: Run) -> None:
    run.events = [*run.events, *cursor(3, 40, 200.0)]


def not_in_files(run: Run) -> None:
    run.files = run.files[:3]


def twice_in_files(run: Run) -> None:
    run.files = [*run.files, row(0)]


def listing_with_doubles(run: Run) -> None:
    run.listings = [[row(0), row(0)]]


def listing_with_what_is_gone(run: Run) -> None:
    run.listings = [[*run.http, row(4)]]


def another_broker_reads_less(run: Run) -> None:
    run.others = {"b": run.http[:3]}


def read_beyond_a_fence(run: Run) -> None:
    run.events = [*run.events, *read(4, [4], 60, 200.0)]


def delivered_beyond_a_fence(run: Run) -> None:
    run.events = [*run.events, *delivered(4, 60, 200.0)]


def stale_read(run: Run) -> None:
    run.events = [*run.events, *read(2, [], 60, 200.0)]


def read_that_skips(run: Run) -> None:
    run.events = [*run.events, *read(0, [1, 2], 60, 200.0)]


def read_with_a_hole(run: Run) -> None:
    run.events = [*run.events, *read(0, [0, 2], 60, 200.0)]


def lag_for_ever(run: Run) -> None:
    run.events = [e for e in run.events if (e.op, e.type) != ("heal", "ok")]


def lag_for_long(run: Run) -> None:
    run.events = [*run.events, *heal(61, -30.0, 31.0)]


def publisher_without_an_answer(run: Run) -> None:
    run.events = [*run.events, *published(0, "q", type="info", call=9)]


DAMAGES: dict[Callable[[Run], None], str] = {
    without_last_ok: "loss",
    doubled_info: "once",
    never_sent: "phantom",
    failed_and_there: "phantom",
    hole: "gap",
    other_content_for_a_subscriber: "agreement",
    other_content_in_a_file: "agreement",
    retried_with_another_id: "idempotence",
    read_under_two_ids: "idempotence",
    key_turned_round: "key_order",
    later_with_smaller_offset: "real_time",
    another_broker_reads_less: "alike",
    read_beyond_a_fence: "stable",
    delivered_beyond_a_fence: "stable",
    stale_read: "fresh",
    read_that_skips: "dense",
    read_with_a_hole: "dense",
    lag_for_ever: "live",
    lag_for_long: "live",
    publisher_without_an_answer: "live",
    cursor_went_back: "cursor",
    acked_came_again: "redelivery",
    cursor_over_undelivered: "skipped",
    not_in_files: "tables",
    twice_in_files: "tables",
    listing_with_doubles: "tables",
    listing_with_what_is_gone: "tables",
}


def test_a_sound_history_passes():
    assert check(sound()) == []


def test_an_info_may_as_well_not_be_there():
    run = sound()
    run.http = run.files = run.others["b"] = run.http[:3]
    assert check(run) == []


def test_what_nobody_answered_may_have_come_later():
    run = sound()
    late = [*published(4, type="info", call=14), *published(5, call=15, at=4)]
    run.events = [*run.events, *late]
    run.http = run.files = run.others["b"] = [*run.http, row(5, 4), row(4, 5)]
    assert check(run) == []


def test_a_retry_that_is_told_the_same_id_is_sound():
    run = sound()
    run.events = [*run.events, *published(3, call=14, at=3)]
    assert check(run) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_found(damage):
    run = sound()
    damage(run)
    assert DAMAGES[damage] in {violation.rule for violation in check(run)}


def test_every_rule_has_a_damage_that_it_finds():
    assert {rule.__name__ for rule in RULES} == set(DAMAGES.values())


def returned(begun: float, ended: float) -> list[Event]:
    line = Event(begun, "nemesis", "fault", "invoke", 60, note="restore etcd")
    return [line, replace(line, t=ended, type="ok", note="restore etcd: etcd")]


@pytest.mark.parametrize("damage", [cursor_went_back, acked_came_again])
@pytest.mark.parametrize(
    ("begun", "ended", "excused"), [(115.0, 130.0, True), (160.0, 170.0, False), (0.0, 80.0, False)]
)
def test_acks_and_cursors_of_around_a_return_may_be_forgotten(damage, begun, ended, excused):
    """The acks are of 110 to 112, the newest cursor of 125."""
    run = sound()
    damage(run)
    run.events = [*run.events, *returned(begun, ended)]
    assert (check(run) == []) == excused


@pytest.mark.parametrize("damage", [one for one in DAMAGES if DAMAGES[one] not in ("cursor", "redelivery")])
def test_a_return_excuses_nothing_else(damage):
    run = sound()
    damage(run)
    run.events = [*run.events, *returned(-50.0, 250.0)]
    assert DAMAGES[damage] in {violation.rule for violation in check(run)}


@pytest.mark.parametrize("damage", [cursor_went_back, acked_came_again])
@pytest.mark.parametrize(
    ("lapse", "excused"),
    [
        (Lapse("s", 150.0, {}), True),
        (Lapse("s", 150.0, {0: Runs([(0, 2)])}), False),  # cursors had the acks
        (Lapse("s", 150.0, {0: Runs([(1, 2)])}), True),  # of later messages
        (Lapse("s", 150.0, {}, since_s=126.0), False),
        (Lapse("s", 109.0, {}), False),
        (Lapse("s", 202.0, {}), False),
        (Lapse("other", 150.0, {}), False),
    ],
)
def test_acks_that_no_cursor_had_may_be_forgotten_behind_a_lost_journal(damage, lapse, excused):
    """The acks are of 110 to 112, the newest cursor of 125; what went wrong is of 200."""
    run = sound()
    damage(run)
    run.lapses = [lapse]
    assert (check(run) == []) == excused


@pytest.mark.parametrize(("ended_s", "is_found"), [(195.0, False), (194.9, True), (200.1, True)])
def test_a_broker_whose_lease_others_ended_may_read_on_for_a_while(ended_s, is_found):
    """The read is at 200 s."""
    run = sound()
    stale_read(run)
    outlawed = Event(ended_s, "nemesis", "fault", "invoke", 61, note="outlawed")
    run.events, run.lease_s = [*run.events, outlawed, replace(outlawed, t=ended_s + 9, type="ok")], 5.0
    assert ("fresh" in {one.rule for one in check(run)}) is is_found


def test_time_without_a_processor_does_not_count_for_the_lag():
    run = sound()
    lag_for_long(run)
    run.events = [replace(e, wait_s=6.0) if (e.op, e.type) == ("heal", "ok") else e for e in run.events]
    assert check(run) == []
