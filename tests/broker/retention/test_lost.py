"""Open segments of a restored coordination whose files are all gone: no offset is given out twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.retention.rounds import OFFSETS, SEQUENCES
from seaweedq.checks import using
from seaweedq.coordination.records import TopicConfig
from seaweedq.storage.identity import mark_round
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.retained import RetainedWorld, delete_before, raise_start, retained, see_start

pytestmark = pytest.mark.brokers

CONFIRM, S, M = "/v1/cluster/confirm", "/v1/topics/t/subscriptions/s", "/v1/topics/t/messages"


async def restored(world: RetainedWorld) -> None:
    """The broker stops; later rounds, which coordination does not know, have taken all files; it starts again."""
    await world.broker.stop()
    await mark_round(world.store, 7)
    await delete_before(world.store, 99)
    await world.store.create("topics/t/segment=1/00000000-0000000000000000.parquet", b"of its successor")
    await world.together.begin_again(world.broker)
    await until(lambda: inside.election(world.broker).is_leader)


@asynccontextmanager
async def lost(folder: Path, start: int) -> AsyncIterator[tuple[RetainedWorld, httpx.AsyncClient]]:
    """A world whose open segment has lost all of its six rows, of which coordination knows some start."""
    async with retained(folder) as world:
        async with world.http() as http:
            assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        if start:
            await raise_start(world.together.coordination, 1 + start // 2, start)
            await see_start(start, world.broker)
        await restored(world)
        try:
            async with world.http() as http:
                yield world, http
        finally:
            await world.broker.stop()


def is_closed(answer: httpx.Response) -> bool:
    problem = answer.json()
    return answer.status_code == 500 and "`seaweedq cluster confirm`" in problem["detail"]


@pytest.mark.parametrize("start", [0, 4])
async def test_it_is_closed_until_it_goes_on_behind_all_that_it_gave_out(tmp_path: Path, start: int) -> None:
    async with lost(tmp_path, start) as (world, http):
        for _ in range(2):
            assert is_closed(await http.post(M, json={"value": 1}))
            assert is_closed(await http.get("/v1/topics/t/segments/0/messages?offset=5"))
        for _ in range(2):
            assert (await http.post(CONFIRM)).json() == {"retention_round": 7}
        first = start + OFFSETS
        assert (await http.post(M, json={"value": "new"})).json()["ids"] == [f"0-{first}"]
        answer = await http.get("/v1/topics/t/segments/0/messages?offset=5")
        assert (answer.status_code, answer.json()["start_offset"]) == (410, first), answer.text
        pulled = (await http.post(f"{S}/pull", json={})).json()["messages"]
        assert [each["id"] for each in pulled] == [f"0-{first}"]
        assert (await http.get(S)).json()["lag_total"]["skipped"] == OFFSETS
        assert await world.sequences() == [(1 + start // 2 if start else 0) + SEQUENCES]


async def test_a_confirmation_that_dies_goes_on(tmp_path: Path) -> None:
    async with lost(tmp_path, 0) as (world, http):
        with using(_die), pytest.raises(_Death):
            await inside.restored(world.broker).confirm()
        assert world.start == 0
        assert (await http.post(CONFIRM)).json() == {"retention_round": 7}
        assert world.start == OFFSETS
        assert (await http.post(M, json={"value": 1})).json()["ids"] == [f"0-{OFFSETS}"]


async def test_no_segment_is_replaced_until_it_is_confirmed(tmp_path: Path) -> None:
    """An id that coordination has forgotten is how a segment without files is known to have had some."""
    async with lost(tmp_path, 0) as (_, http):
        assert (await http.put("/v1/topics/u", json={"initial_segments": 2})).status_code == 201
        answer = await http.post("/v1/topics/u/segments/0/split")
        assert answer.status_code == 409, answer.text
        assert "`seaweedq cluster confirm`" in answer.json()["detail"]
        new = {(await _id_in(http, str(key), "u")).split("-")[0] for key in range(20)}
        assert new == {"0", "1"}, "they are open, and nothing is missing there"
        assert (await http.post(CONFIRM)).status_code == 200
        assert (await http.post("/v1/topics/u/segments/0/split")).status_code == 200


async def test_what_never_had_a_file_stays(tmp_path: Path) -> None:
    """The confirmation asks the owners, here and elsewhere."""
    async with in_loop(tmp_path) as together:
        one = together.brokers[0]
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=4))
        http = _at(together, 0)
        before = [await _id_in(http, str(key)) for key in range(20)]
        assert {each.split("-")[0] for each in before} == {"0", "1", "2", "3"}
        await mark_round(together.store, 7)
        assert (await http.post(CONFIRM)).json() == {"retention_round": 7}
        assert not inside.catalog(one).start_offsets(inside.topic(one, "t"))
        after = [await _id_in(http, str(key)) for key in range(20)]
        assert len({*before, *after}) == 40


async def test_an_owner_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=4))
        await mark_round(together.store, 7)
        together.refusing.add(two.process.url)
        assert (await _at(together, 0).post(CONFIRM)).status_code == 503
        assert await inside.restored(one)._rounds.is_restored()


class _Death(BaseException):
    pass


def _die(place: str) -> None:
    if place == "confirm.begun":
        raise _Death


def _at(together: InLoop, number: int) -> httpx.AsyncClient:
    url = together.brokers[number].process.url
    return httpx.AsyncClient(transport=httpx.ASGITransport(together.apps[url]), base_url=url, timeout=60)


async def _id_in(http: httpx.AsyncClient, key: str, topic: str = "t") -> str:
    answer = await http.post(f"/v1/topics/{topic}/messages", json={"key": key, "value": 1})
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["ids"]
    return str(found[0])
