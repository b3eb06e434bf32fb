"""The cluster's brokers, versions and levels over HTTP and in metrics; the level rises on request."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.errors import Unavailable
from seaweedq.levels import HIGHEST, LOWEST, VERSION
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers


async def ask(app: Application, method: str, path: str, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        return await http.request(method, path, **more)


async def old_broker(together: InLoop) -> int:
    """The lease of a broker that reads level 1 alone, and did not look at the cluster's when it joined."""
    lease = (await together.coordination.leases.grant(60)).lease
    record = {"url": "http://old", "name": "old", "started_us": 0}
    await together.coordination.commit([], [Put("brokers/old.1", msgspec.json.encode(record), lease)])
    return lease


async def test_brokers_have_versions_and_levels(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (app,) = together.apps.values()
        told = (await ask(app, "GET", "/v1/cluster")).json()
        assert (told["level"], told["level_written"], told["level_possible"]) == (HIGHEST, HIGHEST, HIGHEST)
        assert told["too_old"] == []
        (one,) = told["brokers"]
        assert (one["version"], one["lowest_level"], one["highest_level"]) == (VERSION, LOWEST, HIGHEST)
        assert not one["starting"]


async def test_the_level_rises_once_nobody_prevents_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, next_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1, level=1) as together:
        (broker,), (app,) = together.brokers, together.apps.values()
        monkeypatch.setattr(inside.level_upgrade(broker), "_lease_s", 0.1)  # for so long a rise waits
        lease = await old_broker(together)
        await until(lambda: "old.1" in inside.roster(broker).strange)
        told = (await ask(app, "GET", "/v1/cluster")).json()
        assert (told["level"], told["level_possible"], told["level_newest"]) == (1, 1, next_level)
        assert told["too_old"] == ["old.1"]
        refused = await ask(app, "POST", "/v1/cluster/level", json={})
        assert refused.status_code == 409
        assert refused.json() | {"level": 1, "to": next_level, "too_old": ["old.1"]} == refused.json()
        with caplog.at_level(logging.INFO):
            await inside.level_upgrade(broker).log_possible()
            await together.coordination.leases.revoke(lease)
            await until(lambda: "old.1" not in inside.roster(broker).strange)
            await inside.level_upgrade(broker).log_possible()
        assert "stays at format level 1, because these brokers cannot read a higher level: old.1" in caplog.text
        told = f"all brokers can read format level {next_level}; to upgrade the cluster from format level 1, run"
        assert f"{told} `seaweedq cluster level`" in caplog.text
        metrics = (await ask(app, "GET", "/metrics")).text
        assert "\nseaweedq_cluster_level 1.0" in metrics
        assert f"\nseaweedq_cluster_level_possible {next_level}.0" in metrics
        risen = await ask(app, "POST", "/v1/cluster/level", json={"level": next_level})
        assert (risen.status_code, risen.json()) == (200, {"level": next_level})
        assert inside.level(broker).written == next_level
        metrics = (await ask(app, "GET", "/metrics")).text
        assert f"\nseaweedq_cluster_level {next_level}.0" in metrics


