"""Brokers publish, coordination goes back or is lost, and is rebuilt: all that was acknowledged is there, in order."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.checks import using
from seaweedq.coordination.interface import Delete, Put
from seaweedq.journal.object_format import put_done
from seaweedq.storage.generations import Generation, create_generation, newest_number
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import Held
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.reshaped import at, by_id, make, records, replace
from tests.support.brokers.returned import CopiedCoordination, ReturnedWorld, returned

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("journal", ["object", "file"])
async def test_an_emptied_coordination_is_rebuilt(tmp_path: Path, journal: str) -> None:
    async with returned(tmp_path, journal=journal) as world:
        together = world.together
        first = together.brokers[0]
        await make(first, 3)
        await world.publish(first, 30)
        await world.snapshot()
        await replace(together, [0], 2)
        await world.publish(together.brokers[1], 30)
        dead = await world.crash_all()
        waiting = await world.bring_back(CopiedCoordination(), dead)
        assert all(broker.waiting for broker in waiting)
        async with at(together, waiting[0]) as http:
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["type"]) == (503, "/problems/restored")
            assert (await http.get("/healthz")).status_code == 200
        report = await world.rebuild(waiting[0])
        assert report["generation"] == 2
        again = await ask(world, waiting[1])
        assert (again.status_code, again.json()["type"]) == (409, "/problems/rebuild-conflict")
        alive = await world.go_on(waiting)
        await world.publish(alive[2], 30)
        assert await world.delivered(alive[1]) == world.acked


async def lost(world: ReturnedWorld, coordination: Held | None = None) -> list[Broker]:
    """A topic with messages, some of them behind a split that no snapshot has; coordination is lost, or goes back. The
    brokers wait."""
    first = world.together.brokers[0]
    await make(first, 2)
    await world.publish(first, 6)
    await world.snapshot()
    copy = await world.copy() if coordination is None else coordination
    await replace(world.together, [0], 2)
    await world.publish(first, 6)
    dead = await world.crash_all()
    return await world.bring_back(copy, dead)


async def test_a_coordination_that_went_back_is_rebuilt_from_the_newest_state(tmp_path: Path) -> None:
    """The copy knows the snapshot, and lacks the split: the journal of the broker is as it was."""
    async with returned(tmp_path, 1, journal="object") as world:
        first = world.together.brokers[0]
        await make(first, 2)
        copy = await world.copy()
        await world.publish(first, 6)
        await world.snapshot()
        await replace(world.together, [0], 2)
        await world.publish(first, 6)
        waiting = await world.bring_back(copy, await world.crash_all())
        assert waiting[0].waiting
        assert "snapshot" in waiting[0].waiting.found
        plan = await world.rebuild(waiting[0], dry_run=True)
        assert (plan["generation"], plan["source"]) == (0, "snapshot")
        assert plan["topics"] == [
            {
                "topic": "t",
                "segments_ended": 1,
                "segments_begun": 2,
                "segments_closed": 0,
                "uploads_kept": 0,
                "imports_moved": 0,
                "damage": [],
            }
        ]
        assert await newest_number(world.together.store) == 1
        assert (await world.rebuild(waiting[0]))["generation"] == 2
        alive = await world.go_on(waiting)
        assert await world.delivered(alive[0]) == world.acked


@pytest.mark.parametrize("journal", ["object", "file"])
async def test_what_was_published_by_reference_since_is_kept(tmp_path: Path, journal: str) -> None:
    """All brokers stop in order within a minute: no journal is needed, no snapshot is newer, and what ends meanwhile
    raises the revision. An upload that is open and has expired would go, with a payload that a message names."""
    async with returned(tmp_path, 1, journal=journal) as world:
        first = world.together.brokers[0]
        await make(first, 1)
        async with at(world.together, first) as http:
            upload = (await http.post("/v1/topics/t/uploads", json={"size": 6})).json()["upload_id"]
            payload = (await inside.uploads(first).find(inside.topic(first, "t"), upload)).record.name

            async def content() -> AsyncIterator[bytes]:
                yield b"a film"

            await first.process.store.payloads.receive(payload, content(), 6, None)
            copy = await world.copy()
            message = {"key": "k", "reference": {"upload_id": upload}}
            answer = await http.post("/v1/topics/t/messages", json={"messages": [message]})
            assert answer.status_code == 200, answer.text
        world.together.unlisten(first)
        await first.stop()
        for _ in range(30):
            await copy.commit([], [Put("passed", b"")])
        await copy.commit([], [Delete("passed")])
        waiting = await world.bring_back(copy, [first])
        assert waiting[0].waiting
        assert waiting[0].waiting.found == ("done",)
        await world.rebuild(waiting[0])
        (alive,) = await world.go_on(waiting)
        held = await inside.uploads(alive).find(inside.topic(alive, "t"), upload)
        assert held.record.state == "published"
        async with at(world.together, alive) as http:  # nobody has read its object for the rebuild
            again = await http.post("/v1/topics/t/messages", json={"messages": [message]})
            assert again.status_code == 200, again.text


async def test_a_stop_in_order_is_no_sign(tmp_path: Path) -> None:
    async with returned(tmp_path, 2, journal="object") as world:
        alive = list(world.together.brokers)
        await make(alive[0], 2)
        for _ in range(2):
            await world.publish(alive[0], 6)
            for broker in alive:
                world.together.unlisten(broker)
                await broker.stop()
            alive = await world.bring_back(world.together.coordination, alive)
            assert not any(broker.waiting for broker in alive)


async def test_acks_of_a_journal_that_is_left_out_hide_nothing(tmp_path: Path) -> None:
    """The dispatcher's journal has the acks of messages that are in the other broker's, which is given up. Others get
    their offsets."""
    async with returned(tmp_path, 2, journal="object") as world:
        together, first = world.together, world.together.brokers[0]
        topic = await make(first, 2)
        assert await world.delivered(first) == {}
        held = await inside.assignment(first).read(topic, "s")
        assert held
        (given_up,) = (one for one in together.brokers if one.id != held.record.dispatcher)
        for number, segment in records(first).items():
            if segment.owner != given_up.id:
                mover = inside.mover(by_id(together, segment.owner))
                await mover.move(inside.topic(by_id(together, segment.owner), "t"), number, given_up.id)
        await world.snapshot()
        await world.publish(first, 8)
        assert await world.delivered(first) == world.acked
        waiting = await world.bring_back(CopiedCoordination(), await world.crash_all())
        report = await world.rebuild(waiting[0], without_journals=[given_up.id])
        assert report["left_out"] == [given_up.id]
        alive = await world.go_on(waiting)
        await until(lambda: held.record.dispatcher not in inside.roster(alive[0]).journals)
        world.acked.clear()
        await world.publish(alive[0], 8)
        assert await world.delivered(alive[1]) == world.acked


async def test_mirrored_journals_without_sets_are_taken_from_running_mirrors(tmp_path: Path) -> None:
    """Coordination is empty. One process has died, and those of its mirrors live: nothing is lost once the loss of all
    journals is accepted."""
    settings = {"journal": "mirrored", "journal_exposure_s": 3600.0, "mirror_patience_s": 5.0}
    async with returned(tmp_path, 3, **settings) as world:
        together, first = world.together, world.together.brokers[0]
        await until(lambda: all(len(inside.journal(one).mirrors) == 2 for one in together.brokers))
        await make(first, 3)
        await world.snapshot()
        await world.publish(first, 30)
        dead = sorted(one.id for one in together.brokers)
        lives = await world.crash_all()
        waiting = await world.bring_back(CopiedCoordination(), lives[1:], in_their_processes=True)
        waiting += await world.bring_back(together.coordination, lives[:1])
        for is_dry in (True, False):
            report = await world.rebuild(waiting[0], dry_run=is_dry)
            assert (report["journals"], report["left_out"], report["hindering"]) == (dead, [], {})
            for one in dead:
                assert f"`seaweedq journal accept-loss {one}`" in " ".join(report["may_be_lost"])
        alive = await world.go_on(waiting)
        journals = inside.roster(alive[0]).journals
        await until(lambda: all(journals[one].record.unknown for one in dead))
        async with at(together, alive[1]) as http:
            for one in dead:
                answer = await http.post("/v1/cluster/accept-loss", json={"broker": one})
                assert answer.status_code == 200, answer.text
        await until(lambda: not set(dead) & inside.roster(alive[1]).journals.keys())
        await world.publish(alive[2], 30)
        assert await world.delivered(alive[1]) == world.acked
        assert all(record.state == "sealed" for number, record in records(alive[1]).items() if number < 3)


@pytest.mark.parametrize("is_held", [True, False], ids=["some are held", "none is held"])
async def test_a_dry_run_says_of_mirrored_journals_what_is_done(is_held: bool, tmp_path: Path) -> None:
    """Coordination is of an earlier day, and has the sets. The process that rebuilds has holdings of two journals; or
    it has begun anew, and one of the journals is done."""
    settings = {"journal": "mirrored", "journal_exposure_s": 3600.0, "mirror_patience_s": 5.0}
    async with returned(tmp_path, 3, **settings) as world:
        together, first = world.together, world.together.brokers[0]
        await until(lambda: all(len(inside.journal(one).mirrors) == 2 for one in together.brokers))
        earlier = await world.copy()
        await make(first, 3)
        await world.publish(first, 30)
        lives = await world.crash_all()
        expected = {lives[0].id} if is_held else {one.id for one in lives[:2]}
        if not is_held:
            await put_done(together.store, lives[2].id)
        waiting = await world.bring_back(earlier, lives, in_their_processes=is_held)
        dry, done = [await world.rebuild(waiting[0], dry_run=is_dry) for is_dry in (True, False)]
        lost = " ".join(done["may_be_lost"])
        assert {one.id for one in lives if f"`seaweedq journal accept-loss {one.id}`" in lost} == expected
        for told in ("journals", "left_out", "hindering", "may_be_lost"):
            assert dry[told] == done[told]


POINTS = ("generation", "announced", "saved", "replacing", "page", "replaced", "backed", "done")


@pytest.mark.parametrize("point", POINTS)
async def test_a_rebuild_that_is_killed_anywhere_is_run_again(tmp_path: Path, point: str) -> None:
    def points(place: str) -> None:
        if place == f"rebuild.{point}":
            raise RuntimeError("killed here")

    async with returned(tmp_path, 1, journal="object") as world:
        waiting = await lost(world, CopiedCoordination())
        with using(points), pytest.raises(AssertionError, match="500"):
            await world.rebuild(waiting[0])
        if point != "done":  # its answer alone is lost
            assert (await world.rebuild(waiting[0]))["generation"] == 3
        alive = await world.go_on(waiting)
        await world.publish(alive[0], 3)
        assert await world.delivered(alive[0]) == world.acked


async def test_what_no_backup_has_outlives_a_killed_rebuild(tmp_path: Path) -> None:
    """Coordination's own state is taken. Once its keys are being replaced, the store has that state."""

    def points(place: str) -> None:
        if place == "rebuild.replacing":
            raise RuntimeError("killed here")

    async with returned(tmp_path, 1, journal="object") as world:
        (first,) = world.together.brokers
        await make(first, 1)
        await world.together.coordination.commit([], [Put("later/kind", b"x")])
        copy = await world.copy()
        await replace(world.together, [0], 2)
        await world.publish(first, 3)
        waiting = await world.bring_back(copy, await world.crash_all())
        assert (await world.rebuild(waiting[0], dry_run=True))["source"] == "coordination"
        with using(points), pytest.raises(AssertionError, match="500"):
            await world.rebuild(waiting[0])
        await world.rebuild(waiting[0])
        assert await copy.get("later/kind")
        alive = await world.go_on(waiting)
        assert await world.delivered(alive[0]) == world.acked


