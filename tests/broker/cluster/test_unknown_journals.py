"""A mirrored journal that the leader cannot reach: others are asked, the mirrors first; and if nobody can, the cluster
says since when."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from seaweedq.api.handlers import internal
from seaweedq.api.metrics.cluster import journal_metrics
from seaweedq.api.metrics.families import render
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster import leader as leading
from seaweedq.broker.cluster.accepted_loss import Accepted
from seaweedq.broker.subscriptions.admin import Starts
from seaweedq.checks import using
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import JournalRecord, RevocationRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalConflict, NotReady, Unavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import FolderLock
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers

MIRRORED: dict[str, Any] = {"journal": "mirrored", "journal_exposure_s": 3600.0, "mirror_patience_s": 5.0}
FILE: dict[str, Any] = {"journal": "file"}


async def acknowledged(together: InLoop) -> tuple[Broker, Broker, str]:
    """The leader, the other mirror, and the owner of a segment with messages that are in memory alone; it has died."""
    leader, owner, other = together.brokers
    assert inside.election(leader).is_leader
    if together.settings["journal"] == "mirrored":
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
        assert f"broker {other.id} has begun to recover the journal of broker {dead}, because" in caplog.text


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
        for name in (leader.id, other.id, "no running broker has a complete copy of the journal"):
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
    *("mirrors.closed", "mirrors.fenced", "mirrors.decided", "loss.planned", "loss.ended", "loss.renew", "loss.lower"),
    *("loss.lowered", "takeover.recovered", "takeover.remove", "takeover.removed"),
)


async def test_a_loss_is_accepted_and_no_offset_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The recovery is broken off once at each step, and the loss is accepted again there. Three of five messages are in
    files, and all were acked."""
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    left: list[str] = []
    repeats: dict[str, asyncio.Task[Accepted]] = {}

    def break_off(place: str) -> None:
        if place in left:
            left.remove(place)
            repeats[place] = asyncio.create_task(inside.losses(leader).accept(dead))
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
                for place, repeat in repeats.items():
                    told = await repeat
                    if place != "takeover.removed":  # else its set is gone
                        assert sorted(told.mirrors) == sorted([leader.id, other.id])
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


FILE_PLACES = (
    *("loss.planned", "loss.ended", "loss.renew", "loss.lower", "loss.lowered", "takeover.recovered"),
    *("takeover.remove", "takeover.removed"),
)


