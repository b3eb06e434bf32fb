"""Brokers that notice that coordination went back serve nothing, change nothing, and go on by themselves."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.rebuild.looking import Look
from seaweedq.broker.rebuild.signs import COMMAND, Sign
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import ClusterRecord, Counter, Intent, JournalRecord, Successor
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalDamaged
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.storage.identity import mark_round
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, until
from tests.support.brokers.reshaped import at, make, replace
from tests.support.brokers.returned import CopiedCoordination, ReturnedWorld, returned

pytestmark = pytest.mark.brokers


async def emptied(world: ReturnedWorld) -> Broker:
    """A broker that waits, beside a store with a topic."""
    await make(world.together.brokers[0])
    (waiting,) = await world.bring_back(CopiedCoordination(), await world.crash_all())
    return waiting


async def statuses(together: InLoop, broker: Broker) -> dict[str, int]:
    asked = {
        ("GET", "/healthz"): None,
        ("GET", "/metrics"): None,
        ("GET", "/readyz"): None,
        ("GET", "/v1/cluster"): None,
        ("GET", "/v1/topics"): None,
        ("PUT", "/v1/topics/u"): {},
        ("POST", "/v1/topics/t/messages"): {"value": 1},
        ("POST", "/v1/topics/t/subscriptions/s/pull"): {},
    }
    found = {}
    async with at(together, broker) as http:
        for (method, path), body in asked.items():
            answer = await http.request(method, path, **({} if body is None else {"json": body}))
            found[f"{method} {path}"] = answer.status_code
            if answer.status_code == 503:
                problem = answer.json()
                assert (problem["type"], problem["command"]) == ("/problems/restored", COMMAND)
    return found


async def test_a_broker_that_waits_serves_health_alone_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with returned(tmp_path, 1) as world:
        with caplog.at_level(logging.ERROR):
            waiting = await emptied(world)
        lines = [one.getMessage() for one in caplog.records if COMMAND in one.getMessage()]
        assert len(lines) == 1
        assert "coordination is empty" in lines[0]
        found = await statuses(world.together, waiting)
        assert {path for path, status in found.items() if status == 200} == {"GET /healthz", "GET /metrics"}
        assert set(found.values()) == {200, 503}
        async with at(world.together, waiting) as http:
            metrics = (await http.get("/metrics")).text
        assert 'seaweedq_restored{found="empty"} 1.0' in metrics
        assert "seaweedq_ready 0.0" in metrics


async def test_a_broker_that_waits_writes_nothing_but_what_is_leased(tmp_path: Path) -> None:
    async with returned(tmp_path, 1) as world:
        waiting = await emptied(world)
        before = await world.together.store.list("")
        await world.rebuild(waiting, dry_run=True)
        page = await world.together.coordination.range("")
        assert [entry.key for entry in page.entries if not entry.lease] == []
        assert await world.together.store.list("") == before


async def test_it_goes_on_by_itself_once_the_setting_is_right(tmp_path: Path) -> None:
    """Another coordination was named: the right one shows no sign."""
    async with returned(tmp_path, 1) as world:
        first, right = world.together.brokers[0], world.together.coordination
        await make(first)
        await world.publish(first, 3)
        (waiting,) = await world.bring_back(CopiedCoordination(), await world.crash_all())
        wrong = world.together.coordination
        world.together.unlisten(waiting)
        await waiting.stop()
        await right.leases.revoke(inside.membership(first).lease)
        (alive,) = await world.bring_back(right, [waiting])
        assert not alive.waiting
        assert await world.delivered(alive) == world.acked
        await wrong.close()


async def a_round(world: ReturnedWorld, copy: CopiedCoordination) -> None:
    await mark_round(world.together.store, 9)


async def a_strange_journal(world: ReturnedWorld, copy: CopiedCoordination) -> None:
    """That of a broker that coordination has forgotten: it is needed, as this broker's own is."""
    broker = world.together.brokers[0].id
    await copy.commit([], [Delete(keys.JOURNALS.key(broker))])


