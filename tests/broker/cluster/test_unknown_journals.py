"""A mirrored journal that the leader cannot reach: others are asked, the mirrors first; and if nobody can, the cluster
says since when."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.handlers import internal
from seaweedq.api.metrics.cluster import journal_metrics
from seaweedq.api.metrics.families import render
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster import leader as leading
from seaweedq.checks import using
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
        assert (
            f"broker {other.id} recovers the journal of broker {dead}, because this broker cannot reach" in caplog.text
        )


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


PLACES = (
    *("mirrors.closed", "mirrors.fenced", "mirrors.decided", "loss.planned", "loss.ended", "loss.lower"),
    *("loss.lowered", "takeover.recovered", "takeover.remove", "takeover.removed"),
)


async def test_a_loss_is_accepted_and_no_offset_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The recovery is broken off once at each step. Three of five messages are in files, and all were acked."""
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    left: list[str] = []

    def break_off(place: str) -> None:
        if place in left:
            left.remove(place)
            raise Unavailable(f"broken off at {place}")

    with using(break_off):
        async with in_loop(tmp_path, 3, **MIRRORED, checkpoint_s=60) as together:
            leader, other, dead = await acknowledged(together)
            topic, owner = inside.topic(leader, "t"), together.brokers[1]
            preferred = inside.assignment(leader).preferred
            written, unwritten = [one for one in map(str, range(100)) if preferred(topic, one) != dead][:2]
            app = httpx.ASGITransport(together.apps[leader.process.url])
            async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as http:

                async def post(path: str, body: Any) -> httpx.Response:
                    return await http.post(f"/v1/{path}", json=body)

                async def refused(says: str) -> None:
                    answer = await post("cluster/accept-loss", {"broker": dead})
                    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/journal-conflict")
                    assert says in answer.json()["detail"]

                async def pull(name: str) -> list[dict[str, Any]]:
                    answer = await post(f"topics/t/subscriptions/{name}/pull", {"max_messages": 10, "wait_s": 5})
                    return list(answer.json()["messages"])

                assert (await post("topics/t/flush", None)).status_code == 200
                await publish(owner, inside.topic(owner, "t"), "4", "5")
                for name in (written, unwritten):
                    made = await http.put(
                        f"/v1/topics/t/subscriptions/{name}", json={"mode": "shared", "start": "earliest"}
                    )
                    assert made.status_code == 201, made.text
                    messages = await pull(name)
                    assert len(messages) == 5
                    acked = await post(f"topics/t/subscriptions/{name}/ack", {"ids": [one["id"] for one in messages]})
                    assert acked.status_code == 200, acked.text
                    for one in (leader, other) if name == written else ():
                        await inside.dispatcher(one).checkpoint()
                await refused("is running")
                for one in (leader, other):
                    one.process.journals.holdings.forget(dead)
                await together.crash(owner)
                await until(lambda: inside.roster(leader).journals[dead].record.unknown is not None)
                left += PLACES
                for _ in range(2):
                    answer = await post("cluster/accept-loss", {"broker": dead})
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["missing_s"] == MIRRORED["journal_exposure_s"]
                    assert sorted(answer.json()["mirrors"]) == sorted([leader.id, other.id])
                await until(lambda: dead not in inside.roster(leader).journals)
                await until(lambda: inside.catalog(leader).segment(topic, 0).record.state == "sealed")
                record = inside.catalog(leader).segment(topic, 0).record
                assert (record.end_offset, record.successors) == (3, (1,))
                sent = await post("topics/t/messages", {"messages": [{"value": "6"}]})
                assert sent.status_code == 200, sent.text
                for one in (leader, other):
                    await inside.dispatcher(one).checkpoint()
                assert (await inside.catalog(leader).delivered(topic))[0] <= 3
                for name in (written, unwritten):
                    values: list[str] = []
                    while "6" not in values:
                        values += [str(one["value"]) for one in await pull(name)]
                    assert set(values) <= {"1", "2", "3", "6"}, "what was lost is not delivered again"
                await refused("no journal left")
            assert not left, "each step was broken off"
            assert "not writing the cursor" not in caplog.text, "a dispatcher went on above the end"
            assert not any(one.lost.is_set() for one in (leader, other))


async def test_a_commit_above_the_bound_of_other_calls_goes_to_mirrors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mirror may hold bounds these calls alone."""
    monkeypatch.setattr(internal, "FORWARD_BYTES", 20_000)
    async with in_loop(tmp_path, 3, **MIRRORED) as together:
        _, _, owner_id = await acknowledged(together)
        owner = together.brokers[1]
        assert owner.id == owner_id
        await publish(owner, inside.topic(owner, "t"), '"' + 50_000 * "x" + '"')
        assert len(inside.journal(owner).mirrors) == 2
        held = [one.process.journals.holdings.size_bytes for one in together.brokers if one is not owner]
        assert min(held) > 50_000