@pytest.mark.parametrize("is_started", [False, True], ids=["reached by the leader", "its broker starts"])
async def test_a_folder_that_comes_back_is_set_aside(
    is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file journal whose loss was accepted; the recovery is broken off once at each step."""
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    left: list[str] = []

    def break_off(place: str) -> None:
        if place in left:
            left.remove(place)
            raise Unavailable(f"broken off at {place}")

    with using(break_off):
        async with in_loop(tmp_path, 3, **FILE) as together:
            leader, other, dead = await acknowledged(together)
            topic, owner = inside.topic(leader, "t"), together.brokers[1]
            app = httpx.ASGITransport(together.apps[leader.process.url])
            async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as http:
                accept = {"json": {"broker": dead}}
                latest = {"mode": "shared", "start": "latest"}
                preferred = inside.assignment(leader).preferred
                name = next(one for one in map(str, range(100)) if preferred(topic, one) != dead)
                assert (await http.put(f"/v1/topics/t/subscriptions/{name}", json=latest)).status_code == 201
                await together.vanish(owner)
                home = owner.process.journals.home.path
                away = home.rename(tmp_path / "away")
                await together.coordination.leases.revoke(inside.membership(owner).lease)
                await until(lambda: inside.roster(leader).journals[dead].record.unknown is not None)
                left += FILE_PLACES
                told = (await http.post("/v1/cluster/accept-loss", **accept)).json()
                assert (told["mirrors"], told["missing_s"]) == ([], None)
                await until(lambda: inside.roster(leader).journals[dead].record.recovered)
                await until(lambda: inside.catalog(leader).segment(topic, 0).record.state == "sealed")
                record = inside.catalog(leader).segment(topic, 0).record
                assert (record.end_offset, record.successors) == (0, (1,))
                sent = await http.post("/v1/topics/t/messages", json={"messages": [{"value": "4"}]})
                assert sent.status_code == 200, sent.text
                await until(lambda: "takeover.remove" not in left)
                await asyncio.sleep(0.1)
                assert dead in inside.roster(leader).journals, "the key stays while the folder is away"
                assert "seaweedq_journals_unrecovered 0" in render(journal_metrics(other)).decode()
                assert list((await http.get("/v1/cluster")).json()["left_behind"]) == []
                away.rename(home)
                if is_started:
                    left.remove("takeover.removed")  # a start that fails is begun again
                    await together.begin_again(owner)
                await until(lambda: dead not in inside.roster(leader).journals)
                assert (await http.post("/v1/cluster/accept-loss", **accept)).status_code == 409
                pulled = await http.post(
                    f"/v1/topics/t/subscriptions/{name}/pull", json={"max_messages": 10, "wait_s": 5}
                )
                assert [one["value"] for one in pulled.json()["messages"]] == ["4"]
        assert not left, "each step was broken off"
        assert f"the journal was renamed to {home / 'given-up' / dead}" in caplog.text
        assert list((home / "given-up" / dead).glob("*.journal"))
        assert not (home / "journals" / dead).exists()


async def test_a_folder_in_use_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process holds its lock, then, as its key says, a broker that runs."""
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    async with in_loop(tmp_path, 3, **FILE) as together:
        leader, _, dead = await acknowledged(together)
        owner = together.brokers[1]
        await together.vanish(owner)
        lock = FolderLock(owner.process.journals.home.path, Disk())
        lock.acquire()
        await together.coordination.leases.revoke(inside.membership(owner).lease)
        await until(lambda: inside.roster(leader).journals[dead].record.unknown is not None)
        losses, coordination = inside.losses(leader), together.coordination
        with pytest.raises(JournalConflict, match=r"is not lost.*in use by process \d+\. Stop that process"):
            await losses.accept(dead)
        there = await coordination.get(keys.BROKERS.key(leader.id))
        assert there
        puts = [
            Put(keys.JOURNALS.key("next"), keys.JOURNALS.encode(inside.roster(leader).journals[dead])),
            Put(keys.BROKERS.key("next"), there.value),
        ]
        await coordination.commit([], puts)
        with pytest.raises(JournalConflict, match="is not lost: broker next is running in that folder"):
            await losses.accept(dead)
        recovered = inside.roster(leader).journals[dead].replace(recovered=True)
        await coordination.commit([], [Put(puts[0].key, keys.JOURNALS.encode(recovered))])
        await coordination.commit([], [Delete(put.key) for put in puts])
        assert not inside.roster(leader).journals[dead].record.loss_accepted_us
        lock.release()
        await until(lambda: dead not in inside.roster(leader).journals)


async def test_a_journal_that_was_recovered_without_a_loss_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    is_broken = [True]

    def break_off(place: str) -> None:
        if place == "takeover.remove" and is_broken[0]:
            raise Unavailable("broken off")

    with using(break_off):
        async with in_loop(tmp_path, 3, **MIRRORED) as together:
            leader, _, dead = await acknowledged(together)
            await together.crash(together.brokers[1])
            await until(lambda: inside.roster(leader).journals[dead].record.recovered)
            with pytest.raises(JournalConflict, match="has been recovered without a loss"):
                await inside.losses(leader).accept(dead)
            is_broken[0] = False
            await until(lambda: dead not in inside.roster(leader).journals)


async def test_all_brokers_are_asked_in_turn_to_reach_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but one are silent: the next try asks those that the last one has not asked."""
    asked: list[str] = []

    async def call(url: str, path: str, *_: Any) -> bool:
        if path == "recover":
            asked.append(url)
        if url == "b9":
            return True
        raise Unavailable("silent")

    async with in_loop(tmp_path, 1) as together:
        leader = together.brokers[0]
        recoveries = privates.recoveries(inside.leader(leader))
        record = inside.roster(leader).brokers[leader.id].record
        monkeypatch.setattr(leader.process.peers, "call", call)
        brokers = {f"b{n}": Versioned.new(replace(record, url=f"b{n}")) for n in range(1, 13)}
        monkeypatch.setattr(inside.roster(leader), "brokers", brokers)
        journal = Versioned.new(JournalRecord("file", "elsewhere", str(tmp_path / "away")))
        assert [await recoveries.recover("dead", journal) for _ in range(2)] == [False, True]
        assert len(asked) == len(set(asked)) == 12


async def test_a_folder_that_another_broker_reaches_is_not_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 3, **FILE) as together:
        leader, other, dead = await acknowledged(together)
        opened = inside.journals(leader).open_dead
        elsewhere = str(tmp_path / "elsewhere")
        monkeypatch.setattr(
            inside.journals(leader), "open_dead", lambda broker, record: opened(broker, replace(record, path=elsewhere))
        )
        await together.crash(together.brokers[1])
        await until(lambda: dead not in inside.roster(leader).journals)
        topic = inside.topic(leader, "t")
        await until(lambda: inside.catalog(leader).segment(topic, 0).record.owner in (leader.id, other.id))
        assert inside.catalog(leader).segment(topic, 0).record.intent is None, "nothing is lost"


async def test_no_creation_or_seek_under_way_writes_above_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have asked the owner for the end, which dies then, and its loss is accepted before they write."""
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    async with in_loop(tmp_path, 3, **MIRRORED) as together:
        leader, other, dead = await acknowledged(together)
        topic, owner = inside.topic(leader, "t"), together.brokers[1]
        app = httpx.ASGITransport(together.apps[leader.process.url])
        async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1") as http:
            preferred = inside.assignment(leader).preferred
            there, new = [one for one in map(str, range(100)) if preferred(topic, one) != dead][:2]
            latest = {"mode": "shared", "start": "latest"}
            assert (await http.put(f"/v1/topics/t/subscriptions/{there}", json=latest)).status_code == 201
            looked, go_on = asyncio.Semaphore(0), asyncio.Event()
            find = Starts.find

            async def found(self: Starts, *where: Any) -> Any:
                answer = await find(self, *where)
                looked.release()
                await go_on.wait()
                return answer

            monkeypatch.setattr(Starts, "find", found)
            seek = f"/v1/topics/t/subscriptions/{there}/seek"
            begun = [
                asyncio.create_task(http.put(f"/v1/topics/t/subscriptions/{new}", json=latest)),
                asyncio.create_task(http.post(seek, json={"to": "latest"})),
            ]
            for _ in begun:
                await looked.acquire()
            for one in (leader, other):
                one.process.journals.holdings.forget(dead)
            await together.crash(owner)
            await until(lambda: inside.roster(leader).journals[dead].record.unknown is not None)
            assert (await http.post("/v1/cluster/accept-loss", json={"broker": dead})).status_code == 200
            await until(lambda: dead not in inside.roster(leader).journals)
            go_on.set()
            assert [one.status_code for one in await asyncio.gather(*begun)] == [201, 200]
            await until(lambda: inside.catalog(leader).segment(topic, 0).record.state == "sealed")
            for one in (leader, other):
                await inside.dispatcher(one).checkpoint()
            assert (await inside.catalog(leader).delivered(topic))[0] == 0, "nothing of the segment is left"


async def test_a_loss_waits_until_a_revoked_broker_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then that broker may tell readers of messages that are lost."""
    monkeypatch.setattr(leading, "ROUND_S", 0.02)
    monkeypatch.setattr(leading, "LAST_AGAIN_S", 0.02)
    async with in_loop(tmp_path, 3, **MIRRORED) as together:
        leader, other, dead = await acknowledged(together)
        revoked = Put(keys.REVOCATIONS.key(dead), keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("", (), 9.0))))
        for one in (leader, other):
            one.process.journals.holdings.forget(dead)
        await together.crash(together.brokers[1])
        await together.coordination.commit([], [revoked])
        await until(lambda: inside.roster(leader).journals[dead].record.unknown is not None)
        losses = inside.losses(leader)
        await losses.accept(dead)
        with pytest.raises(NotReady, match="was revoked, and that broker may not know this yet"):
            await losses.end_segments(dead)
        assert inside.catalog(leader).segment(inside.topic(leader, "t"), 0).record.intent is None


async def test_a_mirror_that_refuses_connections_is_dropped_at_once(tmp_path: Path) -> None:
    """Its process has ended: the owner waits neither for its patience nor for the end of the mirror's lease."""
    async with in_loop(tmp_path, 3, **{**MIRRORED, "mirror_patience_s": 30.0}) as together:
        leader, _, owner_id = await acknowledged(together)
        owner, mirror = together.brokers[1], together.brokers[2]
        assert owner.id == owner_id
        await together.vanish(mirror)
        async with asyncio.timeout(14):  # a publish gives up after 15 s
            await publish(owner, inside.topic(owner, "t"), "4")
        assert inside.journal(owner).mirrors == (leader.id,)
        assert inside.roster(owner).alive(mirror.id)


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