@pytest.mark.parametrize("point", ["generation", "saved", "replaced"])
async def test_what_a_killed_rebuild_was_to_leave_out_stays_out(tmp_path: Path, point: str) -> None:
    """Tokens that somebody may have, who could write the bucket: no later run brings them back by itself."""

    def points(place: str) -> None:
        if place == f"rebuild.{point}":
            raise RuntimeError("killed here")

    async with returned(tmp_path, 1, journal="object") as world:
        (first,) = world.together.brokers
        async with at(world.together, first) as http:
            assert (await http.put("/v1/principals/p", json={"grants": []})).status_code == 201
        await world.snapshot()
        waiting = await world.bring_back(CopiedCoordination(), await world.crash_all())
        with using(points), pytest.raises(AssertionError, match="500"):
            await world.rebuild(waiting[0], without_tokens=True)
        report = await world.rebuild(waiting[0])
        why = "all principals and tokens: the interrupted rebuild of generation 2 began without them"
        assert why in report["may_be_lost"]
        (alive,) = await world.go_on(waiting)
        async with at(world.together, alive) as http:
            assert (await http.get("/v1/principals/p")).status_code == 404


async def test_of_two_rebuilds_at_once_the_later_one_is_done(tmp_path: Path) -> None:
    async with returned(tmp_path, 2, journal="object") as world:
        waiting = await lost(world, CopiedCoordination())
        found = await asyncio.gather(*(ask(world, broker) for broker in waiting))
        assert sorted(answer.status_code for answer in found) in ([200, 200], [200, 409])
        alive = await world.go_on(waiting)
        assert await world.delivered(alive[0]) == world.acked


