"""Payloads that only rows which retention has taken have named: they go, and no other ever does."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.broker.cluster.periodic_tasks import UploadSweep
from seaweedq.broker.retention import payloads as retained_payloads
from seaweedq.checks import using
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import WriteRecord
from seaweedq.coordination.versioned import Versioned
from tests.broker.retention.test_rounds import Crash, CrashAt
from tests.support.brokers import inside
from tests.support.brokers.in_process import subscribe
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.retained import RetainedWorld, fill, retained

pytestmark = pytest.mark.brokers

DAY_S, HOUR_S = 86_400, 3_600
T = "/v1/topics/t"


async def upload(world: RetainedWorld) -> str:
    async with world.http() as http:
        made = (await http.post(f"{T}/uploads", json={"size": 3})).json()
        answer = await http.request(made["method"], made["url"], content=b"abc", headers=made["headers"])
        assert answer.status_code in (200, 201), answer.text
        return str(made["upload_id"])


async def name(world: RetainedWorld, *uploads: str) -> None:
    """Publish a message that names each, and flush them."""
    async with world.http() as http:
        for one in uploads:
            answer = await http.post(f"{T}/messages", json={"reference": {"upload_id": one}})
            assert answer.status_code == 200, answer.text
    await flush(world)


async def flush(world: RetainedWorld) -> None:
    topic = inside.topic(world.broker, "t")
    await inside.positions(world.broker).positions(topic, flush=True)


async def forget(world: RetainedWorld) -> None:
    """The sweep of uploads: records that have expired go."""
    at, environment = world.broker, world.broker.process
    leading = inside.election(at).leader_compare
    await UploadSweep(
        inside.catalog(at),
        world.together.coordination,
        environment.store.payloads,
        world.clock,
        HOUR_S,
        leading,
        at.generations.check,
    ).records()


async def rounds(world: RetainedWorld, count: int = 5) -> None:
    for _ in range(count):
        await forget(world)
        await world.retention.round()
        world.pass_time(HOUR_S + 130)


async def payloads(world: RetainedWorld) -> set[str]:
    return {each.rpartition("/")[2] for each in await world.store.list("_payloads/t/")}


async def aged(world: RetainedWorld) -> tuple[str, str]:
    """Two uploads, days apart, of which retention takes the first one's rows."""
    old = await upload(world)
    await name(world, old)
    world.pass_time(3 * DAY_S)
    new = await upload(world)
    await name(world, new)
    await fill(world.broker, 1)
    await world.policy(max_age_s=DAY_S)
    return old, new


async def test_the_payloads_of_gone_rows_go_a_grace_after_their_files(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        old, new = await aged(world)
        unnamed = await upload(world)
        await rounds(world, 2)
        assert world.start == 7
        assert len(await world.sequences()) == 2, "the files have gone"
        assert await payloads(world) == {old, new, unnamed}, "who published a moment ago may name one"
        await rounds(world, 2)
        assert await payloads(world) == {new, unnamed}
        assert world.retention.payloads.deleted == 1
        world.broker.process.store.requests.clear()
        await rounds(world, 3)
        assert not world.broker.process.store.requests, "nothing is left to look for"
        world.pass_time(DAY_S)
        await fill(world.broker, 1)
        await rounds(world)
        assert await payloads(world) == set()


async def test_nothing_goes_while_a_write_is_not_over(tmp_path: Path) -> None:
    """Behind a rebuild its files may have no records."""
    write = WriteRecord(1, "parquet", False, 1, "s", "gone", False, 0, 1, 1, "n", 0, "elsewhere")
    async with retained(tmp_path) as world:
        old, new = await aged(world)
        inside.writes(world.broker).begin_stop()  # nobody works on it
        key = keys.WRITES.key("t", inside.topic(world.broker, "t").record.incarnation, "w")
        await world.together.coordination.commit([], [Put(key, keys.WRITES.encode(Versioned.new(write)))])
        await rounds(world)
        assert await payloads(world) == {old, new}
        over = msgspec.structs.replace(write, state="failed", broker=None, ended_us=2**60)
        await world.together.coordination.commit([], [Put(key, keys.WRITES.encode(Versioned.new(over)))])
        await rounds(world)
        assert await payloads(world) == {new}


async def test_the_looks_end_where_there_are_more_payloads_than_a_look_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went on for ever: each grace with listings, and a flush of all owners."""
    monkeypatch.setattr(retained_payloads, "PAGE", 1)
    monkeypatch.setattr(retained_payloads, "SCANNED", 2)
    async with retained(tmp_path) as world:
        _, new = await aged(world)
        newest = await upload(world)
        await rounds(world)
        assert await payloads(world) == {new, newest}
        world.broker.process.store.requests.clear()
        await rounds(world, 3)
        assert not world.broker.process.store.requests, "nothing is left to look for"


async def test_a_payload_that_another_row_names_stays(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        old = await upload(world)
        await name(world, old)
        world.pass_time(DAY_S / 2)
        await name(world, old)
        world.pass_time(DAY_S / 2 + 200)
        await world.policy(max_age_s=DAY_S)
        await rounds(world, 8)
        assert world.start == 7
        assert await payloads(world) == {old}


async def test_a_payload_that_a_row_of_a_tail_names_stays(tmp_path: Path) -> None:
    async with retained(tmp_path, flush_max_age_s=86_400) as world, world.http() as http:
        old = await upload(world)
        await name(world, old)
        await fill(world.broker, 1)
        answer = await http.post(f"{T}/messages", json={"reference": {"upload_id": old}})
        assert answer.status_code == 200
        await world.policy(max_bytes=1)
        world.pass_time(2 * DAY_S)
        await rounds(world)
        assert await payloads(world) == {old}


async def test_a_payload_stays_while_its_upload_has_a_record(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        old = await upload(world)
        await name(world, old)
        await fill(world.broker, 1)
        await world.policy(max_bytes=1)
        await rounds(world, 6)
        assert await payloads(world) == {old}, "a message may name it for a day"
        world.pass_time(DAY_S)
        await rounds(world, 4)
        assert await payloads(world) == set(), "though nothing else has happened"


@pytest.mark.long
async def test_payloads_of_a_topic_that_takes_dead_letters_stay(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        old, new = await aged(world)
        topic = inside.topic(world.broker, "t")
        assert await subscribe(world.broker, topic)
        key = keys.SUBSCRIPTIONS.key("t", topic.record.incarnation, "s")
        there = await world.together.coordination.get(key)
        assert there
        held = keys.SUBSCRIPTIONS.require(there)
        put = Put(key, keys.SUBSCRIPTIONS.encode(held.replace(dead_letter_topic="t")))
        await world.together.coordination.commit([], [put])
        await rounds(world)
        assert await payloads(world) == {old, new}


@pytest.mark.long
@pytest.mark.parametrize("place", ["deleted", "payload", "looked"])
async def test_the_life_after_a_crash_goes_on_with_them(tmp_path: Path, place: str) -> None:
    async with retained(tmp_path) as world:
        _, new = await aged(world)
        crash: Any = CrashAt(place, 1)
        for _ in range(8):
            try:
                with using(crash):
                    await rounds(world, 1)
            except Crash:
                dead = world.broker
                await world.together.crash(dead)
                await world.together.begin_again(dead)
                await until(lambda: inside.election(world.broker).is_leader)
                await flush(world)
        assert crash.left <= 0
        assert await payloads(world) == {new}
        await world.broker.stop()
