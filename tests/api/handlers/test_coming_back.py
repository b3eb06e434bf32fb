"""A consumer of an `ordered` subscription that comes back under its name: what it held comes first, and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.subscriptions.leases import Position
from seaweedq.broker.subscriptions.pull_rounds import Leasing, Pull
from seaweedq.errors import Unavailable
from tests.api.handlers.test_leases import SUB, Client, one
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at
from tests.support.http.asking import problem_of

pytestmark = pytest.mark.brokers


def numbered(found: tuple[str | None, list[dict[str, Any]]]) -> list[tuple[int, int]]:
    """The values and attempts of what a pull got."""
    return [(message["value"], message["attempt"]) for message in found[1]]


async def test_what_it_held_comes_first_and_with_one_attempt_more(tmp_path: Path) -> None:
    """10 to 39 came, and were acked, before 0 to 9."""
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 40)
        assert numbered(await client.messages(10, consumer="c")) == [(n, 1) for n in range(10)]
        again = await client.messages(20, consumer="c", lease="new")
        assert numbered(again) == [(n, 2) for n in range(10)] + [(n, 1) for n in range(10, 20)]
        assert await client.messages(20, consumer="c", lease="new") == again, "a repeat is no new pull"
        assert await client.tell("ack", lease="new") == [20, 0, []]
        assert await client.pull(100, consumer="c") != again
        assert await client.pull(100, consumer="d") == (None, []), "the segment is still c's"


async def test_more_than_fits_comes_in_order_by_the_next_pulls_also_ahead(tmp_path: Path) -> None:
    """Else a consumer that had prefetched, and goes ahead again, would skip what its second lease held."""
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 8)
        await client.pull(3, consumer="c")
        assert (await client.pull(3, consumer="c", ahead=True))[1] == [3, 4, 5]
        assert numbered(await client.messages(2, consumer="c")) == [(0, 2), (1, 2)]
        rest = await client.messages(100, consumer="c", ahead=True)
        assert numbered(rest) == [(2, 2), (3, 2), (4, 2), (5, 2), (6, 1), (7, 1)]


async def test_acks_of_the_old_lease_count_until_the_new_one_is_acked(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 6)
        await client.pull(6, consumer="c", lease="old")
        assert (await client.pull(4, consumer="c", lease="new"))[1] == [0, 1, 2, 3]
        assert await client.tell("ack", [0], lease="old") == [1, 0, []]
        assert await client.tell("ack", [1], consumer="c") == [1, 0, []]
        await client.gone("nack", "old")
        await client.gone("extend", "old")
        await client.gone("pull", "old")
        assert await client.tell("ack", [4], lease="old") == [1, 1, []], "late: it is with nobody now"
        assert await client.tell("nack", [2], lease="old") == [0, 0, ["0-2"]]
        assert await client.tell("ack", lease="new") == [4, 0, []], "with what counted by the old one"
        assert await client.tell("ack", [2, 3], lease="old") == [2, 0, []], "acked they are"
        assert await client.tell("ack", lease="old") == [2, 1, []], "5, which nobody got, and what it acked before"
        assert await client.pull(6, consumer="c") == (None, [])


async def test_a_whole_old_lease_is_acked_and_its_repeat_answers_the_same(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 3)
        await client.pull(3, consumer="c", lease="old")
        await client.pull(3, consumer="c", lease="new")
        for _ in range(2):
            assert await client.tell("ack", lease="old") == [3, 0, []]
        assert await client.tell("ack", lease="new") == [3, 0, []]


async def test_another_consumers_messages_are_not_acked_by_what_it_once_had(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 2)
        await client.pull(2, consumer="c", lease="old")
        await client.pull(2, consumer="c", lease="new")
        assert await client.tell("nack", lease="new", delay_s=0) == [2, 0, []]
        other: list[int] = []
        while not other:  # once c's second is over
            _, other = await client.pull(2, consumer="d", lease="ds", wait_s=2)
        assert other == [0, 1]
        assert await client.tell("ack", [0, 1], lease="old") == [0, 0, ["0-0", "0-1"]]
        assert await client.tell("ack", [0, 1], consumer="c") == [0, 0, ["0-0", "0-1"]]
        await client.gone("ack", "old")


async def test_two_processes_without_a_name_are_not_one_that_comes_back(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 4)
        assert numbered(await client.messages(2)) == [(0, 1), (1, 1)]
        assert numbered(await client.messages(2, lease="mine")) == [(2, 1), (3, 1)]


@pytest.mark.parametrize("mode", ["keyed", "shared"])
async def test_in_other_modes_nothing_waits_for_what_it_held(tmp_path: Path, mode: str) -> None:
    async with one(tmp_path) as (_, client):
        await client.make("a", "b", "c", mode=mode)
        assert numbered(await client.messages(1, consumer="c")) == [(0, 1)]
        assert numbered(await client.messages(1, consumer="c")) == [(1, 1)]


async def test_what_has_had_its_last_attempt_does_not_come_again(tmp_path: Path) -> None:
    """It dies at its deadline, and may be acked until then; what is behind it need not wait."""
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 3, max_attempts=2, dead_letter_topic="d")
        for attempt in (1, 2):
            assert numbered(await client.messages(1, consumer="c"))[0] == (0, attempt)
        assert numbered(await client.messages(1, consumer="c")) == [(1, 1)]
        assert await client.tell("ack", [0], consumer="c") == [1, 0, []]


async def test_a_paused_subscription_leaves_leases_as_they_are(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 2)
        await client.pull(2, consumer="c", lease="old")
        assert (await client.http.patch(SUB, json={"paused": True})).status_code == 200
        assert await client.pull(2, consumer="c") == (None, [])
        assert (await client.pull(2, consumer="c", lease="old"))[1] == [0, 1]


async def test_a_look_that_fails_after_it_took_them_back_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The point at which a broker is between an old lease and the new one."""
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 4)
        await client.pull(2, consumer="c", lease="old")

        async def broken(*_: Any) -> None:
            raise Unavailable("the segment cannot be read")

        with monkeypatch.context() as patched:
            patched.setattr(Leasing, "_fill", broken)
            answer = await client.http.post(f"{SUB}/pull", json={"consumer": "c", "lease": "new"})
            problem_of(answer, 503, "unavailable")
        assert await client.tell("ack", [0], lease="old") == [1, 1, []]
        assert numbered(await client.messages(9, consumer="c", lease="newer")) == [(1, 2), (2, 1), (3, 1)]


