"""A token that the gate remembers loses its right with the change that takes it, as one that is shown first."""

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.access.actions import Action, Resource
from seaweedq.access.grants import Grant
from seaweedq.access.tokens import digest_of, draw
from seaweedq.api.access import rules, shown_tokens
from seaweedq.api.access.callers import caller_of
from seaweedq.api.access.gate import Gate
from seaweedq.broker.access.admin_token import AdminToken
from seaweedq.broker.access.callers import Callers
from seaweedq.clock import SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records.access import PrincipalRecord, TokenRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.errors import Forbidden, Unauthenticated, UnreadableRequest
from tests.broker.access.test_lookups import Time

PRINCIPAL = PrincipalRecord("u" * 32, (Grant((Action.PUBLISH, Action.CONSUME), ("t*",)),), 0)


class World:
    """A gate, and the changes of which its broker hears."""

    def __init__(self, admin: Path | None = None) -> None:
        self.clock = Time()
        token = AdminToken(admin)
        token.require()
        self.callers = Callers(MemoryCoordination(self.clock), self.clock, token)
        self.callers.view.loaded = True
        self.gate = Gate(self.callers, True, lambda scope: False)
        self._revision = 0
        self.principal(PRINCIPAL)

    def principal(self, record: PrincipalRecord | None) -> None:
        value = None if record is None else keys.PRINCIPALS.encode(Versioned.new(record))
        self._take(keys.PRINCIPALS.key("p"), value)

    def token(self, text: str, **more: Any) -> None:
        record = TokenRecord(digest_of(text.encode()).hex(), "p", PRINCIPAL.uid, 1, **more)
        self._take(keys.TOKENS.key(text.split("_")[1]), keys.TOKENS.encode(Versioned.new(record)))

    def revoke(self, text: str) -> None:
        self._take(keys.TOKENS.key(text.split("_")[1]), None)

    def asks(self, text: str, *more: tuple[bytes, bytes], topic: str = "t", **scope: Any) -> str | None:
        headers = [(b"authorization", f"Bearer {text}".encode()), *more]
        path = f"/v1/topics/{topic}/messages"
        asked = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers, **scope}
        self.gate.admit(asked)
        return caller_of(asked).principal

    def _take(self, key: str, value: bytes | None) -> None:
        self._revision += 1
        self.callers.view.take([Change(key, value, self._revision)])


def shown_twice(**more: Any) -> tuple[World, str]:
    world, text = World(), draw(SystemIds())
    world.token(text, **more)
    assert [world.asks(text), world.asks(text)] == ["p", "p"]
    return world, text


def test_one_that_is_revoked_counts_no_more_and_counts_again_if_it_comes_back() -> None:
    world, text = shown_twice()
    world.revoke(text)
    with pytest.raises(Unauthenticated):
        world.asks(text)
    world.token(text)
    assert world.asks(text) == "p"


def test_one_whose_parent_is_revoked() -> None:
    world, parent, child = World(), draw(SystemIds()), draw(SystemIds())
    world.token(parent)
    world.token(child, parent=parent.split("_")[1])
    assert [world.asks(child), world.asks(child)] == ["p", "p"]
    world.revoke(parent)
    with pytest.raises(Unauthenticated):
        world.asks(child)


def test_one_that_expires() -> None:
    world, text = shown_twice(expires_us=3_000_000)
    world.clock.s = 2.0
    with pytest.raises(Unauthenticated):
        world.asks(text)


@pytest.mark.parametrize("record", [None, msgspec.structs.replace(PRINCIPAL, disabled=True)])
def test_one_whose_principal_goes_or_is_disabled(record: PrincipalRecord | None) -> None:
    world, text = shown_twice()
    world.principal(record)
    with pytest.raises(Unauthenticated):
        world.asks(text)


def test_one_that_may_do_less_and_one_that_may_do_more() -> None:
    world, text = shown_twice()
    with pytest.raises(Forbidden):
        world.asks(text, topic="other")
    world.principal(msgspec.structs.replace(PRINCIPAL, grants=(Grant((Action.PUBLISH,), ("other",)),)))
    assert world.asks(text, topic="other") == "p"
    with pytest.raises(Forbidden):
        world.asks(text)


def test_a_second_token_beside_it() -> None:
    world, text = shown_twice()
    with pytest.raises(UnreadableRequest):
        world.asks(text, (b"authorization", b"Bearer x"))
    path = "/v1/topics/t/subscriptions/s/stream"
    assert [world.asks(text, path=path, method="GET") for _ in range(2)] == ["p", "p"]
    assert world.asks(text, path=path, type="websocket") == "p"
    with pytest.raises(UnreadableRequest):
        world.asks(text, path=path, type="websocket", subprotocols=[f"bearer.{text}"])


def test_how_much_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shown_tokens, "REMEMBERED_BYTES", 3 * (shown_tokens.TOKEN_BYTES + 1_000))
    monkeypatch.setattr(shown_tokens, "REMEMBERED_RIGHTS", 2)
    admin = tmp_path / "admin-token"
    admin.write_text("a" * 40)
    world = World(admin)
    assert world.asks("a" * 40) == "admin"
    with pytest.raises(Unauthenticated):
        world.asks(draw(SystemIds()))
    assert not world.gate._shown.by_header
    for _ in range(9):
        text = draw(SystemIds())
        world.token(text)
        for topic in ("t1", "t2", "t3", "t1"):
            assert world.asks(text, topic=topic) == "p"
        assert len(world.gate._shown.by_header) <= 3
        assert all(len(seen.allowed) <= 2 for seen in world.gate._shown.by_header.values())


@pytest.mark.parametrize("name", ["t" * 200, "t" + "\U0001f30a" * 199, "t1"])
def test_what_is_remembered_takes_no_more_memory_than_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that each use many names, as long as they may be, would else take a hundred megabytes."""
    most = 500_000
    monkeypatch.setattr(shown_tokens, "REMEMBERED_BYTES", most)
    world, sizes = World(), []
    shown = world.gate._shown
    tracemalloc.start()
    try:
        while not sizes or sizes[-1] < 0.9 * most:
            _ask_about(world, name)
            sizes.append(shown._bytes)
        rules._remembered.cache_clear()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        shown.forget(None)
        taken = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.25 * sizes[-1] < taken < sizes[-1]
    for _ in range(2 * len(sizes)):
        _ask_about(world, name)
        assert 0 < shown._bytes <= most


def _ask_about(world: World, name: str) -> None:
    text = draw(SystemIds())
    world.token(text)
    for number in range(64):
        world.asks(text, topic=f"{name}{text[4:12]}{number}")


def test_of_one_that_is_revoked_or_whose_principal_changes_nothing_is_kept() -> None:
    world, text = shown_twice()
    child, other = draw(SystemIds()), draw(SystemIds())
    world.token(child, parent=text.split("_")[1])
    world.token(other)
    assert [world.asks(child), world.asks(other)] == ["p", "p"]
    shown = world.gate._shown
    assert len(shown.by_header) == 3
    world.revoke(text)
    assert list(shown.by_header) == [b"Bearer " + other.encode()]
    world.principal(msgspec.structs.replace(PRINCIPAL, disabled=True))
    assert (shown.by_header, shown._headers, shown._bytes) == ({}, {}, 0)


def test_a_name_as_long_as_a_head_is_not_remembered() -> None:
    world, text = shown_twice()
    (seen,) = world.gate._shown.by_header.values()
    for _ in range(2):
        assert world.asks(text, topic="t" * 60_000) == "p"
    assert seen.allowed == {(Action.PUBLISH, Resource("t"))}
