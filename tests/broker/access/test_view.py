"""The view of principals and tokens: whatever changes, in whatever order, it finds what a new view of the same records
finds, and tells which tokens a change is about."""

from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.access.limits import Limits
from seaweedq.access.rights import Action, Caller, Grant, Resource
from seaweedq.broker.access.callers import AdminToken, Callers
from seaweedq.broker.access.view import AccessView
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.records import PrincipalRecord, TokenRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.tiers import examples

NAMES, TOKENS = ("*", "a", "b"), tuple(f"{number:016x}" for number in range(6))
Records = dict[str, PrincipalRecord | TokenRecord]
grants = st.sampled_from([(), (Grant((Action.READ,), ("*",)),), (Grant((Action.READ,), ("t",)),)])
limits = st.sampled_from([Limits(), Limits(requests=1), Limits(requests=2, topics=3)])
principals = st.builds(
    lambda uid, grants, limits, disabled: PrincipalRecord(uid, grants, 1, disabled, limits),
    st.sampled_from(["u0", "u1"]),
    grants,
    limits,
    st.booleans(),
)
tokens = st.builds(
    lambda principal, uid, expires_us, grants, parent: (principal, uid, expires_us, grants, parent),
    st.sampled_from(NAMES[1:]),
    st.sampled_from(["u0", "u1"]),
    st.none() | st.integers(1, 9),
    st.none() | grants,
    st.none() | st.sampled_from(TOKENS),
)
changes = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.none() | principals), st.tuples(st.sampled_from(TOKENS), st.none() | tokens)
)


def change_of(name: str, wanted: Any, revision: int) -> Change:
    if name in NAMES:
        key, kind = keys.PRINCIPALS.key(name), keys.PRINCIPALS
    else:
        key, kind = keys.TOKENS.key(name), keys.TOKENS
        if wanted is not None:
            principal, uid, expires_us, its_grants, parent = wanted
            digest = f"{TOKENS.index(name):064x}"
            wanted = TokenRecord(digest, principal, uid, 1, "", expires_us, its_grants, parent)
    return Change(key, None if wanted is None else kind.encode(Versioned.new(wanted)), revision)  # type: ignore[attr-defined]


def shown(caller: Caller | None) -> Any:
    return caller and (caller.principal, caller.expires_us, [one.grants for one in caller.layers], caller.limits)


def found(view: AccessView) -> dict[str, Any]:
    """What a view finds, by digest and by token; it remembers all of that."""
    by_digest = [view.find(number.to_bytes(32, "big")) for number in range(len(TOKENS))]
    assert [view.caller(token) for token in TOKENS] == by_digest
    for number, caller in enumerate(by_digest):
        assert view.found.get(number.to_bytes(32, "big")) is caller
    return {token: shown(caller) for token, caller in zip(TOKENS, by_digest, strict=True)}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(changes, max_size=20))
def test_what_is_remembered_is_what_a_new_view_finds(steps: list[tuple[str, Any]]) -> None:
    touched: list[Collection[str] | None] = []
    view, last, now = AccessView(SimpleNamespace(), touched.append), dict[str, Any](), dict[str, Any]()  # type: ignore[arg-type]
    there: dict[str, Change] = {}
    for revision, (name, wanted) in enumerate(steps, 1):
        touched.clear()
        view.take([change := change_of(name, wanted, revision)])
        there[name] = change
        fresh = AccessView(SimpleNamespace())  # type: ignore[arg-type]
        fresh.take(list(there.values()))
        now = found(view)
        assert now == found(fresh)
        differing = {token for token in TOKENS if last.get(token) != now[token]}
        assert not differing or touched[-1] is None or differing <= set(touched[-1])
        last = now