async def test_a_sign_stays_though_waiting_raises_the_revision(tmp_path: Path) -> None:
    """A change that coordination lacks by one revision, which the keys of those that wait bring."""
    async with returned(tmp_path, 1, journal="object") as world:
        (first,) = world.together.brokers
        await make(first)
        copy = await world.copy()
        async with at(world.together, first) as http:
            assert (await http.put("/v1/topics/u", json={})).status_code == 201
        await world.publish(first, 4, topic="/v1/topics/u")
        world.together.unlisten(first)
        await first.stop()
        waiting = await world.bring_back(copy, [first])
        assert waiting[0].waiting
        for _ in range(200):
            await copy.commit([], [Put("passed", b"")])
            await copy.commit([], [Delete("passed")])
        await asyncio.sleep(1.5)  # it looks once in a second
        assert not waiting[0].lost.is_set(), "it would serve what went back"
        await world.rebuild(waiting[0])
        (back,) = await world.go_on(waiting)
        assert await world.delivered(back, topic="/v1/topics/u") == world.acked


@pytest.mark.parametrize(("sign", "found"), [(a_round, "round"), (a_strange_journal, "journal")])
async def test_a_start_finds_a_sign_before_it_writes(tmp_path: Path, sign: Any, found: str) -> None:
    async with returned(tmp_path, 1, journal="object") as world:
        first = world.together.brokers[0]
        await make(first)
        await world.publish(first, 2)
        dead = await world.crash_all()
        copy = await world.copy()
        await sign(world, copy)
        revision = (await copy.range("")).revision
        (waiting,) = await world.bring_back(copy, dead)
        assert waiting.waiting
        assert waiting.waiting.found == (found,)
        page = await copy.range("")
        assert {entry.key.split("/")[0] for entry in page.entries if entry.revision > revision} == {
            "cluster",
            "waiting",
        }
        assert (await world.rebuild(waiting))["generation"] == 2
        assert await world.delivered((await world.go_on([waiting]))[0]) == world.acked


async def test_a_new_leader_that_finds_a_sign_ends_all_lives(tmp_path: Path) -> None:
    """The leader has died, and a round is there that coordination has forgotten."""
    async with returned(tmp_path, 2) as world:
        together = world.together
        await make(together.brokers[0])
        (leader,) = [one for one in together.brokers if inside.election(one).is_leader]
        (other,) = [one for one in together.brokers if one is not leader]
        await mark_round(together.store, 9)
        await together.crash(leader)
        await until(lambda: other.lost.is_set())
        there = await together.coordination.get(keys.CLUSTER.key())
        assert there is not None
        record = keys.CLUSTER.require(there).record
        assert (record.state, record.found) == (
            "restored",
            "the store has retention round 9, but coordination's newest is 0",
        )
        assert not other.readiness.can_take_work


async def found_restored(world: ReturnedWorld) -> str:
    """What a broker that lives has written into the cluster's key."""
    coordination = world.together.coordination

    async def record() -> ClusterRecord:
        there = await coordination.get(keys.CLUSTER.key())
        assert there is not None
        return keys.CLUSTER.require(there).record

    for _ in range(400):
        if (await record()).state == "restored":
            return (await record()).found
        await asyncio.sleep(0.05)
    raise AssertionError("nobody notices")


async def overtake(world: ReturnedWorld, copy: CopiedCoordination) -> None:
    """What ends meanwhile raises the copy's revision above all that journals know."""
    while (await copy.range("")).revision <= (await world.together.coordination.range("")).revision:
        await copy.commit([], [Put("passed", b"")])
        await copy.commit([], [Delete("passed")])