async def ask(world: ReturnedWorld, broker: Broker) -> httpx.Response:
    async with at(world.together, broker) as http:
        return await http.post("/v1/cluster/rebuild", json={})


async def test_a_start_beside_a_rebuild_is_followed_by_a_wait(tmp_path: Path) -> None:
    """Its look has found nothing, and then the rebuild creates its generation."""

    class Created(MemoryStore):
        async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
            if name == "_cluster.json" and self.armed == 1:
                await create_generation(self, Generation(2, "n" * 32))
            self.armed -= name == "_cluster.json"
            return await super().read(name, start, end)

        armed = -1

    store = Created()
    async with returned(tmp_path, 1, store=store) as world:
        await world.together.crash(world.together.brokers[0])
        store.armed = 2
        (life,) = await world.bring_back(world.together.coordination, [*world.together.brokers])
        assert life.lost.is_set()
        assert not life.waiting
        waiting = await world.next_life(life)
        assert waiting.waiting
        assert waiting.waiting.found == ("generation",)


@pytest.mark.parametrize("count", [0, 6])
async def test_a_topic_that_no_backup_has_comes_back(tmp_path: Path, count: int) -> None:
    def points(place: str) -> None:
        if place == "change.put":
            raise RuntimeError("killed here")

    async with returned(tmp_path, 1, journal="object") as world:
        first = world.together.brokers[0]
        await world.snapshot()
        with using(points), pytest.raises(RuntimeError):
            await make(first, 2)
        await world.publish(first, count)
        waiting = await world.bring_back(CopiedCoordination(), await world.crash_all())
        await world.rebuild(waiting[0])
        (alive,) = await world.go_on(waiting)
        if count:
            await world.publish(alive, 3)
            assert await world.delivered(alive) == world.acked
        else:
            async with at(world.together, alive) as http:
                assert (await http.get("/v1/topics/t")).status_code == 404


