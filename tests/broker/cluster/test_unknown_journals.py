"""A mirrored journal that the leader cannot reach: others are asked, the mirrors first; and if nobody can, the cluster
says since when."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.metrics.cluster import journal_metrics
from seaweedq.api.metrics.families import render
from seaweedq.broker.broker import Broker
from seaweedq.errors import Unavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers

MIRRORED: dict[str, Any] = {"journal": "mirrored", "journal_exposure_s": 3600.0, "mirror_patience_s": 5.0}


async def acknowledged(together: InLoop) -> tuple[Broker, Broker, str]:
    """The leader, the other mirror, and the owner of a segment with messages that are in memory alone; it has died."""
    leader, owner, other = together.brokers
    assert inside.election(leader).is_leader
    await until(lambda: len(inside.journal(owner).mirrors) == 2)
    topic = await make_topic(owner, "t")
    for one in (leader, other):
        await until(lambda one=one: inside.catalog(one).get("t") is not None)  # type: ignore[misc]
        await inside.mover(one).move(inside.topic(one, "t"), 0, owner.id)
    await until(lambda: inside.catalog(owner).segment(topic, 0).record.owner == owner.id)
    await publish(owner, inside.topic(owner, "t"), "1", "2", "3")
    return leader, other, owner.id


async def test_a_mirror_recovers_what_the_leader_cannot_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "seaweedq.broker")
    async with in_loop(tmp_path, 3, **MIRRORED) as together:
        leader, other, dead = await acknowledged(together)
        call = leader.process.peers.call

        async def cut_off(url: str, path: str, *more: Any) -> Any:
            if path == "fence":
                raise Unavailable("cut off")
            return await call(url, path, *more)

        monkeypatch.setattr(leader.process.peers, "call", cut_off)
        leader.process.journals.holdings.forget(dead)
        await together.crash(together.brokers[1])
        await until(lambda: dead not in inside.roster(leader).journals)
        topic = inside.topic(leader, "t")
        await until(lambda: inside.catalog(leader).segment(topic, 0).record.owner in (leader.id, other.id))
        owner = next(one for one in (leader, other) if one.id == inside.catalog(leader).segment(topic, 0).record.owner)
        await until(lambda: inside.catalog(owner).segment(inside.topic(owner, "t"), 0).record.owner == owner.id)
        assert [one.end for one in await inside.ownership(owner).mine(inside.topic(owner, "t"))] == [3]
        assert f"broker {other.id} recovers the journal of {dead}, which this broker cannot reach" in caplog.text


async def test_one_that_nobody_can_reach_is_named_with_since_when(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_loop(tmp_path, 3, **MIRRORED) as together:
        leader, other, dead = await acknowledged(together)
        before_us = together.machine.clock.now_us()
        for one in (leader, other):
            one.process.journals.holdings.forget(dead)
        await together.crash(together.brokers[1])
        await until(lambda: inside.roster(leader).journals[dead].record.unknown is not None)
        app = httpx.ASGITransport(together.apps[leader.process.url])
        async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as http:
            (left,) = (await http.get("/v1/cluster")).json()["left_behind"]
        assert (left["broker"], left["state"], left["segments"], left["topics"]) == (dead, "unknown", 1, ["t"])
        assert left["since"]
        for name in (leader.id, other.id, "no running broker has its commits"):
            assert name in left["why"]
        assert f'seaweedq_journal_unknown_since_seconds{{broker="{dead}"}}' in render(journal_metrics(other)).decode()
        unknown = inside.roster(leader).journals[dead].record.unknown
        assert unknown is not None
        assert before_us <= unknown.since_us <= together.machine.clock.now_us()
        recoveries = privates.recoveries(inside.leader(leader))
        for _ in range(2):
            assert not await recoveries.recover(dead, inside.roster(leader).journals[dead])
        assert caplog.text.count("no running broker can reach the journal of") == 1
