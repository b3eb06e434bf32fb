"""Grants: what they give, and which lie within others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.access.rights import (
    ANONYMOUS,
    BROKER,
    CLUSTER,
    EVERYTHING,
    NOBODY,
    OF_THE_CLUSTER,
    Action,
    Caller,
    Grant,
    Resource,
    Rights,
    judge,
)

LETTERS = st.text("ab.", min_size=1, max_size=4)
NAMES = st.one_of(LETTERS, LETTERS.map(lambda end: f"seaweedq.{end}"))
PATTERNS = st.one_of(NAMES, st.text("ab.", max_size=3).map(lambda one: f"{one}*"), st.just("seaweedq*"))
GRANTS = st.builds(
    Grant,
    st.lists(st.sampled_from(Action), min_size=1, max_size=2).map(tuple),
    st.lists(PATTERNS, max_size=2).map(tuple),
    st.lists(PATTERNS, max_size=2).map(tuple),
)


@pytest.mark.parametrize(
    ("patterns", "topic", "allowed"),
    [
        (("flights",), "flights", True),
        (("flights",), "flights2", False),
        (("flights*",), "flights2", True),
        (("flights*",), "flights", True),
        (("*",), "a", True),
        (("*",), "seaweedq.audit", False),
        (("seaweedq*",), "seaweedq.audit", False),
        (("seaweedq.*",), "seaweedq.audit", False),
        (("seaweedq.audit",), "seaweedq.audit", True),
        (("*",), "seaweedqs", True),
        ((), "a", False),
        (("Flights",), "flights", False),
        (("fl*hts",), "flights", False),
    ],
)
def test_topics_of_a_grant(patterns: tuple[str, ...], topic: str, allowed: bool) -> None:
    assert Rights([Grant((Action.READ,), patterns)]).allow(Action.READ, Resource(topic)) is allowed
    assert not Rights([Grant((Action.READ,), patterns)]).allow(Action.PUBLISH, Resource(topic))


def test_subscriptions_of_a_grant() -> None:
    rights = Rights([Grant((Action.CONSUME,), ("a*",), ("mine-*",)), Grant((Action.CONSUME,), ("b",))])
    assert rights.allow(Action.CONSUME, Resource("a1", "mine-1"))
    assert not rights.allow(Action.CONSUME, Resource("a1", "others"))
    assert rights.allow(Action.CONSUME, Resource("b", "others"))
    assert not rights.allow(Action.CONSUME, Resource("c", "mine-1")), "each grant stands for itself"


@pytest.mark.parametrize("action", sorted(OF_THE_CLUSTER))
def test_rights_to_the_cluster_need_no_topic(action: Action) -> None:
    rights = Rights([Grant((action,))])
    assert rights.allow(action, CLUSTER)
    assert [one for one in Action if rights.allow(one, CLUSTER)] == [action]


@pytest.mark.parametrize("action", sorted(set(Action) - OF_THE_CLUSTER))
def test_rights_to_topics_give_nothing_of_the_cluster(action: Action) -> None:
    assert not Rights([Grant((action,), ("*",))]).allow(action, CLUSTER)


def test_all_layers_must_allow() -> None:
    wide, narrow = Rights([Grant((Action.READ,), ("*",))]), Rights([Grant((Action.READ,), ("a",))])
    assert judge(Caller("p", "t", (wide,)), Action.READ, Resource("b"))
    assert not judge(Caller("p", "t", (wide, narrow)), Action.READ, Resource("b"))
    assert judge(Caller("p", "t", (wide, narrow)), Action.READ, Resource("a"))
    assert not judge(Caller("p", "t", (Rights([]), EVERYTHING)), Action.READ, Resource("a"))


@pytest.mark.parametrize("action", Action)
def test_those_who_are_no_principals(action: Action) -> None:
    for resource in (CLUSTER, Resource("a"), Resource("seaweedq.audit"), Resource("a", "s")):
        assert judge(ANONYMOUS, action, resource)
        assert judge(BROKER, action, resource)
        assert not judge(NOBODY, action, resource)
        assert not judge(Caller("p"), action, resource)


@pytest.mark.parametrize(
    ("narrow", "wide", "lies_within"),
    [
        ("a", "a*", True),
        ("ab*", "a*", True),
        ("b", "a*", False),
        ("*", "a*", False),
        ("a*", "a", False),
        ("seaweedq.a", "*", False),
    ],
)
def test_which_topics_of_a_grant_lie_within_anothers(narrow: str, wide: str, lies_within: bool) -> None:
    assert Rights([Grant((Action.READ,), (wide,))]).cover([Grant((Action.READ,), (narrow,))]) is lies_within


@given(GRANTS, GRANTS, st.sampled_from(Action), NAMES, st.one_of(st.none(), LETTERS))
def test_what_is_covered_gives_nothing_more(
    wide: Grant, narrow: Grant, action: Action, topic: str, subscription: str | None
) -> None:
    whole = Rights([wide])
    if whole.cover([narrow]) and Rights([narrow]).allow(action, Resource(topic, subscription)):
        assert whole.allow(action, Resource(topic, subscription))


@given(GRANTS)
def test_a_grant_covers_itself(grant: Grant) -> None:
    if grant.topics and grant.subscriptions:
        assert Rights([grant]).cover([grant])


def test_a_caller_shows_no_rights() -> None:
    assert "Rights" not in repr(Caller("p", "t", (EVERYTHING,)))