FIELDS = [{"name": "k", "type": "string"}, {"name": "n", "type": "int"}]
WIDER = [{"id": 1, "name": "key", "type": "string"}, {"name": "n", "type": "long"}, {"name": "x", "type": "int"}]


@pytest.mark.parametrize(
    ("point", "kept"), [("schema.decided", False), ("schema.marked", True), ("schema.counted", True), ("", False)]
)
async def test_versions_of_a_schema_that_no_backup_has_come_back(tmp_path: Path, point: str, kept: bool) -> None:
    """The last change was broken off at that point, or was answered; a backup of before is kept, or none is."""

    def points(place: str) -> None:
        if place == point:
            raise RuntimeError("killed here")

    async with returned(tmp_path, 1, journal="object") as world:
        store, first = world.together.store, world.together.brokers[0]
        async with at(world.together, first) as http:
            await http.put("/v1/topics/t", json={"format": "typed", "schema": {"fields": FIELDS}, "key_field": "k"})
            await http.post("/v1/topics/t/messages", json={"value": {"k": "a", "n": 1}})
            await world.snapshot()
            backups = set(await store.list("_coordination/", "", 1000))
            wider = await http.patch("/v1/topics/t", json={"schema": {"fields": WIDER}, "if_schema_id": 0})
            assert wider.json()["schema_id"] == 1, wider.text
            await http.post("/v1/topics/t/messages", json={"value": {"key": "b", "n": 2**40, "x": 1}})
            with using(points), suppress(RuntimeError):
                await http.patch("/v1/topics/t", json={"schema": {"fields": WIDER[:2]}, "if_schema_id": 1})
            newest = inside.topic(first, "t").layout.schema_id
            more = {} if newest == 2 else {"x": 2}
            assert (await http.post("/v1/topics/t/messages", json={"value": {"key": "c", **more}})).status_code == 200
        waiting = await world.bring_back(CopiedCoordination(), await world.crash_all())
        for name in await store.list("_coordination/", "", 1000):
            if not kept or name not in backups:
                await store.delete(name)
        report = await world.rebuild(waiting[0])
        assert report["source"] == ("snapshot" if kept else "nothing")
        (alive,) = await world.go_on(waiting)
        last = 1 if point == "schema.decided" else 2
        async with at(world.together, alive) as http:
            assert (await http.get("/v1/topics/t/schemas")).json() == {"schema_ids": [*range(last + 1)]}
            facts = (await http.get("/v1/topics/t")).json()
            assert (facts["schema_id"], facts["key_field"]) == (last, "key")
            assert facts["schema"]["fields"][0]["aliases"] == ["k"]
            answer = await http.get("/v1/topics/t/segments/0/messages?offset=0")
            assert answer.status_code == 200, answer.text
            found = [message["value"] for message in answer.json()["messages"]]
            assert [(one["key"], one["n"]) for one in found] == [("a", 1), ("b", 2**40), ("c", None)]
            assert [one.get("x") for one in found] == ([None, 1, 2] if last == 1 else [None] * 3)
            again = [*WIDER[:2], {"name": "x", "type": "string"}]
            assert (await http.patch("/v1/topics/t", json={"schema": {"fields": again}})).status_code == 409
            now = WIDER[: 3 if last == 1 else 2]
            assert (await http.put("/v1/topics/t", json={"schema": {"fields": WIDER}})).status_code == 200
            changed = await http.patch(
                "/v1/topics/t", json={"schema": {"fields": [*now, {"name": "z", "type": "int"}]}}
            )
            assert changed.json()["schema_id"] == last + 1, changed.text


