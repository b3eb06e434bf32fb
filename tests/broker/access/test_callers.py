"""Lookups of tokens that a broker does not know yet: found at once, and of strangers' ids few."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from seaweedq.access.limits import NO_LIMITS
from seaweedq.access.rights import EVERYTHING, NEVER_US, Caller
from seaweedq.access.tokens import digest_of, draw
from seaweedq.broker.access.callers import NOTHING_S, RATE_S, AdminToken, Callers
from seaweedq.broker.access.principals import Principals, TokenSpec
from seaweedq.broker.access.view import PREFIXES
from seaweedq.clock import SystemIds
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.view import View
from seaweedq.errors import CoordinationUnavailable
from tests.support import privates
from tests.support.brokers.sealers import admin_changes
from tests.support.http.with_tokens import access

ROOT = Caller("admin", "admin-token-file", (EVERYTHING,), NEVER_US)


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_us(self) -> int:
        return 1_000_000 + int(self.s * 1e6)

    def monotonic_s(self) -> float:
        return self.s


class Counting(MemoryCoordination):
    """Coordination that counts reads of single keys, and fails where a test says so."""

    def __init__(self, clock: Time) -> None:
        super().__init__(clock)
        self.reads: list[str] = []
        self.fails = False

    async def get(self, key: str) -> Entry | None:
        self.reads.append(key)
        if self.fails:
            raise CoordinationUnavailable("away")
        await asyncio.sleep(0)
        return await super().get(key)


class Two:
    """One broker that changes principals and tokens, and one whose watch tells it nothing."""

    def __init__(self) -> None:
        self.time = Time()
        self.coordination = Counting(self.time)
        self.here = Callers(self.coordination, self.time, AdminToken(None))
        self.late = Callers(self.coordination, self.time, AdminToken(None))
        self.changes = Principals(
            self.coordination, self.here.view, self.time, SystemIds(), admin_changes(self.coordination)
        )

    async def issue(self, name: str, caller: Caller = ROOT) -> tuple[str, str]:
        """The id and the text of a new token."""
        wanted = TokenSpec(name if caller is ROOT else None, None, None)
        issued = await self.changes.issue(caller, wanted)
        await self.here.view.load()
        return issued.id, issued.text

    async def put(self, name: str) -> None:
        await self.changes.put(name, (), NO_LIMITS, False)
        await self.here.view.load()

    async def find(self, text: str) -> Caller | None:
        """The caller at the one that is late."""
        found = self.late.find(digest_of(text.encode()))
        if found is None and await self.late.learn(text.encode()):
            found = self.late.find(digest_of(text.encode()))
        return found


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    await made.late.view.load()
    yield made
    await made.coordination.close()


async def test_a_new_token_of_a_new_principal_is_found_with_its_line(two: Two) -> None:
    await two.put("p")
    _, first = await two.issue("p")
    parent = two.here.find(digest_of(first.encode()))
    assert parent
    _, second = await two.issue("p", parent)
    found = await two.find(second)
    assert found
    assert found.principal == "p"
    assert found.uid == parent.uid
    reads = len(two.coordination.reads)
    assert await two.find(second)
    assert await two.find(first)
    assert len(two.coordination.reads) == reads, "what is known is not read again"


async def test_a_token_of_a_principal_that_was_created_again_is_found(two: Two) -> None:
    await two.put("p")
    await two.late.view.load()
    await two.changes.delete("p")
    await two.put("p")
    _, text = await two.issue("p")
    assert await two.find(text)


async def test_a_revoked_token_is_not_found_again(two: Two) -> None:
    await two.put("p")
    id, text = await two.issue("p")
    await two.late.view.load()
    assert await two.find(text)
    await two.changes.revoke(ROOT, id)
    await two.late.view.load()
    assert await two.find(text) is None


async def test_a_revocation_that_the_watch_has_told_outlives_an_older_read(two: Two) -> None:
    await two.put("p")
    id, text = await two.issue("p")
    get = two.coordination.get

    async def old(key: str) -> Entry | None:
        found = await get(key)
        if id in key:
            two.coordination.get = get  # type: ignore[method-assign]
            await two.changes.revoke(ROOT, id)
            await two.late.view.load()
        return found

    two.coordination.get = old  # type: ignore[method-assign]
    assert await two.find(text) is None


async def test_ids_of_strangers_cost_few_reads_and_leave_nothing(two: Two) -> None:
    texts = [draw(SystemIds()) for _ in range(200)]
    for text in texts * 3:
        assert await two.find(text) is None
    assert len(two.coordination.reads) <= RATE_S + 1
    two.time.s += 5
    for text in texts:
        await two.find(text)
    assert len(two.coordination.reads) <= 2 * RATE_S + 2
    two.time.s += 5
    await two.find(texts[0])
    assert len(privates.lookups(two.late)._nothing) == 1
    assert not privates.lookups(two.late)._running
    assert not two.late.view._view._gone


async def test_an_id_that_was_not_there_is_read_again_after_a_moment(two: Two) -> None:
    text = draw(SystemIds())
    await two.find(text)
    await two.find(text)
    assert len(two.coordination.reads) == 1
    two.time.s += NOTHING_S
    await two.find(text)
    assert len(two.coordination.reads) == 2


async def test_those_who_ask_at_once_share_a_read(two: Two) -> None:
    await two.put("p")
    _, text = await two.issue("p")
    del two.coordination.reads[:]
    assert all(await asyncio.gather(*(two.find(text) for _ in range(100))))
    assert len(two.coordination.reads) == 2, "the token and its principal"


@pytest.mark.parametrize(
    "text",
    ["sq1_", "sq1_" + "0" * 90, "x" * 100, draw(SystemIds())[:-1] + "x", "é"],
    ids=["prefix", "zeros", "long", "checksum", "not-ascii"],
)
async def test_what_is_no_token_is_not_read(two: Two, text: str) -> None:
    assert not await two.late.learn(text.encode())
    assert not two.coordination.reads


async def test_a_coordination_that_does_not_answer_is_no_answer_about_a_token(two: Two) -> None:
    two.coordination.fails = True
    with pytest.raises(CoordinationUnavailable):
        await two.find(draw(SystemIds()))


@pytest.mark.brokers
async def test_a_token_that_another_broker_has_just_created_is_no_401(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = privates.watch(View)

    async def late(view: View, revision: int, prefix: str) -> None:
        await (asyncio.Event().wait() if prefix in PREFIXES else watch(view, revision, prefix))

    monkeypatch.setattr(View, "_watch", late)
    async with access(tmp_path, 2) as http:
        grants = [{"actions": ["describe"], "topics": ["*"]}]
        assert await http.status("PUT", "/v1/principals/p", http.admin, json={"grants": grants}) == 201
        answer = await http("POST", "/v1/tokens", http.admin, json={"principal": "p"})
        for broker in (1, 0):
            for _ in range(2):
                shown: Any = await http("GET", "/v1/whoami", answer.json()["token"], broker)
                assert (shown.status_code, shown.json()["principal"]) == (200, "p")
        assert await http.status("GET", "/v1/whoami", draw(SystemIds()), 1) == 401
        app = http.together.apps["http://b1"]
        assert app.refusals.counts["unauthenticated"] <= 1, "a token that was found is no refusal"
