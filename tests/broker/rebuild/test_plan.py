"""The plan of a rebuild: which state is taken, and each key that follows from it and the store."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from seaweedq.broker.rebuild.lineage import ChainEnd, Chains
from seaweedq.broker.rebuild.plan import (
    GAP,
    Found,
    FoundJournal,
    Journals,
    OwnState,
    Plan,
    StateView,
    choose,
    losses,
    plan,
    wanted,
)
from seaweedq.coordination import keys
from seaweedq.coordination.backup import State
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import (
    Counter,
    CursorRecord,
    HeldLease,
    ImportRecord,
    Intent,
    JournalRecord,
    PrincipalRecord,
    RevocationRecord,
    SegmentRecord,
    SubscriptionRecord,
    Successor,
    TokenRecord,
    TombstoneRecord,
    TopicConfig,
    TopicRecord,
    UploadRecord,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.entry import EntryName
from seaweedq.segments.keyrange import KEY_SPACE

TOPIC = TopicRecord(3, "active", TopicConfig(), 7)
OPEN = SegmentRecord(0, KEY_SPACE, "open", (), (), "dead", None, 7)
SUBSCRIPTION = SubscriptionRecord("shared", "earliest", 30, 0, None, 7, 9, dispatcher="dead")
JOURNAL = JournalRecord("object", "place")
UPLOAD = UploadRecord("_payloads/t/20260101/u", 1, "x", None, 1, 2)
IMPORT = ImportRecord("ndjson", True, "n", 1, "s", 1, 2, 3, 100, "dead", "running", 5000, 300)
Keyed = tuple[keys.KeyKind[Any], tuple[Any, ...], Any]
T = (keys.TOPICS, ("t",), TOPIC)
S = (keys.SEGMENTS, ("t", 3, 3), OPEN)
END = ChainEnd(EntryName(0, 0), 0, KEY_SPACE, 10, 20)


def state(*records: Keyed) -> dict[str, bytes]:
    return {kind.key(*parts): kind.encode(Versioned.new(record)) for kind, parts, record in records}


def planned(taken: Mapping[str, bytes], ends: Mapping[int, ChainEnd | None] | None = None, **found: Any) -> Plan:
    ends = {3: END} if ends is None else ends
    chains = {"t": Chains(frozenset(n for n, end in ends.items() if end), ends)}
    return plan(StateView(taken), Found(chains, **found), now_us=99)


def at(made: Plan, kind: keys.KeyKind[Any], *parts: Any) -> Any:
    value = made.keys.get(kind.key(*parts))
    return None if value is None else kind.require(Entry(kind.key(*parts), value, 1)).record


def own(generation: int, number: int, revision: int, whole: bool = True) -> OwnState:
    return OwnState(State(generation, number, revision, {"own": b""}), whole)


def stored(generation: int, number: int, revision: int) -> State:
    return State(generation, number, revision, {"stored": b""})


@pytest.mark.parametrize(
    ("mine", "other", "source"),
    [
        (None, None, "nothing"),
        (None, stored(1, 4, 90), "snapshot"),
        (own(1, 4, 90), None, "coordination"),
        (own(1, 4, 90), stored(1, 4, 90), "coordination"),
        (own(1, 5, 95), stored(1, 4, 90), "coordination"),
        (own(1, 3, 95), stored(1, 4, 90), "snapshot"),  # it lacks a snapshot
        (own(1, 4, 89), stored(1, 4, 90), "snapshot"),  # it lacks a change
        (own(1, 9, 99), stored(2, 0, 5), "snapshot"),  # it is of an older generation
        (own(1, 5, 95, whole=False), stored(1, 4, 90), "snapshot"),  # a rebuild has begun to write
        (own(1, 5, 95, whole=False), None, "nothing"),
    ],
)
def test_one_whole_state_is_taken(mine: OwnState | None, other: State | None, source: str) -> None:
    taken, found = choose(mine, other)
    assert taken == source
    assert found.keys == {"nothing": {}, "snapshot": {"stored": b""}, "coordination": {"own": b""}}[source]


def test_what_nobody_knows_here_stays_as_it_is() -> None:
    later = {"later/kind": b"x", keys.TOPICS.key("u"): b'{"needs_level":99}', keys.SEGMENTS.key("u", 0, 0): b"{"}
    made = planned({**state(T, S), **later})
    assert {key: made.keys[key] for key in later} == later
    assert "u" not in made.topics


def test_members_that_nobody_knows_here_stay() -> None:
    taken = state(T, S)
    taken[S[0].key(*S[1])] = msgspec.json.encode({**msgspec.json.decode(taken[S[0].key(*S[1])]), "later": 1})
    made = planned(taken)
    assert msgspec.json.decode(made.keys[S[0].key(*S[1])])["later"] == 1


@pytest.mark.parametrize(
    "record",
    [
        (keys.REVOCATIONS, ("b",), RevocationRecord("a", (), 10.0)),
        (keys.BROKERS, ("b",), None),
        (keys.LEADER, (), None),
    ],
)
def test_what_is_of_brokers_that_lived_goes(record: Any) -> None:
    kind, parts, _ = record
    made = planned({**state(T, S), kind.key(*parts): b"{}"})
    assert kind.key(*parts) not in made.keys


def journals(**terms: dict[tuple[str, int], tuple[int, int]]) -> Journals:
    return Journals({broker: FoundJournal(JOURNAL, found) for broker, found in terms.items()})


@pytest.mark.parametrize(
    ("found", "owner"),
    [
        (journals(), None),  # whatever the state says: nothing unflushed is left of it
        (journals(x={("t", 3): (1, 1)}), "x"),
        (journals(x={("t", 3): (1, 2)}, y={("t", 3): (1, 10)}), "y"),
        (journals(x={("t", 3): (2, 1)}, y={("t", 3): (1, 10)}), "x"),
        (journals(x={("t", 4): (2, 1)}, y={("u", 3): (1, 10)}), None),
    ],
)
def test_the_owner_is_the_broker_of_the_highest_term(found: Journals, owner: str | None) -> None:
    assert at(planned(state(T, S), journals=found), *S[0:1], *S[1]).owner == owner


@pytest.mark.parametrize("term", [(1, 8), (2, 1)])
def test_a_sealed_segment_gets_the_highest_term_too(term: tuple[int, int]) -> None:
    """The leader took such a term for a sign of lost coordination behind each rebuild, without end (seed 420195)."""
    sealed = replace(OPEN, state="sealed", owner=None, end_offset=10, sealed_us=8, term=(1, 7))
    made = planned(state(T, (keys.SEGMENTS, ("t", 3, 3), sealed)), journals=journals(x={("t", 3): term}))
    found = at(made, *S[0:1], *S[1])
    assert (found.state, found.owner, found.term) == ("sealed", None, term)


def test_needed_journals_get_keys_and_others_are_only_to_be_removed() -> None:
    taken = state(
        T,
        S,
        (keys.JOURNALS, ("a",), replace(JOURNAL, left=("t",))),
        (keys.JOURNALS, ("b",), JOURNAL),
        (keys.JOURNALS, ("c",), replace(JOURNAL, recovered=True)),
        (keys.JOURNALS, ("d",), JOURNAL),
    )
    found = Journals(
        {"a": FoundJournal(JOURNAL), "c": FoundJournal(JOURNAL), "e": FoundJournal(JOURNAL)}, left_out={"d"}
    )
    made = planned(taken, journals=found)
    assert at(made, keys.JOURNALS, "a").left == ("t",)
    assert not at(made, keys.JOURNALS, "a").recovered
    assert at(made, keys.JOURNALS, "b").recovered
    assert not at(made, keys.JOURNALS, "c").recovered, "its folder does not say that it is done"
    assert at(made, keys.JOURNALS, "d") is None
    assert at(made, keys.JOURNALS, "e") == JOURNAL
    assert (made.journals, made.left_out) == (("a", "c", "e"), ("d",))


SPLIT = Intent(20, "planned", (3,), (Successor(20, 0, 5), Successor(21, 5, KEY_SPACE)))
TOMBSTONE = TombstoneRecord(0, 1, 2, (), (), 1, 2, 3)


@pytest.mark.parametrize(
    ("more", "found", "highest"),
    [
        ((), {}, 4),
        (((keys.COUNTERS, ("t",), Counter(17)),), {}, 17),
        (((keys.TOMBSTONES, ("t", 3, 18), TOMBSTONE),), {}, 18),
        ((), {"folders": {"t": 19}}, 19),
        (((keys.SEGMENTS, ("t", 3, 3), replace(OPEN, intent=SPLIT)),), {}, 21),
        ((), {"journals": journals(x={("t", 22): (1, 1)})}, 22),
    ],
)
def test_a_counter_rises_beyond_every_id_that_anything_names(
    more: tuple[Keyed, ...], found: dict[str, Any], highest: int
) -> None:
    assert at(planned(state(T, S, *more), **found), keys.COUNTERS, "t").next == highest + GAP


def test_names_without_a_topic_have_counters_too() -> None:
    made = planned(state((keys.COUNTERS, ("gone",), Counter(5))), folders={"late": 2})
    assert at(made, keys.COUNTERS, "gone").next == 5 + GAP
    assert at(made, keys.COUNTERS, "late").next == 2 + GAP


@pytest.mark.parametrize(
    ("before", "exists", "after"),
    [
        ("open", True, "published"),
        ("open", False, "open"),
        ("imported", True, "published"),
        ("imported", False, "published"),  # an import may have read it, and a message may name it since
        ("published", True, "published"),
        ("removed", True, "removed"),
    ],
)
def test_no_upload_counts_as_unused_that_a_message_may_name(before: Any, exists: bool, after: str) -> None:
    parts = ("t", 3, "u")
    taken = state(T, S, (keys.UPLOADS, parts, replace(UPLOAD, state=before)))
    made = planned(taken, uploads=frozenset({parts} if exists else ()))
    assert at(made, keys.UPLOADS, *parts).state == after
    assert made.topics["t"].uploads == (before != after)


@pytest.mark.parametrize(
    ("before", "known", "rows_done"), [("running", 900, 900), ("running", 200, 300), ("done", 900, 300)]
)
def test_an_import_goes_on_from_the_highest_sequence(before: Any, known: int, rows_done: int) -> None:
    parts = ("t", 3, "u")
    end = ChainEnd(EntryName(0, 0), 0, KEY_SPACE, 10, 20, imports={"u": known, "other": 9999})
    made = planned(state(T, S, (keys.IMPORTS, parts, replace(IMPORT, state=before))), {3: end})
    assert at(made, keys.IMPORTS, *parts).rows_done == rows_done


CURSOR = CursorRecord(9, 8, ((9, 12), (14, 15)), {"9": 2, "13": 3}, 16, held=(HeldLease("l", "c", 1.0, ((12, 13),)),))


def test_cursors_stay() -> None:
    parts = ("t", 3, "s", 3)
    made = planned(state(T, S, (keys.CURSORS, parts, CURSOR)), journals=journals(x={("t", 3): (1, 1)}))
    assert at(made, keys.CURSORS, *parts) == CURSOR
    assert not any("from offset" in one for one in losses(made))


def test_cursors_fall_to_the_ends_of_chains_if_no_journal_has_rows_behind() -> None:
    parts = ("t", 3, "s", 3)
    found = journals(x={("t", 4): (1, 1), ("u", 3): (1, 1)})
    made = planned(state(T, S, (keys.CURSORS, parts, CURSOR)), journals=found)
    assert at(made, keys.CURSORS, *parts) == CursorRecord(9, 8, ((9, 10),), {"9": 2}, 10)
    assert "topic t: the messages of segment 3 from offset 10 on, which a subscription had" in losses(made)[0]


def test_a_dry_run_knows_of_no_rows_that_are_gone() -> None:
    """It reads no journal: any of them may have the rows."""
    parts = ("t", 3, "s", 3)
    found = Journals({"x": FoundJournal(JOURNAL, is_read=False)})
    made = planned(state(T, S, (keys.CURSORS, parts, CURSOR)), journals=found)
    assert at(made, keys.CURSORS, *parts) == CURSOR
    assert not any("from offset" in one for one in losses(made))


def test_without_a_journal_cursors_fall_to_the_ends_of_chains() -> None:
    parts = ("t", 3, "s", 3)
    made = planned(state(T, S, (keys.CURSORS, parts, CURSOR)), journals=Journals(left_out={"x"}))
    assert at(made, keys.CURSORS, *parts) == CursorRecord(9, 8, ((9, 10),), {"9": 2}, 10)


def test_rows_of_a_journal_that_is_read_are_not_said_to_be_gone() -> None:
    """Another one is left out: so the cursor falls, and the rows are delivered again."""
    parts = ("t", 3, "s", 3)
    found = Journals({"y": FoundJournal(JOURNAL, {("t", 3): (1, 1)})}, left_out={"x"})
    made = planned(state(T, S, (keys.CURSORS, parts, CURSOR)), journals=found)
    assert at(made, keys.CURSORS, *parts).delivered_to == 10
    assert losses(made)[0] == "journal of x: the messages and acks that it holds"
    assert not any("from offset" in one for one in losses(made))


def test_subscriptions_stay_as_they_are() -> None:
    """Acks of their epochs are replayed first: the next dispatcher raises the epoch."""
    parts = ("t", 3, "s")
    made = planned(state(T, S, (keys.SUBSCRIPTIONS, parts, SUBSCRIPTION)))
    assert at(made, keys.SUBSCRIPTIONS, *parts) == SUBSCRIPTION
    assert made.topics["t"].subscriptions == 1


@pytest.mark.parametrize(
    ("found", "delivered_to", "ends"),
    [
        (Journals(left_out={"x"}), 0, True),  # its rows are of offsets that acks in others may name
        (Journals(), 16, True),  # some rows are gone, whoever had them
        (Journals(), 10, False),
        (Journals({"x": FoundJournal(JOURNAL, {("t", 3): (1, 1)})}), 16, False),
    ],
)
def test_acks_of_rows_that_are_gone_do_not_count(found: Journals, delivered_to: int, ends: bool) -> None:
    cursor = (keys.CURSORS, ("t", 3, "s", 3), CursorRecord(9, 8, delivered_to=delivered_to))
    made = planned(state(T, S, cursor, (keys.SUBSCRIPTIONS, ("t", 3, "s"), SUBSCRIPTION)), journals=found)
    wanted = SUBSCRIPTION.epoch + GAP * ends
    assert at(made, keys.SUBSCRIPTIONS, "t", 3, "s") == replace(SUBSCRIPTION, epoch=wanted)


@pytest.mark.parametrize(("known", "in_store", "then"), [(None, 0, 0), (5, 9, 9), (9, 5, 9), (None, 4, 4)])
def test_rounds_of_retention_go_on_behind_the_newest(known: int | None, in_store: int, then: int) -> None:
    taken = state(T, S, *([(keys.RETENTION, (), Counter(known))] if known else []))
    assert at(planned(taken, round=in_store), keys.RETENTION).next == then


def test_tokens_are_left_out_if_so_asked() -> None:
    principal, token = PrincipalRecord("u", (), 1), TokenRecord("d", "p", "u", 1)
    taken = state(T, S, (keys.PRINCIPALS, ("p",), principal), (keys.TOKENS, ("t1",), token))
    found = Found({"t": Chains(frozenset({3}), {3: END})})
    with_them = plan(StateView(taken), found, 1)
    without = plan(StateView(taken), found, 1, without_tokens="the rebuild was told to drop them")
    assert at(with_them, keys.PRINCIPALS, "p") == principal
    assert at(with_them, keys.TOKENS, "t1") == token
    assert at(without, keys.PRINCIPALS, "p") is None
    assert at(without, keys.TOKENS, "t1") is None


def test_a_topic_that_only_its_first_entry_names_is_there() -> None:
    made = planned({}, topics={"t": Versioned.new(TOPIC)})
    assert at(made, keys.TOPICS, "t") == TOPIC
    assert at(made, keys.SEGMENTS, "t", 3, 3) == replace(OPEN, owner=None)


def test_a_topic_that_is_being_deleted_is_left_to_its_deletion() -> None:
    taken = state((keys.TOPICS, ("t",), replace(TOPIC, state="deleting")), S)
    view = StateView(taken)
    assert wanted(view, Found({}), 1) == {}
    made = planned(taken, {})
    assert at(made, keys.SEGMENTS, "t", 3, 3) == OPEN
    assert "t" not in made.topics


def test_segments_of_an_earlier_incarnation_are_left_out() -> None:
    older = (keys.SEGMENTS, ("t", 1, 1), OPEN)
    assert wanted(StateView(state(T, S, older)), Found({}), 1) == {"t": {3}}


def test_seals_are_carried_out_and_said() -> None:
    intent = Intent(4, "committed", (3,), (Successor(4, 0, 5), Successor(5, 5, KEY_SPACE)))
    sealed = ChainEnd(EntryName(0, 0), 0, KEY_SPACE, 10, 20, intent)
    found = journals(x={("t", 4): (1, 3), ("t", 3): (1, 2)})
    made = planned(state(T, S), {3: sealed, 4: None, 5: None}, journals=found)
    assert at(made, keys.SEGMENTS, "t", 3, 3).state == "sealed"
    assert at(made, keys.SEGMENTS, "t", 3, 3).owner is None
    assert at(made, keys.SEGMENTS, "t", 3, 4).owner == "x"
    assert at(made, keys.SEGMENTS, "t", 3, 5).owner is None
    assert (made.topics["t"].ended, made.topics["t"].begun) == (1, 2)


def test_a_topic_that_cannot_go_on_is_said() -> None:
    made = planned(state(T, S), {3: None})
    assert "segment 3 has lost its files" in made.topics["t"].damage[0]


def test_a_plan_of_a_plan_is_the_same_but_for_counters() -> None:
    """A rebuild that was killed begins anew, from the state that the first one took, or has made."""
    parts = ("t", 3, "u")
    taken = state(T, S, (keys.UPLOADS, parts, UPLOAD), (keys.SUBSCRIPTIONS, ("t", 3, "s"), SUBSCRIPTION))
    once = planned(taken, uploads=frozenset({parts}), journals=journals(x={("t", 3): (1, 1)}))
    twice = planned(once.keys, uploads=frozenset({parts}), journals=journals(x={("t", 3): (1, 1)}))
    counter = keys.COUNTERS.key("t")
    assert {**once.keys, counter: b""} == {**twice.keys, counter: b""}