@pytest.mark.parametrize("is_planned", [True, False], ids=["planned in the copy", "of a later topic"])
async def test_rows_of_a_segment_that_was_never_made_are_found(tmp_path: Path, is_planned: bool) -> None:
    """The copy has the plan of a split, which was carried out since; or it lacks the topic."""
    async with returned(tmp_path, 1, journal="object") as world:
        (first,) = world.together.brokers
        await make(first) if is_planned else None
        copy = await world.copy()
        await replace(world.together, [0], 2) if is_planned else await make(first)
        await world.publish(first, 6)
        dead = await world.crash_all()
        if is_planned:
            key = keys.SEGMENTS.key("t", 0, 0)
            there = await copy.get(key)
            assert there
            middle = KEY_SPACE // 2
            successors = Successor(1, 0, middle), Successor(2, middle, KEY_SPACE)
            planned = keys.SEGMENTS.require(there).replace(intent=Intent(1, "planned", (0,), successors))
            counter = keys.COUNTERS.encode(Versioned.new(Counter(3)))
            puts = [Put(key, keys.SEGMENTS.encode(planned)), Put(keys.COUNTERS.key("t"), counter)]
            await copy.commit([], puts)
        for name in await world.together.store.list("_coordination/"):
            await world.together.store.delete(name)  # no other sign is left
        await overtake(world, copy)
        alive = await world.bring_back(copy, dead)
        assert "but coordination has no record that" in await found_restored(world)
        recovery = inside.recovery(alive[0])
        there = await copy.get(keys.JOURNALS.key(dead[0].id))
        assert there
        with pytest.raises(JournalDamaged, match="would be lost: coordination has no record of the segment"):
            await recovery.recover(dead[0].id, keys.JOURNALS.require(there))
        waiting = [await world.next_life(alive[0])]
        await world.rebuild(waiting[0])
        (back,) = await world.go_on(waiting)
        assert await world.delivered(back) == world.acked


async def test_a_new_leader_finds_a_term_that_was_forgotten(tmp_path: Path) -> None:
    """A segment has moved since, and coordination has a later revision again: its own by then."""
    async with returned(tmp_path, 2, journal="object") as world:
        first, other = world.together.brokers
        await make(first)
        await world.publish(first, 2)
        (owner,) = [one for one in (first, other) if inside.topic(one, "t").opened]
        (taker,) = {first, other} - {owner}
        copy = await world.copy()
        assert await inside.mover(owner).move(inside.topic(owner, "t"), 0, taker.id)
        await world.publish(taker, 6)
        dead = await world.crash_all()
        await overtake(world, copy)
        alive = await world.bring_back(copy, dead[:1])
        assert f"rows of segment 0 of t in the term 1-2, but coordination has no record that {taker.id} owned it" in (
            await found_restored(world)
        )
        waiting = [await world.next_life(alive[0])]
        await world.rebuild(waiting[0])
        (back,) = await world.go_on(waiting)
        assert await world.delivered(back) == world.acked


async def test_a_start_writes_nothing_over_a_rebuild_that_has_ended_since(tmp_path: Path) -> None:
    """Its look is older than the end."""
    async with returned(tmp_path, 1) as world:
        (first,) = world.together.brokers
        await make(first)
        key, coordination = keys.CLUSTER.key(), world.together.coordination
        dead = await world.crash_all()

        async def end(look: Look) -> list[Sign]:
            there = await coordination.get(key)
            assert there
            found = await signs(look)
            if keys.CLUSTER.require(there).record.state == "replacing":
                await coordination.commit([], [Put(key, keys.CLUSTER.encode(whole))])
            return found

        signs = Look.signs
        there = await coordination.get(key)
        assert there
        whole = keys.CLUSTER.require(there)
        await coordination.commit([], [Put(key, keys.CLUSTER.encode(whole.replace(state="replacing")))])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Look, "signs", end)
            (waiting,) = await world.bring_back(coordination, dead)
        there = await coordination.get(key)
        assert there
        assert keys.CLUSTER.require(there).record.state == "serving"
        assert not (await world.next_life(waiting)).waiting


async def test_a_seal_whose_successors_have_files_ends_all_lives(tmp_path: Path) -> None:
    """Brokers that have stopped in order, and whose journals a sweep has taken, leave no sign: an owner finds the seal
    of before."""
    async with returned(tmp_path, 1, journal="object", publish_timeout_s=2) as world:
        (first,) = world.together.brokers
        await make(first)
        await world.publish(first, 4)
        copy = await world.copy()
        await replace(world.together, [0], 2)
        await world.publish(first, 6)
        world.together.unlisten(first)
        await first.stop()
        await world.together.store.delete(f"_journals/{first.id}/done")
        alive = await world.bring_back(copy, [first])
        assert not alive[0].waiting
        async with at(world.together, alive[0]) as http:
            answer = await http.post("/v1/topics/t/messages", json={"value": 1})
        assert answer.status_code == 503
        found = await found_restored(world)
        assert found.startswith(("topics/t/segment=1/ has files", "topics/t/segment=2/ has files"))
        waiting = [await world.next_life(alive[0])]
        await world.rebuild(waiting[0])
        (back,) = await world.go_on(waiting)
        assert await world.delivered(back) == world.acked


