"""The rules for segments that give way to others find each kind of damage in a history that is sound but for that one.

Segment 0 is split into 1 and 2, which are merged into 3; one producer's messages go to the low half but for one, are
acked one after the other, and are read by one that follows.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from tests.support.history.checker import check
from tests.support.history.history import Event, Row, digest
from tests.support.history.judged import Run, Segment
from tests.support.history.lineage_rules import FOLLOWED, RULES

MIDDLE = KEY_SPACE // 2
LOW = next(f"k{n}" for n in count() if hash_key(f"k{n}") < MIDDLE)
HIGH = next(f"k{n}" for n in count() if hash_key(f"k{n}") >= MIDDLE)
SEGMENTS = {
    0: Segment(0, KEY_SPACE, (), (1, 2), 2),
    1: Segment(0, MIDDLE, (0,), (3,), 1),
    2: Segment(MIDDLE, KEY_SPACE, (0,), (3,), 1),
    3: Segment(0, KEY_SPACE, (1, 2), ()),
}
ROWS = [
    Row(segment, offset, key, "p", n, digest(key, {"p": "p", "n": n}))
    for n, (segment, offset, key) in enumerate([(0, 0, LOW), (0, 1, LOW), (1, 0, LOW), (2, 0, HIGH), (3, 0, LOW)])
]


def lines(row: Row) -> list[Event]:
    """Published, delivered, acked, read."""
    t, call = 10.0 * row.seq, 10 * row.seq
    place = {"segment": row.segment, "offset": row.offset}
    asked = Event(t, "p", "publish", "invoke", call, "t", row.key, "p", row.seq, hash=row.hash)
    pull = Event(t + 2, "c", "deliver", "invoke", call + 1)
    ack = Event(t + 4, "c", "ack", "invoke", call + 2, **place)
    read = Event(t + 6, "f", "read", "invoke", call + 3, **place, broker="b", note=FOLLOWED)
    told = replace(read, t=t + 7, type="ok", key=row.key, producer="p", seq=row.seq, hash=row.hash)
    return [
        *(asked, replace(asked, t=t + 1, type="ok", **place)),
        *(pull, replace(pull, t=t + 3, type="ok", **place, hash=row.hash)),
        *(ack, replace(ack, t=t + 5, type="ok"), read, told),
    ]


def sound() -> Run:
    events = [event for row in ROWS for event in lines(row)]
    return Run(events, list(ROWS), list(ROWS), segments=dict(SEGMENTS))


def changed(run: Run, number: int, **more: object) -> None:
    run.segments = {**run.segments, number: replace(run.segments[number], **more)}


def open_twice(run: Run) -> None:
    changed(run, 2, end=None)


def hole_between_successors(run: Run) -> None:
    changed(run, 2, low=MIDDLE + 1)


def nothing_open_at_the_end(run: Run) -> None:
    changed(run, 3, high=KEY_SPACE - 1)


def unknown_successor(run: Run) -> None:
    changed(run, 1, successors=(3, 7))


def own_grandfather(run: Run) -> None:
    changed(run, 3, successors=(0,))
    changed(run, 0, predecessors=(3,))


def stranger_as_predecessor(run: Run) -> None:
    changed(run, 3, predecessors=(0, 1, 2))


def message_behind_the_end(run: Run) -> None:
    changed(run, 0, end=1)


def message_nowhere(run: Run) -> None:
    run.http = run.files = [*run.http, ROWS[4]._replace(segment=9)]


def message_in_the_wrong_half(run: Run) -> None:
    run.http = run.files = [*run.http[:3], ROWS[3]._replace(key=LOW), ROWS[4]]


def later_in_an_earlier_segment(run: Run) -> None:
    place = {"segment": 0, "offset": 5}
    run.events = [replace(e, **place) if (e.op, e.type, e.seq) == ("publish", "ok", 4) else e for e in run.events]


def of_another_producer_in_an_earlier_segment(run: Run) -> None:
    later_in_an_earlier_segment(run)
    run.events = [replace(e, producer="q") if e.seq == 4 else e for e in run.events]


def read_twice(run: Run) -> None:
    run.events = [*run.events, *(replace(e, call=99) for e in lines(ROWS[2])[-2:])]


def read_out_of_order(run: Run) -> None:
    run.events = sorted(run.events, key=lambda e: (e.op == "read", -e.call if e.op == "read" else e.t, e.t))
    run.segments = {n: replace(s, predecessors=(), successors=()) for n, s in run.segments.items()}


def read_before_the_end_of_its_predecessor(run: Run) -> None:
    run.events = [e for e in run.events if (e.op, e.segment, e.offset) != ("read", 0, 1)]


def delivered_before_an_ack(run: Run) -> None:
    run.events = [replace(e, t=e.t + 30) if (e.op, e.segment, e.offset) == ("ack", 0, 1) else e for e in run.events]


def delivered_before_an_ancestor_behind_an_empty_one_was_acked(run: Run) -> None:
    """The merged one's message comes although 0 was not acked; 1 and 2 have no messages."""
    changed(run, 1, end=0)
    changed(run, 2, end=0)
    run.http = run.files = [row for row in ROWS if row.segment in (0, 3)]
    run.events = [e for e in run.events if e.segment in (0, 3, None) and (e.op, e.segment, e.offset) != ("ack", 0, 1)]


DAMAGES: dict[Callable[[Run], None], str] = {
    open_twice: "tiled",
    hole_between_successors: "tiled",
    nothing_open_at_the_end: "tiled",
    unknown_successor: "kin",
    own_grandfather: "kin",
    stranger_as_predecessor: "kin",
    message_behind_the_end: "ended",
    message_nowhere: "ended",
    message_in_the_wrong_half: "at_home",
    later_in_an_earlier_segment: "key_time",
    of_another_producer_in_an_earlier_segment: "key_time",
    read_twice: "followed",
    read_out_of_order: "followed",
    read_before_the_end_of_its_predecessor: "followed",
    delivered_before_an_ack: "handed_on",
    delivered_before_an_ancestor_behind_an_empty_one_was_acked: "handed_on",
}


def test_a_sound_history_passes():
    assert check(sound()) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_found(damage):
    run = sound()
    damage(run)
    assert DAMAGES[damage] in {rule.__name__ for rule in RULES if [*rule(run)]}


def test_every_rule_has_a_damage_that_it_finds():
    assert {rule.__name__ for rule in RULES} == set(DAMAGES.values())
