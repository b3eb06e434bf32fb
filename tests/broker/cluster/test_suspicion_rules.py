"""The rules of suspicion: what counts as a refusal, who is reported, and who ends a lease."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.cluster.suspicion_rules import (
    APART_S,
    LONGEST_S,
    PeerHealth,
    ProbeOutcome,
    Stage,
    Verdict,
    may_be_suspected,
    reporters_needed,
    revoker_of,
    suspects,
)
from seaweedq.coordination.records import BrokerRecord

ANSWERED, LEAVES, REFUSED, FAILED = (
    ProbeOutcome.ANSWERED,
    ProbeOutcome.LEAVES,
    ProbeOutcome.REFUSED,
    ProbeOutcome.FAILED,
)


def health(outcomes: Sequence[ProbeOutcome]) -> PeerHealth:
    """What is held after these."""
    found = PeerHealth()
    for outcome in outcomes:
        found = found.after(outcome)
    return found


def living(*names: str) -> dict[str, BrokerRecord]:
    return {name: BrokerRecord(f"http://{name}", name, 0, lease_s=5.0) for name in names}


@pytest.mark.parametrize(
    ("outcomes", "suspected"),
    [
        ([REFUSED] * 9, False),  # it never answered
        ([ANSWERED, REFUSED, REFUSED, REFUSED], True),
        ([ANSWERED, FAILED, REFUSED, REFUSED], False),
        ([ANSWERED, FAILED, REFUSED, REFUSED, REFUSED], True),
        ([ANSWERED, REFUSED, REFUSED, FAILED, REFUSED], False),  # a time-out between begins anew
        ([ANSWERED, *[FAILED] * 50], False),  # a time-out never counts
        ([ANSWERED, REFUSED, REFUSED, ANSWERED, REFUSED], False),
        ([ANSWERED, REFUSED, REFUSED, REFUSED, FAILED], False),  # taken back
        ([ANSWERED, REFUSED, REFUSED, REFUSED, ANSWERED], False),
        ([ANSWERED, LEAVES, REFUSED, REFUSED, REFUSED], False),  # it stops in order
    ],
)
def test_three_refused_connections_of_a_broker_that_answered_are_reported(
    outcomes: list[ProbeOutcome], suspected: bool
) -> None:
    assert health(outcomes).is_suspect is suspected


@given(st.lists(st.sampled_from(ProbeOutcome)))
def test_a_report_rests_on_an_answer_and_on_the_last_three_being_refused(outcomes: list[ProbeOutcome]) -> None:
    found = health(outcomes)
    is_due = outcomes[-3:] == [REFUSED] * 3 and ANSWERED in outcomes and LEAVES not in outcomes
    assert found.is_suspect is is_due
    assert 0 <= found.pause_s <= LONGEST_S
    assert (found.holds_s > 0) is (found.stage is Stage.KNOWN)


def test_a_request_that_ends_is_followed_at_once_refusals_200_ms_apart() -> None:
    pauses = [health([ANSWERED, FAILED, *[REFUSED] * count]).pause_s for count in range(3)]
    assert pauses == [0.0, APART_S, APART_S]


def test_strangers_are_asked_less_and_less_often() -> None:
    pauses = [health([REFUSED] * count).pause_s for count in range(12)]
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_S


@pytest.mark.parametrize(
    ("brokers", "reports", "found"),
    [
        ("abc", {"c": "ab"}, [Verdict("c", ("a", "b"))]),
        ("abc", {"c": "a"}, []),
        ("ab", {"b": "a"}, [Verdict("b", ("a",))]),  # of two brokers one is enough
        ("ab", {"b": "a", "a": "b"}, []),  # each refuses the other, so both live
        ("abc", {"c": "ax"}, []),  # x has gone
        ("abc", {"c": "ac"}, []),  # nobody reports itself
        ("abcd", {"c": "ab", "a": "cd"}, []),  # those who are reported do not count
        ("abcd", {"c": "bda"}, [Verdict("c", ("a", "b"))]),
        ("abc", {"x": "ab"}, []),
    ],
)
def test_two_reporters_of_two_one_that_live_and_are_not_reported(
    brokers: str, reports: dict[str, str], found: list[Verdict]
) -> None:
    assert suspects(living(*brokers), len(brokers), reports) == found


@pytest.mark.parametrize(
    "change", [{"starting": True}, {"draining": True}, {"suspicion_exempt": True}, {"lease_s": 0.0}]
)
def test_starting_draining_and_spared_brokers_are_not_suspected(change: dict[str, bool]) -> None:
    brokers = living("a", "b") | {"c": BrokerRecord("", "c", 0, **{"lease_s": 5.0, **change})}
    assert not may_be_suspected(brokers["c"])
    assert suspects(brokers, 3, {"c": "ab"}) == []


def test_brokers_whose_records_cannot_be_read_count_as_living() -> None:
    assert suspects(living("a", "b"), 3, {"b": "a"}) == []
    assert [reporters_needed(count) for count in (1, 2, 3, 9)] == [1, 1, 2, 2]


def test_the_leader_ends_leases_and_that_of_the_leader_the_first_reporter() -> None:
    verdict = Verdict("c", ("a", "b"))
    assert revoker_of(verdict, "x") == "x"
    assert revoker_of(verdict, "c") == "a"
    assert revoker_of(verdict, None) is None
