"""Coordination that was restored from a backup knows older starts than the files that later rounds have left."""

from pathlib import Path

import pytest

from seaweedq.broker.retention import rounds
from seaweedq.errors import CoordinationUnavailable
from seaweedq.storage.identity import mark_round
from tests.broker.retention.test_rounds import values
from tests.support.brokers import inside
from tests.support.brokers.reshaped import replace
from tests.support.brokers.retained import RetainedWorld, delete_before, fill, retained

pytestmark = pytest.mark.brokers

CONFIRM, S = "/v1/cluster/confirm", "/v1/topics/t/subscriptions/s"


async def forgotten(world: RetainedWorld) -> None:
    """Rounds that this coordination knows nothing of have taken the first two files with rows."""
    await mark_round(world.store, 7)
    await delete_before(world.store, 3)
    inside.topic(world.broker, "t").opened.clear()


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


async def test_a_sealed_segment_without_files_ends_there(tmp_path: Path) -> None:
    """Retention had removed it altogether; this coordination has it yet."""
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await replace(world.together, [0], 2)
        await fill(world.broker, 1)
        await mark_round(world.store, 7)
        await delete_before(world.store, 99)
        topic = inside.topic(world.broker, "t")
        topic.opened.clear()
        assert (await http.post(CONFIRM)).json() == {"retention_round": 7}
        answer = await http.get("/v1/topics/t/segments/0/messages?offset=0")
        assert (answer.status_code, answer.json()["start_offset"]) == (410, 6), answer.text
        answer = await http.get("/v1/topics/t/segments/0/messages?offset=6")
        assert (answer.status_code, answer.json()["messages"]) == (200, []), answer.text
        answer = await http.post(f"{S}/pull", json={})
        assert answer.status_code == 200, answer.text
        pulled = answer.json()["messages"]
        assert sorted(each["value"] for each in pulled) == [0, 1], "those of its successors"
        assert (await http.get(S)).json()["lag_total"]["skipped"] == 6
        await world.policy(max_bytes=1, grace_s=60)
        for _ in range(4):
            world.pass_time(200)
            await world.retention.round()
        assert world.retention.removal.removed == 1
        assert 0 not in inside.catalog(world.broker).records(topic)
        assert world.retention.rounds.held == ""


async def test_a_confirmation_is_made_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "STEP", 2)
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put("/v1/topics/a", json={"initial_segments": 3})).status_code == 201
        assert (await http.put("/v1/topics/z", json={"initial_segments": 1})).status_code == 201
        await forgotten(world)
        assert (await http.post(CONFIRM)).json() == {"left": 3, "next": "a/1"}
        assert await world.retention.rounds.begin() is None, "it is not confirmed yet"
        assert (await http.post(f"{CONFIRM}?after=a/1")).json() == {"left": 1, "next": "t/0"}
        assert world.start == 4
        assert (await http.post(f"{CONFIRM}?after=t/0")).json() == {"retention_round": 7}
        assert await world.retention.rounds.begin() is not None
        for wrong in ("", "t", "t/", "t/x", "/1", "t/1/2", "t/12345678901"):
            answer = await http.post(f"{CONFIRM}?after={wrong}")
            assert (answer.status_code, answer.json()["field"]) == (422, "after"), wrong


async def _refusing() -> int:
    raise CoordinationUnavailable("it has no leader")