async def test_a_plan_whose_successors_have_files_ends_all_lives(tmp_path: Path) -> None:
    """Of the other segment: its successors would have the ids that were given since the copy."""
    async with returned(tmp_path, 1, journal="object") as world:
        (first,) = world.together.brokers
        await make(first, 2)
        await world.publish(first, 4)
        copy = await world.copy()
        await replace(world.together, [0], 2)
        await world.publish(first, 6)
        world.together.unlisten(first)
        await first.stop()
        await world.together.store.delete(f"_journals/{first.id}/done")
        alive = await world.bring_back(copy, [first])
        async with at(world.together, alive[0]) as http:
            answer = await http.post("/v1/topics/t/segments/1/split", json={})
        assert answer.status_code in (409, 503)
        assert (await found_restored(world)).startswith("topics/t/segment=2/ has files")
        waiting = [await world.next_life(alive[0])]
        await world.rebuild(waiting[0])
        (back,) = await world.go_on(waiting)
        assert await world.delivered(back) == world.acked


async def test_a_journal_that_was_done_since_hinders_no_rebuild(tmp_path: Path) -> None:
    """The other broker has stopped in order since the copy, which has a key of its journal. It waits, on its folder."""
    async with returned(tmp_path, 2, journal="file") as world:
        first, other = world.together.brokers
        await make(first)
        await world.publish(first, 4)
        copy = await world.copy()
        world.together.unlisten(other)
        await other.stop()
        await world.publish(first, 4)
        await world.together.vanish(first)
        await mark_round(world.together.store, 9)
        waiting = await world.bring_back(copy, [first, other])
        assert all(broker.waiting for broker in waiting)
        assert (await world.rebuild(waiting[0]))["generation"] == 2
        alive = await world.go_on(waiting)
        assert await world.delivered(alive[0]) == world.acked


async def test_a_journal_elsewhere_hinders_a_rebuild_until_it_may_be_lost(tmp_path: Path) -> None:
    async with returned(tmp_path, 1) as world:
        first = world.together.brokers[0]
        await make(first)
        await world.publish(first, 2)
        gone = JournalRecord("file", "a folder elsewhere", "/nowhere")
        put = Put(keys.JOURNALS.key("b9.gone"), keys.JOURNALS.encode(Versioned.new(gone)))
        await world.together.coordination.commit([], [put])
        await world.snapshot()
        (waiting,) = await world.bring_back(CopiedCoordination(), await world.crash_all())
        async with at(world.together, waiting) as http:
            answer = await http.post("/v1/cluster/rebuild", json={})
            assert (answer.status_code, answer.json()["journals"]) == (409, ["b9.gone"])
            assert "--without-journal b9.gone" in answer.json()["detail"]
        report = await world.rebuild(waiting, without_journals=["b9.gone"])
        assert report["left_out"] == ["b9.gone"]
        assert "journal of b9.gone: the messages and acks that it holds" in report["may_be_lost"]
        assert await world.delivered((await world.go_on([waiting]))[0]) == world.acked


async def test_a_file_journal_that_no_snapshot_knows_hinders_a_rebuild(tmp_path: Path) -> None:
    """Its broker joined behind the newest snapshot, and its machine is gone: the store has its key."""
    async with returned(tmp_path, 1, journal="file", snapshot_s=3600) as world:
        (first,) = world.together.brokers
        await until(lambda: first.leadership.snapshots.made > 0)
        late = await world.together.begin()
        dead = await world.crash_all()
        late.process.settings.home.rename(tmp_path / "elsewhere")
        (waiting,) = await world.bring_back(CopiedCoordination(), dead[:1])
        async with at(world.together, waiting) as http:
            plan = await http.post("/v1/cluster/rebuild", json={"dry_run": True})
            assert plan.json()["hindering"].keys() == {late.id}
            answer = await http.post("/v1/cluster/rebuild", json={})
        assert (answer.status_code, answer.json().get("journals")) == (409, [late.id])
