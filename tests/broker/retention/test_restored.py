"""Coordination that was restored from a backup knows older starts than the files that later rounds have left."""

from pathlib import Path

import pytest

from seaweedq.errors import CoordinationUnavailable
from seaweedq.storage.retention_marks import mark_round
from tests.broker.retention.test_rounds import values
from tests.support.brokers.retained import RetainedWorld, delete_before, fill, retained

CONFIRM, S = "/v1/cluster/confirm", "/v1/topics/t/subscriptions/s"


async def forgotten(world: RetainedWorld) -> None:
    """Rounds that this coordination knows nothing of have taken the first two files with rows."""
    await mark_round(world.store, 7)
    await delete_before(world.store, 3)
    world.broker.core.catalog.topic("t").opened.clear()


async def test_starts_are_raised_to_the_first_files_that_are_there(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await world.policy(max_bytes=1, grace_s=60)
        await forgotten(world)
        await world.retention.round()
        assert (world.start, world.retention.rounds.held) == (0, "restored")
        for _ in range(2):
            assert (await http.post(CONFIRM)).json() == {"retention_round": 7}
            answer = await http.get("/v1/topics/t/segments/0/messages?offset=0")
            assert (answer.status_code, answer.json()["start_offset"]) == (410, 4), answer.text
            assert await values(world, 4) == [4, 5]
        pulled = (await http.post(f"{S}/pull", json={})).json()["messages"]
        assert [each["offset"] for each in pulled] == [4, 5]
        await fill(world.broker, 1)
        await world.retention.round()
        assert world.start == 6, "retention goes on"


async def test_a_confirmation_that_ends_early_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        await forgotten(world)
        rounds = world.retention.rounds
        with monkeypatch.context() as patched:
            patched.setattr(rounds, "confirm", _refusing)
            assert (await http.post(CONFIRM)).status_code == 503
        assert (world.start, await rounds.begin()) == (4, None)
        assert (await http.post(CONFIRM)).json() == {"retention_round": 7}
        assert await rounds.begin() is not None


async def _refusing() -> int:
    raise CoordinationUnavailable("it has no leader")