async def test_a_new_stream_of_its_name_begins_with_them_and_then_goes_ahead(tmp_path: Path) -> None:
    async with one(tmp_path) as (together, client):
        await client.make(*[None] * 6)
        await client.pull(3, consumer="c")
        broker = together.brokers[0]
        topic = inside.topic(broker, "t")
        streams, position = inside.subscription_streams(broker), Position("st", "st", "c", 100)
        first = await streams.next(topic, "s", Pull(2, 0, "c", position=position))
        assert first
        assert [offset for _, offset, _ in first.rows.numbered] == [0, 1]
        second = await streams.next(topic, "s", Pull(100, 0, "c", position=position.at(1, *first.rows.last)))
        assert second
        assert [offset for _, offset, _ in second.rows.numbered] == [2, 3, 4, 5]
        other = Position("other", "other", "other", 100)
        assert await streams.next(topic, "s", Pull(100, 0, "other", position=other)) is None


@asynccontextmanager
async def relaying(folder: Path) -> AsyncIterator[tuple[InLoop, httpx.AsyncClient]]:
    """Two brokers with a subscription, and a client of the one that does not dispatch it."""
    async with in_loop(folder, 2) as together, at(together, together.brokers[0]) as http:
        await Client(http).make(*[None] * 4)
        await Client(http).pull(2, consumer="c", lease="old")
        (away,) = [one for one in together.brokers if not inside.dispatcher(one).names()]
        async with at(together, away) as beside:
            yield together, beside


@pytest.mark.parametrize("frees", [True, False], ids=["WebSocket", "server-sent events"])
async def test_the_leases_of_a_socket_end_with_the_broker_that_carried_it(tmp_path: Path, frees: bool) -> None:
    """They stayed until their deadline. An EventSource comes back to its own."""
    async with in_loop(tmp_path, 2) as together, at(together, together.brokers[0]) as http:
        await Client(http).make(*[None] * 4)
        (here,) = [one for one in together.brokers if inside.dispatcher(one).names()]
        (away,) = [one for one in together.brokers if one is not here]
        topic, position = inside.topic(away, "t"), Position("st", "st", "c", 100, frees=frees)
        found = await inside.subscription_streams(away).next(topic, "s", Pull(2, 0, "c", position=position))
        assert found
        assert len(found.rows) == 2
        await together.crash(away)
        await until(lambda: away.id not in inside.roster(here).brokers)
        async with at(together, here) as beside:
            again = numbered(await Client(beside).messages(9, consumer="d"))
        assert again == ([(0, 2), (1, 2), (2, 1), (3, 1)] if frees else [])


async def test_a_wait_under_its_name_at_another_broker_keeps_it_from_nothing(tmp_path: Path) -> None:
    """A pull whose client has gone unnoticed waits there; who came back queued behind it, and was told nothing."""
    async with relaying(tmp_path) as (_, beside):
        client = Client(beside)
        ahead = await client.pull(2, consumer="c", lease="ahead", ahead=True)
        assert ahead[1] == [2, 3]
        waits = asyncio.create_task(client.pull(2, consumer="c", ahead=True, wait_s=20))
        await asyncio.sleep(0.3)  # longer than it takes to know that there is nothing
        assert (await client.pull(9, consumer="c", wait_s=20))[1] == [0, 1, 2, 3]
        waits.cancel()


async def test_a_handover_keeps_whose_they_are(tmp_path: Path) -> None:
    async with relaying(tmp_path) as (together, beside):
        (here,) = [one for one in together.brokers if inside.dispatcher(one).names()]
        await inside.dispatcher(here).hand_over(inside.topic(here, "t"), "s")
        assert numbered(await Client(beside).messages(9, consumer="c")) == [(0, 2), (1, 2), (2, 1), (3, 1)]
        await until(lambda: any(inside.dispatcher(one).names() for one in together.brokers))