async def test_a_broker_that_serves_rebuilds_nothing(tmp_path: Path) -> None:
    async with returned(tmp_path, 1) as world:
        answer = await ask(world, world.together.brokers[0])
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/rebuild-conflict")


EVERYTHING = ("_generations/", "_coordination/", "_journals/")


@pytest.mark.parametrize("gone", [EVERYTHING[:1], EVERYTHING[:2], EVERYTHING])
async def test_a_lost_list_of_generations_begins_none_anew(tmp_path: Path, gone: tuple[str, ...]) -> None:
    """Backups name the generation, or journals do, or else rows alone."""
    async with returned(tmp_path, 1, journal="object") as world:
        await make(world.together.brokers[0], 2)
        await world.publish(world.together.brokers[0], 4)
        await world.snapshot()
        waiting = await world.bring_back(CopiedCoordination(), await world.crash_all())
        assert (await world.rebuild(waiting[0]))["generation"] == 2
        alive = await world.go_on(waiting)
        await world.publish(alive[0], 4)
        if gone == EVERYTHING:  # else messages are lost
            world.together.unlisten(alive[0])
            await alive[0].stop()
        else:
            await world.together.vanish(alive[0])
        waiting = await world.bring_back(CopiedCoordination(), alive)
        store = world.together.store
        for folder in gone:
            for name in await store.list(folder, "", 1000):
                await store.delete(name)
        report = await world.rebuild(waiting[0])
        assert report["source"] == ("nothing" if len(gone) > 1 else "snapshot")
        assert report["generation"] == 3
        (alive_again,) = await world.go_on(waiting)
        await world.publish(alive_again, 4)
        assert await world.delivered(alive_again) == world.acked


async def test_what_no_backup_has_is_said(tmp_path: Path) -> None:
    async with returned(tmp_path, 1, journal="object") as world:
        await make(world.together.brokers[0])
        waiting = await world.bring_back(CopiedCoordination(), await world.crash_all())
        for name in await world.together.store.list("_coordination/", "", 1000):
            await world.together.store.delete(name)
        lost = (await world.rebuild(waiting[0], dry_run=True))["may_be_lost"]
        assert any(one.startswith("all subscriptions with their acks") for one in lost)
        assert "all principals and tokens: no backup of them exists" in lost


async def test_backups_of_another_secret_are_told_and_give_no_rights(tmp_path: Path) -> None:
    async with returned(tmp_path, 1, journal="object") as world:
        await make(world.together.brokers[0])
        await world.snapshot()
        dead = await world.crash_all()
        world.together.secret = "another"
        waiting = await world.bring_back(CopiedCoordination(), dead)
        report = await world.rebuild(waiting[0], dry_run=True)
        assert "_coordination/0000000001/0000000001" in report["unverified"]
        why = "all principals and tokens: no backup of them was made with a cluster_secret that this broker has"
        assert why in report["may_be_lost"]


async def test_a_rebuild_that_is_refused_before_it_begins_changes_nothing(tmp_path: Path) -> None:
    """A misspelled name, one that is too long, and a machine that is gone."""
    async with returned(tmp_path, 2, journal="file") as world:
        first, second = world.together.brokers
        await make(first, 2)
        await world.publish(first, 4)
        await world.snapshot()
        dead = await world.crash_all()
        waiting = await world.bring_back(CopiedCoordination(), dead[:1])
        async with at(world.together, waiting[0]) as http:
            for dry_run in (True, False):
                wish = {"dry_run": dry_run, "without_journals": [f"{second.id}x"]}
                answer = await http.post("/v1/cluster/rebuild", json=wish)
                assert (answer.status_code, answer.json()["unknown"]) == (409, [f"{second.id}x"]), answer.text
                assert second.id in answer.json()["detail"]
            assert (await http.post("/v1/cluster/rebuild", json={"without_journals": ["b" * 300]})).status_code == 422
            shutil.rmtree(second.process.settings.data_dir)
            answer = await http.post("/v1/cluster/rebuild", json={})
            assert (answer.status_code, answer.json()["journals"]) == (409, [second.id])
        assert await newest_number(world.together.store) == 1
