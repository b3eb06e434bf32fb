"""The rules for subscriptions and for isolation find each kind of damage in a history that is sound but for that one.

One consumer gets four messages of one key, one after the other, and acks them; then all is healed, a pull waits for
nothing, and a slow client is there for a while.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.history import delivery_rules, isolation_rules
from tests.support.history.checker import check
from tests.support.history.history import Event, Letter, Row, digest
from tests.support.history.judged import Run
from tests.support.history.terms import Terms

KEY, SLOW, KILL = "k", "slow bodies", "kill owner"
ROWS = [Row(0, n, KEY, "p", n, digest(KEY, {"p": "p", "n": n})) for n in range(4)]
PULL, ACK, WAIT, STRANGER = 100, 200, 300, 400  # calls


def called(t: float, proc: str, op: str, call: int, type: str = "ok", told: str = "", **fields: object) -> list[Event]:
    """A request at `t`, and its end a second later."""
    line = Event(t, proc, op, "invoke", call, **fields)
    return [line, replace(line, t=t + 1, type=type, op=told or op)]


def pulled(row: Row, t: float, call: int, proc: str = "c") -> list[Event]:
    asked = Event(t, proc, "deliver", "invoke", call, wait_s=1.0)
    return [asked, replace(asked, t=t + 1, type="ok", segment=row.segment, offset=row.offset, hash=row.hash)]


def acked(row: Row, t: float, call: int, type: str = "ok", at: float | None = None) -> list[Event]:
    line, told = called(t, "c", "ack", call, type, segment=row.segment, offset=row.offset)
    return [line, replace(told, t=t + 1 if at is None else at)]


def sought_back(t: float) -> list[Event]:
    """A seek to the last message."""
    return called(t, "z", "seek", 700, segment=0, offset=3, acked_to=4)


def cursor_at(place: int, t: float, call: int) -> list[Event]:
    return called(t, "o", "cursor", call, segment=0, acked_to=place)


def waited(t: float, call: int, seconds: float = 1.0) -> list[Event]:
    line = Event(t, "c", "deliver", "invoke", call, wait_s=1.0)
    return [line, replace(line, t=t + seconds, type="ok", op="wait")]


def sent_again(events: list[Event], took_s: float) -> list[Event]:
    """A pull whose last request alone had an answer."""
    return [replace(e, took_s=took_s) if e.type == "ok" else e for e in events]


def lost(t: float, call: int, until: float, proc: str = "d") -> list[Event]:
    line = Event(t, proc, "deliver", "invoke", call)
    return [line, replace(line, t=until, type="info")]


def fault(name: str, t: float, until: float, call: int) -> list[Event]:
    line = Event(t, "nemesis", "fault", "invoke", call, note=name)
    return [line, replace(line, t=until, type="ok", note=f"{name}: b0")]


def published(row: Row, t: float, type: str = "ok", seconds: float = 1.0) -> list[Event]:
    asked = Event(t, "p", "publish", "invoke", row.seq, "t", KEY, "p", row.seq, hash=row.hash)
    place = {"segment": row.segment, "offset": row.offset} if type == "ok" else {}
    return [asked, replace(asked, t=t + seconds, type=type, **place)]


def sound() -> Run:
    events = [e for row in ROWS for e in published(row, 2.0 * row.seq)]
    events += [e for row in ROWS for e in pulled(row, 10.0 + 4 * row.seq, PULL + row.seq)]
    events += [e for row in ROWS for e in acked(row, 12.0 + 4 * row.seq, ACK + row.seq)]
    events += [*called(40.0, "nemesis", "heal", 1), *waited(42.0, WAIT), *fault(SLOW, 0.0, 9.0, STRANGER)]
    return Run(events, list(ROWS), list(ROWS), harmless={SLOW})


def without(run: Run, *calls: int) -> None:
    run.events = [e for e in run.events if e.call not in calls]


def later_one_came_first(run: Run) -> None:
    without(run, PULL, ACK, PULL + 1, ACK + 1)
    run.events += [*pulled(ROWS[0], 14, PULL), *acked(ROWS[0], 15.5, ACK)]
    run.events += [*pulled(ROWS[1], 30, PULL + 1), *acked(ROWS[1], 32, ACK + 1)]


def acked_before_an_earlier_one_came(run: Run) -> None:
    later_one_came_first(run)


def never_acked(run: Run) -> None:
    without(run, ACK + 3)


def unknown_to_the_only_ack(run: Run) -> None:
    run.events = [replace(e, type="fail") if e.call == ACK + 3 and e.type == "ok" else e for e in run.events]


def wait_that_ends_early(run: Run) -> None:
    run.events += waited(50.0, WAIT + 1, 0.2)


def wait_beside_a_message(run: Run) -> None:
    run.events += waited(8.5, WAIT + 1)


def refused_beside_a_stranger(run: Run) -> None:
    run.events += called(4.0, "p", "publish", 500, "info", hash=ROWS[2].hash, producer="p", seq=2, key=KEY)


def very_slow_beside_a_stranger(run: Run) -> None:
    run.events += fault(SLOW, 100.0, 140.0, STRANGER + 1)
    run.events += [replace(e, call=501) for e in published(ROWS[3], 110.0, seconds=16.0)]


def sought_and_not_acked_again(run: Run) -> None:
    run.events += [*sought_back(26.0), *pulled(ROWS[3], 28.0, 701)]


def died(run: Run, hash: str = ROWS[3].hash) -> None:
    run.letters = [Letter("s", 0, 3, "rejected", 1, hash)]
    run.events += called(26.0, "c", "reject", 720, segment=0, offset=3)


def died_twice(run: Run) -> None:
    died(run)
    run.letters *= 2


def another_one_died(run: Run) -> None:
    died(run, ROWS[2].hash)


DAMAGES: dict[Callable[[Run], None], str] = {
    later_one_came_first: "in_turn",
    acked_before_an_earlier_one_came: "acked_in_turn",
    never_acked: "remembered",
    unknown_to_the_only_ack: "remembered",
    sought_and_not_acked_again: "sought",
    another_one_died: "buried",
    died_twice: "buried",
    wait_that_ends_early: "waited_out",
    wait_beside_a_message: "nothing_there",
    refused_beside_a_stranger: "undisturbed",
    very_slow_beside_a_stranger: "undisturbed",
}


def broken(run: Run) -> set[str]:
    return {violation.rule for violation in check(run)}


def test_a_sound_history_passes():
    assert check(sound()) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_found(damage):
    run = sound()
    damage(run)
    assert DAMAGES[damage] in broken(run)


def test_every_rule_has_a_damage_that_it_finds():
    rules = {rule.__name__ for rule in (*delivery_rules.RULES, *isolation_rules.RULES)}
    assert rules == set(DAMAGES.values())


def test_an_unanswered_pull_may_explain_a_later_message_at_its_consumer():
    run = sound()
    later_one_came_first(run)
    run.events += lost(3.0, 600, 9.0, "c")
    assert check(run) == []
    later = sound()
    later_one_came_first(later)
    later.events += lost(31.0, 600, 33.0, "c")  # too late for that
    assert "in_turn" in broken(later)


def test_a_pull_of_another_consumer_excuses_nothing_nor_does_any_in_keyed():
    run = sound()
    later_one_came_first(run)
    run.events += lost(3.0, 600, 9.0)
    assert {"in_turn", "acked_in_turn"} <= broken(run)
    keyed = sound()
    later_one_came_first(keyed)
    keyed.events += lost(3.0, 600, 9.0, "c")
    keyed.terms = {"s": Terms("keyed")}
    assert {"in_turn", "acked_in_turn"} <= broken(keyed)


def test_shared_promises_no_order():
    run = sound()
    later_one_came_first(run)
    run.terms = {"s": Terms("shared")}
    assert check(run) == []


def test_what_died_needs_no_ack():
    run = sound()
    never_acked(run)
    died(run)
    assert broken(run) == set()


def test_what_is_acked_comes_again_behind_a_seek():
    run = sound()
    run.events += [*sought_back(26.0), *pulled(ROWS[3], 28.0, 701), *acked(ROWS[3], 30.0, 702)]
    assert check(run) == []
    without_it = replace(run, events=[e for e in run.events if e.op != "seek"])
    assert broken(without_it) == {"redelivery"}


def test_a_cursor_goes_back_by_a_seek_and_by_nothing_else():
    run = sound()
    run.events += [*cursor_at(4, 25.0, 710), *sought_back(26.0), *pulled(ROWS[3], 28.0, 701)]
    run.events += [*cursor_at(3, 28.0, 711), *acked(ROWS[3], 30.0, 702)]
    assert check(run) == []
    later = replace(run, events=[*run.events, *cursor_at(2, 32.0, 712)])
    assert broken(later) == {"cursor"}


def test_a_wait_of_keyed_is_excused_by_no_other_consumer_s_lease():
    run = sound()
    wait_beside_a_message(run)
    run.events += pulled(ROWS[0], 7.0, 601, "d")
    assert "nothing_there" not in broken(run)
    more = [*run.events, *acked(ROWS[0], 8.0, 602, at=8.2)]
    assert "nothing_there" in broken(replace(run, events=more, terms={"s": Terms("keyed")}))


def test_a_pull_that_was_refused_had_nothing():
    run = sound()
    later_one_came_first(run)
    run.events += [replace(e, type="fail") if e.type == "info" else e for e in lost(3.0, 600, 9.0)]
    assert "in_turn" in broken(run)


def test_a_segment_is_never_the_share_of_one_that_waits_in_vain():
    run = sound()
    wait_beside_a_message(run)
    share = pulled(ROWS[0]._replace(segment=5), 7.0, 601, "d")  # it pulled a second ago, and does not wait
    assert "nothing_there" not in broken(replace(run, events=[*run.events, *share]))
    beside = [replace(e, proc="d", call=601) for e in waited(8.4, 601)]
    assert "nothing_there" in broken(replace(run, events=[*run.events, *share, *beside]))
    assert "nothing_there" in broken(replace(run, events=[*run.events, *share, *sent_again(beside, 0.8)]))


def test_a_segment_may_be_the_share_of_one_whose_request_broke_off():
    """The broker may have kept the segment for that request, and the answer in vain came later, as in seed 310293."""
    run = sound()
    wait_beside_a_message(run)
    long = [replace(e, proc="d", call=601, wait_s=8.0) for e in waited(7.0, 601, 8.0)]
    assert "nothing_there" in broken(replace(run, events=[*run.events, *long]))
    assert "nothing_there" not in broken(replace(run, events=[*run.events, *sent_again(long, 0.1)]))


def test_a_pull_that_brokers_sent_again_may_have_had_it():
    """The answer that had it was lost between two brokers, and the repeat brought nothing, as in seed 410391."""
    run = sound()
    wait_beside_a_message(run)
    for waits_s, excused in ((0.1, True), (2.9, False)):
        long = [replace(e, proc="d", call=601, wait_s=waits_s) for e in waited(8.2, 601, 3.0)]
        assert ("nothing_there" not in broken(replace(run, events=[*run.events, *long]))) == excused


def test_a_pull_that_got_something_else_at_last_may_have_had_it():
    """Its first answer was lost, and the repeat brought messages of another segment, as in seed 450082."""
    run = replace(sound(), terms={"s": Terms("shared")})
    wait_beside_a_message(run)
    for waits_s, excused in ((0.1, True), (2.9, False)):
        invoke, end = waited(8.2, 601, 3.0)
        late = [replace(invoke, proc="d", wait_s=waits_s), replace(end, proc="d", op="deliver", segment=7, offset=0)]
        found = [*delivery_rules.nothing_there(replace(run, events=[*run.events, *late]))]
        assert (not found) == excused


def test_a_last_attempt_keeps_back_what_is_behind_it():
    """A broker that takes over waits until its lease must have ended, as in seed 440129."""
    for reason, excused in (("max-attempts", True), ("rejected", False)):
        run = sound()
        wait_beside_a_message(run)
        without(run, PULL)
        run.events += pulled(ROWS[0], 8.0, 601)
        run.letters = [Letter("s", 0, 0, reason, 1, ROWS[0].hash)]
        assert ("nothing_there" not in broken(run)) == excused


def test_another_consumer_may_have_the_segment():
    run = sound()
    wait_beside_a_message(run)
    run.events += pulled(ROWS[0], 8.0, 601, "d")
    assert "nothing_there" not in broken(run)


def test_an_ack_without_an_answer_may_stand():
    run = sound()
    run.events = [replace(e, type="info") if e.call == ACK + 3 and e.type == "ok" else e for e in run.events]
    assert check(run) == []


def test_a_publish_without_an_answer_may_come_behind_the_lag_of_zero():
    """Nobody had seen it by then (seed 460077)."""
    for type, found in (("ok", True), ("info", False)):
        run = sound()
        without(run, ROWS[3].seq, PULL + 3, ACK + 3)
        run.events += published(ROWS[3], 6.0, type)
        assert ("remembered" in broken(run)) == found


def test_another_subscription_is_judged_by_itself():
    run = sound()
    run.events += [replace(e, subscription="h") for e in pulled(ROWS[0], 20.0, 602)]
    assert broken(run) == {"remembered"}


def test_beside_a_fault_that_costs_something_a_stranger_is_not_to_blame():
    run = sound()
    refused_beside_a_stranger(run)
    run.events += fault(KILL, 1.0, 2.0, 401)
    assert check(run) == []