async def test_it_tells_what_brokers_hold_and_what_a_dead_one_has_left(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        app = together.apps[one.process.url]
        assert (await ask(app, "PUT", "/v1/topics/t", json={"initial_segments": 2})).status_code == 201
        messages = [{"key": f"k{n}", "value": n} for n in range(20)]
        sent = await ask(app, "POST", "/v1/topics/t/messages", json={"messages": messages})
        assert sent.status_code == 200
        told = (await ask(app, "GET", "/v1/cluster")).json()
        assert told["left_behind"] == []
        for broker in told["brokers"]:
            assert 0 < broker["tail_bytes"] <= broker["memory_bytes"] <= broker["memory_budget_bytes"]
            assert broker["messages_per_s"] >= 0
            assert broker["oldest_tail_s"] >= 0
        privates.recoveries(inside.leader(one)).recover = refuse  # type: ignore[method-assign]
        await together.crash(two)
        await until(lambda: two.id not in inside.roster(one).brokers)
        (left,) = (await ask(app, "GET", "/v1/cluster")).json()["left_behind"]
        assert (left["broker"], left["state"], left["segments"], left["topics"]) == (two.id, "recovering", 1, ["t"])
        assert left["why"].startswith("a broker is replaying its journal")


async def test_any_broker_tells_how_many_brokers_are_needed_and_which_goes(tmp_path: Path) -> None:
    async with in_loop(tmp_path, capacity_segments=4) as together:
        app = together.apps[together.brokers[0].process.url]
        assert (await ask(app, "PUT", "/v1/topics/t", json={"initial_segments": 32})).status_code == 201
        counts = [broker.leadership.count for broker in together.brokers]
        async with asyncio.timeout(20):
            while not (begun := [count for count in counts if count.wanted]):
                await asyncio.sleep(0.1)
        begun[0].began_s = 0.0  # the load was watched for long
        for one in together.apps.values():
            async with asyncio.timeout(20):  # four segments fill a broker, 0.8 of that is the target
                while (told := (await ask(one, "GET", "/v1/cluster")).json())["brokers_wanted"] != 10:
                    await asyncio.sleep(0.1)
            (other,) = [broker["id"] for broker in told["brokers"] if not broker["leader"]]
            assert told["first_to_stop"] == other
        texts = [(await ask(one, "GET", "/metrics")).text for one in together.apps.values()]
        assert sorted("\nseaweedq_brokers_wanted 10.0" in text for text in texts) == [False, True]
        assert all('seaweedq_utilization{resource="segments"} 4.0' in text for text in texts)


async def refuse(*_: Any) -> bool:
    raise Unavailable("not now")


@pytest.mark.parametrize("body", [{"level": 0}, {"level": "2"}, {"level": 2**40}, {"levels": 2}])
async def test_a_level_that_is_none_is_422(tmp_path: Path, body: Any) -> None:
    async with in_loop(tmp_path, 1) as together:
        (app,) = together.apps.values()
        assert (await ask(app, "POST", "/v1/cluster/level", json=body)).status_code == 422
        assert (await ask(app, "POST", "/v1/cluster/level", json={"level": HIGHEST + 1})).status_code == 409


async def test_a_loss_of_what_is_no_broker_is_422(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (app,) = together.apps.values()
        answer = await ask(app, "POST", "/v1/cluster/accept-loss", json={"broker": "../x"})
        assert (answer.status_code, answer.json()["field"]) == (422, "broker")
        assert (await ask(app, "POST", "/v1/cluster/accept-loss", json={"broker": "x.1"})).status_code == 409


async def test_an_old_broker_that_slips_in_is_out_at_once(tmp_path: Path, next_level: int) -> None:
    async with in_loop(tmp_path, 2) as together:
        await old_broker(together)
        async with asyncio.timeout(30):
            while await together.coordination.get("brokers/old.1"):
                await asyncio.sleep(0.005)


async def test_a_broker_that_does_not_read_the_level_any_more_ends_its_life(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        there = await together.coordination.get(keys.CLUSTER.key())
        assert there
        record = {**msgspec.json.decode(there.value), "level": HIGHEST + 1}
        await together.coordination.commit([], [Put(there.key, msgspec.json.encode(record))])
        await until(broker.lost.is_set)


async def test_the_leader_ends_a_rise_that_was_broken_off(
    tmp_path: Path, next_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as together:
        broker: Broker = together.brokers[0]
        monkeypatch.setattr(inside.level_upgrade(broker), "_lease_s", 0.1)  # for so long it waits
        key = keys.CLUSTER.key()
        there = await together.coordination.get(key)
        assert there
        record = msgspec.json.decode(there.value)
        levels = msgspec.structs.replace(inside.level(broker)._levels, written=1)
        monkeypatch.setattr(inside.level(broker), "_levels", levels)
        await together.coordination.commit([], [Put(key, msgspec.json.encode({**record, "written": 1}))])
        await inside.level_upgrade(broker).finish()
        there = await together.coordination.get(key)
        assert there
        assert msgspec.json.decode(there.value) == record
