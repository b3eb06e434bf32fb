"""A token that the gate remembers loses its right with the change that takes it, as one that is shown first."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.access.actions import Action, Resource
from seaweedq.access.grants import Grant
from seaweedq.access.tokens import digest_of, draw
from seaweedq.api.access import gate as gate_module
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
    monkeypatch.setattr(gate_module, "REMEMBERED_TOKENS", 3)
    monkeypatch.setattr(gate_module, "REMEMBERED_RIGHTS", 2)
    admin = tmp_path / "admin-token"
    admin.write_text("a" * 40)
    world = World(admin)
    assert world.asks("a" * 40) == "admin"
    with pytest.raises(Unauthenticated):
        world.asks(draw(SystemIds()))
    assert not world.gate._seen
    for _ in range(5):
        text = draw(SystemIds())
        world.token(text)
        for topic in ("t1", "t2", "t3", "t1"):
            assert world.asks(text, topic=topic) == "p"
        assert len(world.gate._seen) <= 3
        assert all(len(seen.allowed) <= 2 for seen in world.gate._seen.values())


def test_a_name_as_long_as_a_head_is_not_remembered() -> None:
    world, text = shown_twice()
    (seen,) = world.gate._seen.values()
    for _ in range(2):
        assert world.asks(text, topic="t" * 60_000) == "p"
    assert seen.allowed == {(Action.PUBLISH, Resource("t"))}
