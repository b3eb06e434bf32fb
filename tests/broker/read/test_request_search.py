"""Where a request is tried, when it is tried again, and with what it ends."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from seaweedq.broker.read.request_search import Search, SearchContext, SearchRequest, Target
from seaweedq.clock import SystemClock
from seaweedq.errors import ChainDamaged, NotOwner, NotReady, SubscriptionNotFound, TopicBeingDeleted, Unavailable

ME, OTHER = "me", "other"


class Catalog:
    """Knows one topic, which may be deleted; a look is what tells."""

    deleted = known = False

    async def refresh(self, name: str) -> None:
        self.known = self.deleted

    def check(self, topic: Any) -> None:
        if self.known:
            raise TopicBeingDeleted("the topic is being deleted")


class Locator:
    """Names the brokers one after the other, the last one for good."""

    patience_s, moved = 5.0, None

    def __init__(self, *brokers: str | None) -> None:
        self._brokers = list(brokers)

    async def locate(self) -> str | None:
        return self._brokers.pop(0) if len(self._brokers) > 1 else self._brokers[0]

    def failed(self, error: Unavailable) -> float | None:
        return None if isinstance(error, NotReady) else 0.001


class World:
    """A search and what it stands on."""

    def __init__(self, *brokers: str | None, asked: SearchRequest | None = None, timeout_s: float = 60) -> None:
        self.catalog, self.stopping = Catalog(), False
        roster = SimpleNamespace(url=lambda broker: f"http://{broker}" if broker else None, check_alive=self._alive)
        membership = SimpleNamespace(broker=ME)
        view = cast(
            Any, SimpleNamespace(catalog=self.catalog, roster=roster, membership=membership, clock=SystemClock())
        )
        context = SearchContext(view, timeout_s, lambda: self.stopping)
        topic = cast(Any, SimpleNamespace(name="t"))
        self.search = Search(context, topic, asked or SearchRequest(), Locator(*brokers))
        self.tried: list[bool] = []

    def _alive(self, broker: str) -> None:
        raise Unavailable(f"{broker} has gone")

    async def run(self, *errors: Exception | None) -> None:
        """Meet these errors, one an attempt."""
        left = list(errors)

        async def attempt(target: Target, is_here: bool) -> None:
            assert target.here == is_here
            self.tried.append(target.here)
            if error := left.pop(0):
                raise error

        await self.search.answer(partial(attempt, is_here=True), partial(attempt, is_here=False))

    async def target(self) -> Target:
        """The target of the first attempt, which is at another broker."""

        async def found(target: Target) -> Target:
            return target

        return await self.search.answer(AsyncMock(side_effect=AssertionError), found)


async def test_an_attempt_that_fails_is_made_again_at_the_next_broker() -> None:
    world = World(OTHER, ME)
    await world.run(NotOwner("moved"), None)
    assert world.tried == [False, True]
    assert not world.search.in_doubt


async def test_an_attempt_without_an_answer_leaves_doubt() -> None:
    world = World(OTHER)
    await world.run(NotOwner("moved"), Unavailable("no answer"), NotOwner("moved"), None)
    assert world.search.in_doubt


@pytest.mark.parametrize("error", [SubscriptionNotFound("none"), NotReady("stopping"), ValueError()])
async def test_other_errors_are_final(error: Exception) -> None:
    world = World(ME)
    with pytest.raises(type(error)):
        await world.run(error, None)
    assert world.tried == [True]


async def test_the_last_error_is_raised_when_the_time_after_the_first_is_over() -> None:
    world = World(ME, timeout_s=0)
    with pytest.raises(NotOwner, match="first"):
        await world.run(NotOwner("first"), None)


async def test_a_broker_that_stops_tries_nothing_again() -> None:
    world = World(ME)
    world.stopping = True
    with pytest.raises(NotOwner):
        await world.run(NotOwner("moved"), None)


async def test_a_relayed_request_is_answered_here_and_tried_once() -> None:
    world = World(OTHER, asked=SearchRequest(relayed=True))
    with pytest.raises(NotOwner):
        await world.run(NotOwner("not here"), None)
    assert world.tried == [True]


@pytest.mark.parametrize("deleted", [True, False])
async def test_damage_of_a_deleted_topic_is_its_deletion(deleted: bool) -> None:
    world = World(ME)
    world.catalog.deleted = deleted
    with pytest.raises(TopicBeingDeleted if deleted else ChainDamaged):
        await world.run(ChainDamaged("a file is gone"), None)


async def test_a_call_to_a_broker_that_has_gone_ends() -> None:
    world = World(OTHER)
    never = asyncio.Event().wait()
    target = await world.target()
    assert (target.url, target.wait_s, target.answer_s) == ("http://other", 0, 5)
    with pytest.raises(Unavailable, match="other has gone"):
        await target.ask(never)


async def test_a_broker_that_is_not_known_has_no_url() -> None:
    target = await World(None).target()
    assert (target.here, target.url) == (False, None)
