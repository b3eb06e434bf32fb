"""The signs that coordination went back, each alone, and what is none."""

from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.rebuild.signs import (
    COMMAND,
    CoordinationFacts,
    SeenJournal,
    Sign,
    StoreFacts,
    find_signs,
    told,
)
from seaweedq.coordination.records import ClusterRecord

CLUSTER = ClusterRecord("c", "s", generation=2, nonce="n")
STORE = StoreFacts(2, "n", 7, 90, 5)
KNOWN: dict[str, Any] = {"snapshot": 7, "round": 5, "revision": 100, "watermark": 95, "journals": ("a", "b")}


def reasons(store: StoreFacts = STORE, journals: Any = None, cluster: Any = CLUSTER, **known: Any) -> list[str]:
    facts = CoordinationFacts(cluster, **{**KNOWN, **known})
    return [one.reason for one in find_signs(store, facts, journals or {})]


def test_no_sign() -> None:
    assert reasons(journals={"a": SeenJournal(2, 100), "b": SeenJournal(2, 3)}) == []


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (StoreFacts(3, "m", 7, 90, 5), "generation"),
        (StoreFacts(2, "m", 7, 90, 5), "generation"),  # two histories gave the same number
        (StoreFacts(1, "n", 7, 90, 5), "generation"),
        (StoreFacts(2, "n", 8, 90, 5), "snapshot"),
        (StoreFacts(2, "n", 7, 96, 5), "change"),  # what ends raises the revision of the whole, not the watermark
        (StoreFacts(2, "n", 7, 90, 6), "round"),
        (StoreFacts(2, "n", 7, 90, 5, 96), "done"),
    ],
)
def test_the_store_knows_more(store: StoreFacts, reason: str) -> None:
    assert reasons(store) == [reason]


@pytest.mark.parametrize(
    "store",
    [
        StoreFacts(2, "n", 6, 90, 5),
        StoreFacts(2, "n", 7, 95, 5),
        StoreFacts(2, "n", 7, 90, 4),
        StoreFacts(2, "n", 7, 90, 5, 95),
    ],
)
def test_coordination_knows_each_number_first(store: StoreFacts) -> None:
    assert reasons(store) == []


@pytest.mark.parametrize(
    ("broker", "seen", "found"),
    [
        ("x", SeenJournal(2, 1), ["journal"]),  # it joined since
        ("a", SeenJournal(2, 101), ["revision"]),  # seconds were lost
        ("x", SeenJournal(0, 0, True), ["journal"]),  # damaged
        ("a", SeenJournal(0, 0, True), []),
        ("x", SeenJournal(3, 1), ["generation"]),
        ("x", SeenJournal(1, 500), []),  # nothing in it was acknowledged
        ("a", SeenJournal(1, 500), []),  # the rebuild has given it a key: its revisions are of another history
    ],
)
def test_a_journal_knows_more(broker: str, seen: SeenJournal, found: list[str]) -> None:
    assert reasons(journals={broker: seen}) == found


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        (None, "empty"),
        (replace(CLUSTER, state="rebuilding"), "rebuilding"),
        (replace(CLUSTER, state="replacing"), "rebuilding"),
        (replace(CLUSTER, state="restored", found="a journal"), "restored"),
    ],
)
def test_coordination_is_not_in_use(cluster: ClusterRecord | None, reason: str) -> None:
    assert reasons(cluster=cluster) == [reason]


def test_all_signs_are_said_in_one_line_with_the_command() -> None:
    line = told([Sign("round", "one"), Sign("journal", "two")], "store x, coordination y")
    assert line.startswith("store x, coordination y: coordination was restored to an earlier state: one; two.")
    assert f"`{COMMAND}`" in line
    assert "\n" not in line


def test_an_empty_coordination_is_told_as_lost_and_as_a_wrong_setting() -> None:
    line = told([Sign("empty", "it is empty")], "store x, coordination y (prefix z)")
    assert "correct the setting" in line
    assert "was lost" in line
    assert "prefix z" in line