def test_a_token_that_is_issued_has_nobody_elses_found_or_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever has a token could keep all brokers busy with the callers of all others."""
    clock = SimpleNamespace(monotonic_s=lambda: 0.0, now_us=lambda: 0)
    callers = Callers(SimpleNamespace(), clock, AdminToken(None))  # type: ignore[arg-type]
    every = (Grant((Action.READ,), ("*",)),)
    token = ("a", "u0", None, None, None)
    callers.view.take([change_of("a", PrincipalRecord("u0", every, 1), 1), change_of(TOKENS[0], token, 2)])
    caller = callers.view.find(bytes(32))
    assert caller is not None
    judged: list[Caller] = []
    again = Callers.current
    monkeypatch.setattr(Callers, "current", lambda self, one, *at: judged.append(one) or again(self, one, *at))
    ended: list[str] = []
    with callers.holding(caller, Action.READ, Resource("t"), lambda: ended.append("ended")):
        callers.view.take([change_of(TOKENS[1], token, 3), change_of("b", PrincipalRecord("u1", every, 1), 4)])
        assert callers.view.find(bytes(32)) is caller
        assert not judged
        callers.view.take([change_of(TOKENS[0], None, 5)])
        assert ended == ["ended"]


def test_a_token_counts_until_it_expires_and_not_a_moment_longer() -> None:
    clock = SimpleNamespace(monotonic_s=lambda: 0.0, now_us=lambda: 4)
    callers = Callers(SimpleNamespace(), clock, AdminToken(None))  # type: ignore[arg-type]
    callers.view.take([change_of("a", PrincipalRecord("u0", (), 1), 1)])
    callers.view.take([change_of(TOKENS[0], ("a", "u0", 5, None, None), 2)])
    callers.view.take([change_of(TOKENS[1], ("a", "u0", 9, None, TOKENS[0]), 3)])
    digests = [number.to_bytes(32, "big") for number in range(2)]
    found = [callers.find(one) for one in digests]
    assert all(found)
    clock.now_us = lambda: 5
    assert [callers.find(one) for one in digests] == [None, None], "with the one from which it came"
    assert [callers.current(one) for one in found if one] == [None, None]


def test_a_look_judges_what_has_expired_and_no_more_requests_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else thousands of pulls that wait would hold the broker up at each look."""
    clock = SimpleNamespace(monotonic_s=lambda: 0.0, at_us=0)
    clock.now_us = lambda: clock.at_us
    callers = Callers(SimpleNamespace(), clock, AdminToken(None))  # type: ignore[arg-type]
    every = (Grant((Action.READ,), ("*",)),)
    callers.view.take([change_of("a", PrincipalRecord("u0", every, 1), 1)])
    for number, expires_us in enumerate((10, 20, None)):
        callers.view.take([change_of(TOKENS[number], ("a", "u0", expires_us, None, None), 2 + number)])
    judged: list[int] = []
    again = callers.current
    monkeypatch.setattr(callers, "current", lambda *asked: judged.append(1) or again(*asked))
    ended: list[int] = []
    with ExitStack() as held:
        for number in range(3):
            caller = callers.view.find(number.to_bytes(32, "big"))
            assert caller is not None
            for _ in range(50):
                end = partial(ended.append, number)
                held.enter_context(callers.holding(caller, Action.READ, Resource("t"), end))
        callers.end_revoked_requests()
        assert (judged, ended) == ([], [])
        clock.at_us = 10
        callers.end_revoked_requests()
        assert (len(judged), set(ended), len(ended)) == (50, {0}, 50)
        for _ in range(1000):
            with callers.holding(caller, Action.READ, Resource("t"), lambda: None):
                pass
        second = callers.view.find((1).to_bytes(32, "big"))
        assert second is not None
        for _ in range(1000):
            with callers.holding(second, Action.READ, Resource("t"), lambda: None):
                pass
        assert len(callers._expiring) < 500, "those that have ended are forgotten"
    clock.at_us = 20
    callers.end_revoked_requests()
    assert (set(ended), callers._by_handle) == ({0}, {})


def test_a_clock_set_back_amid_a_look_keeps_nothing_that_has_expired() -> None:
    """What is taken from those that expire is looked at by nothing else, so it must end."""
    readings: list[int] = []
    clock = SimpleNamespace(monotonic_s=lambda: 0.0, now_us=lambda: readings.pop(0) if readings else 1)
    callers = Callers(SimpleNamespace(), clock, AdminToken(None))  # type: ignore[arg-type]
    grants = (Grant((Action.READ,), ("*",)),)
    callers.view.take([change_of("a", PrincipalRecord("u0", grants, 1), 1)])
    callers.view.take([change_of(TOKENS[0], ("a", "u0", 10, None, None), 2)])
    caller = callers.find(bytes(32))
    assert caller is not None
    ended: list[int] = []
    with callers.holding(caller, Action.READ, Resource("t"), partial(ended.append, 1)):
        callers.end_revoked_requests()
        assert not ended
        readings.append(10)
        callers.end_revoked_requests()
    assert ended == [1]


def test_an_end_that_comes_while_a_request_is_held_ends_it() -> None:
    """As the first step of a revocation by a broker whose clock is ahead, which dies before the second."""
    clock = SimpleNamespace(monotonic_s=lambda: 0.0, now_us=lambda: 1)
    callers = Callers(SimpleNamespace(), clock, AdminToken(None))  # type: ignore[arg-type]
    callers.view.take([change_of("a", PrincipalRecord("u0", (Grant((Action.READ,), ("*",)),), 1), 1)])
    callers.view.take([change_of(TOKENS[0], ("a", "u0", None, None, None), 2)])
    caller, ended = callers.find(bytes(32)), list[int]()
    assert caller is not None
    with callers.holding(caller, Action.READ, Resource("t"), partial(ended.append, 1)):
        callers.view.take([change_of(TOKENS[0], ("a", "u0", 5, None, None), 3)])
        callers.end_revoked_requests()
        assert not ended
        clock.now_us = lambda: 5
        callers.end_revoked_requests()
        assert ended == [1]
