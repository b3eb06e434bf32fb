"""Sealed segments: each keeps its last file until its successors have entries, then all of it goes, and a tombstone
stays. Readers at its end go on with its successors, and those below are told.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import AsyncClient
from seaweedq.broker.retention.segment_removal import near_ancestors
from seaweedq.broker.streams.topic_streams import Positions
from seaweedq.checks import using
from seaweedq.client.core.table import ReadOptions, plan_table
from seaweedq.coordination import keys
from seaweedq.coordination.interface import read_all
from seaweedq.coordination.records import SegmentRecord, TombstoneRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import BelowRetention, InvalidPositions, NotOwner
from seaweedq.segments.entry import segment_folder
from tests.broker.retention.test_rounds import Crash, CrashAt
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.reshaped import ARROW, opened, replace
from tests.support.brokers.retained import RetainedWorld, fill, retained
from tests.support.tiers import later

DAY_S, HOUR_S = 86_400, 3_600
T, S = "/v1/topics/t", "/v1/topics/t/subscriptions/s"


async def rounds(world: RetainedWorld, count: int = 1, pass_s: float = 0) -> None:
    for _ in range(count):
        world.pass_time(pass_s)
        await world.retention.round()


async def get(world: RetainedWorld, path: str, status: int = 200) -> dict[str, Any]:
    async with world.http() as http:
        answer = await http.get(f"{T}/{path}")
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def publish(http: httpx.AsyncClient, key: str, sequence: int) -> str:
    headers = {"Producer-Id": "p", "Producer-Sequence": str(sequence)}
    answer = await http.post(f"{T}/messages", json={"value": sequence, "key": key}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["ids"][0]
    return found


def known(world: RetainedWorld) -> set[int]:
    """The segments that have records."""
    catalog = inside.catalog(world.broker)
    return set(catalog.records(catalog.topic("t")))


async def cursors(world: RetainedWorld) -> list[int]:
    """The segments of all cursors of `t`."""
    entries, _ = await read_all(world.together.coordination, keys.CURSORS.prefix("t"))
    return [keys.CURSORS.parse(entry.key)[3] for entry in entries]


def forget_opened(world: RetainedWorld) -> None:
    """As if another broker, which opens them anew, were asked."""
    inside.topic(world.broker, "t").opened.clear()


async def check_at_the_end(world: RetainedWorld, successors: list[int]) -> None:
    """Whoever has read all six messages of segment 0 goes on, and whoever has not is told."""
    found = await get(world, "segments/0/messages?offset=6")
    assert found == {"messages": [], "next_offset": 6, "sealed": True, "successors": successors}
    below = await get(world, "segments/0/messages?offset=5", 410)
    assert (below["type"], below["start_offset"]) == ("/problems/below-retention", 6)
    assert (await get(world, "segments/0/messages?offset=7", 416))["end_offset"] == 6
    async with world.http() as http:
        answer = await http.get(f"{T}/segments/0/messages?offset=6", headers={"accept": ARROW})
        assert (answer.status_code, answer.headers["sealed"], answer.headers["next-offset"]) == (200, "true", "6")
        assert answer.headers["successors"] == ",".join(map(str, successors))


@pytest.mark.brokers
async def test_a_sealed_segment_goes_and_its_readers_go_on(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await world.policy(max_age_s=DAY_S)
        successors = await replace(world.together, [0], 2)
        assert [len(await world.sequences(n)) for n in successors] == [0, 0]
        await rounds(world, pass_s=DAY_S + 200)
        assert [await world.sequences(n) for n in successors] == [[0], [0]], "they got entries without rows"
        assert await world.sequences() == [0, 1, 2, 3, 4], "readers of files have a grace"
        await check_at_the_end(world, successors)
        forget_opened(world)
        await check_at_the_end(world, successors)
        shown = await get(world, "segments/0")
        assert (shown["state"], shown["start_offset"], shown["end_offset"]) == ("sealed", 6, 6)
        pulled = (await http.post(f"{S}/pull", json={})).json()["messages"]
        assert pulled == []
        await inside.dispatcher(world.broker).checkpoint()
        assert (await http.get(S)).json()["lag_total"]["skipped"] == 6
        assert 0 in await cursors(world)
        await rounds(world, 2, HOUR_S + 130)
        assert (await world.sequences(), known(world)) == ([], set(successors))
        assert set(await cursors(world)) <= set(successors)
        await check_at_the_end(world, successors)
        shown = await get(world, "segments/0")
        assert (shown["state"], shown["ended"], shown["successors"]) == ("removed", True, successors)
        assert {one["id"] for one in (await get(world, "segments"))["segments"]} == set(successors)
        first = await publish(http, "k", 0)
        assert int(first.partition("-")[0]) in successors
        pulled = (await http.post(f"{S}/pull", json={})).json()["messages"]
        assert [each["id"] for each in pulled] == [first]
        await inside.dispatcher(world.broker).checkpoint()
        assert set(await cursors(world)) <= set(successors)


@pytest.mark.brokers
async def test_tables_pass_over_a_removed_segment_and_a_late_file_in_its_folder(tmp_path: Path) -> None:
    """The bounds are those of whoever has read the segment, and kept where it stood."""
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        successors = await replace(world.together, [0], 2)
        late = (await world.store.list(segment_folder("t", 0)))[1]
        data = await world.store.read(late)
        await rounds(world, 3, 200)
        assert known(world) == set(successors)
        await fill(world.broker, 1)
        assert await world.store.create(late, data)
        url = world.broker.process.url
        async with AsyncClient(url, transport=httpx.ASGITransport(world.together.apps[url])) as client:
            for bounds in ({"starting": {0: 6}}, {"starting": {0: 3}}, {"ending": {0: 6}}):
                read = await privates.run(client)(plan_table("t", ReadOptions(live=True, **bounds)))
                assert {part.file.segment for part in read.files} <= set(successors)
                assert sum(part.end - part.start for part in read.files) == 2
            read = await privates.run(client)(plan_table("t", ReadOptions(live=True, only=[0])))
            assert (read.files, read.tail) == ([], ())
            for wrong in ({99: 0}, {0: 7}, {-1: 0}, {10**12: 0}, {"0": 0}):
                with pytest.raises(ValueError, match="starting"):
                    await privates.run(client)(plan_table("t", ReadOptions(starting=wrong)))


@pytest.mark.brokers
async def test_idle_rounds_beside_removed_segments_cost_the_store_nothing(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        successors = await replace(world.together, [0], 2)
        await rounds(world, 4, 200)
        assert known(world) == set(successors)
        world.pass_time(2 * HOUR_S)
        await rounds(world, 3, 200)  # the successors' own rows, and no more
        world.broker.process.store.requests.clear()
        for _ in range(10):
            await rounds(world, pass_s=60)
            await world.retention.removal.sweep()
        assert not world.broker.process.store.requests


@pytest.mark.brokers
async def test_the_producers_of_a_removed_segment_are_known_to_its_successors(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        first = await publish(http, "k", 0)
        await fill(world.broker, 1)
        await world.policy(max_bytes=1, grace_s=60)
        await replace(world.together, [0], 2)
        forget_opened(world)
        await rounds(world, 3, 200)
        assert 0 not in known(world)
        forget_opened(world)
        assert await publish(http, "k", 0) == first, "a repeat"
        assert (await publish(http, "k", 1)).partition("-")[0] in map(str, opened(world.broker))


@pytest.mark.brokers
async def test_a_seal_stays_until_each_successor_has_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of one does not answer."""
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        one, other = await replace(world.together, [0], 2)
        empty_entries = inside.empty_entries(world.broker)
        append = type(empty_entries)._append

        async def fail(self: Any, topic: Any, number: int) -> None:
            if number == other:
                raise NotOwner("it is gone")
            await append(self, topic, number)

        with monkeypatch.context() as patched:
            patched.setattr(type(empty_entries), "_append", fail)
            await rounds(world, 2, 200)
        assert (len(await world.sequences()), await world.sequences(other)) == (1, [])
        assert world.start == 6, "the files before it went all the same"
        await rounds(world, 3, 200)
        assert (await world.sequences(one), await world.sequences(other)) == ([0], [0])
        assert known(world) == {one, other}


PLACES = ["raise", "raised", "delete", "deleted", "bury", "buried", "cursors"]


@pytest.mark.brokers
@pytest.mark.parametrize("place", ["bury", "buried", *(later(p) for p in PLACES if not p.startswith("bur"))])
async def test_the_life_after_a_crash_anywhere_goes_on_with_the_burial(tmp_path: Path, place: str) -> None:
    async with retained(tmp_path) as world:
        async with world.http() as http:
            assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await world.policy(max_bytes=1, grace_s=60)
        successors = await replace(world.together, [0], 2)
        crash = CrashAt(place, 1)
        for _ in range(4):
            world.pass_time(200)
            try:
                with using(crash):
                    await world.retention.round()
            except Crash:
                dead = world.broker
                await world.together.crash(dead)
                await world.together.begin_again(dead)
                await until(lambda: inside.election(world.broker).is_leader)
            await check_or_read(world, successors)
        assert crash.left <= 0, place
        await until(lambda: known(world) == set(successors))
        await inside.retention(world.broker).removal.sweep()
        assert set(await cursors(world)) <= set(successors)
        assert await world.sequences() == []
        await check_at_the_end(world, successors)
        await world.broker.stop()


async def check_or_read(world: RetainedWorld, successors: list[int]) -> None:
    """All that counts of segment 0 can be read, also while the new leader raises its start."""
    start = 0
    while start < 6:
        shown = await get(world, "segments/0")
        assert (shown["end_offset"], shown["successors"]) == (6, successors)
        start = shown["start_offset"]
        async with world.http() as http:
            answer = await http.get(f"{T}/segments/0/messages?offset={start}")
        if answer.status_code == 200:
            assert len(answer.json()["messages"]) == 6 - start
            return
        assert (answer.status_code, answer.json()["start_offset"]) == (410, 6), answer.text


@pytest.mark.brokers
async def test_segments_go_after_their_predecessors(tmp_path: Path) -> None:
    """A subscription has read a successor before its predecessor, and what is read goes."""
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest", "mode": "shared"})).status_code == 201
        (middle,) = await replace(world.together, [0], 1)
        await publish(http, "k", 0)
        (last,) = await replace(world.together, [middle], 1)
        await world.policy(delete_read=True, grace_s=60)
        pulled = (await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]
        late = [each["id"] for each in pulled if each["segment"] == middle]
        early = [each["id"] for each in pulled if each["segment"] == 0]
        assert (len(late), len(early)) == (1, 6)
        assert (await http.post(f"{S}/nack", json={"ids": early})).json()["nacked"] == 6
        assert (await http.post(f"{S}/ack", json={"ids": late})).json()["acked"] == 1
        dispatcher = inside.dispatcher(world.broker)
        for _ in range(4):
            await dispatcher.checkpoint()
            await rounds(world, 1, 200)
        assert (await world.sequences(middle), known(world)) == ([], {0, middle, last})
        pulled = (await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]
        assert {each["segment"] for each in pulled} == {0}
        assert (await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})).json()["acked"] == 6
        for _ in range(4):
            await dispatcher.checkpoint()
            await rounds(world, 1, 200)
        assert known(world) == {last}
        later_one = await publish(http, "k", 1)
        assert [each["id"] for each in (await http.post(f"{S}/pull", json={})).json()["messages"]] == [later_one]


@pytest.mark.brokers
async def test_a_stream_and_a_seek_know_removed_segments(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "latest"})).status_code == 201
        await world.policy(max_age_s=60, grace_s=60)
        successors = await replace(world.together, [0], 2)
        middle = await replace(world.together, successors, 1)
        await publish(http, "k", 0)
        topic, streams = inside.topic(world.broker, "t"), inside.streams(world.broker)
        slow = await streams.open(topic, Positions({0: 3}))
        ahead = await streams.open(topic, Positions({0: 6}))
        await ahead.due()
        kept = Positions.parse(ahead.positions)
        assert (await http.post(f"{T}/flush")).status_code == 200
        await rounds(world, 4, 200)
        assert known(world) == set(middle)
        with pytest.raises(BelowRetention):
            await slow.due()
        for at in (Positions({0: 6}), kept, Positions({successors[0]: 0, successors[1]: 0})):
            again = await streams.open(topic, at)
            assert Positions.parse(again.positions).offsets == {middle[0]: 0}
        with pytest.raises(BelowRetention) as told:
            await streams.open(topic, Positions({0: 5}))
        assert told.value.fields["start_offset"] == 6
        with pytest.raises(InvalidPositions):
            await streams.open(topic, Positions({99: 5}))
        sought = await http.post(f"{S}/seek", json={"to": {"offsets": {"0": 3, str(middle[0]): 0}}})
        assert (sought.status_code, sought.json()["moved"]) == (200, [0])
        assert (await http.post(f"{S}/seek", json={"to": {"offsets": {"0": 7}}})).status_code == 416
        assert (await http.post(f"{S}/seek", json={"to": {"offsets": {"99": 7}}})).status_code == 404


@pytest.mark.brokers
async def test_positions_with_removed_segments_cost_coordination_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        await replace(world.together, [0], 2)
        await rounds(world, 3, 200)
        catalog = inside.catalog(world.broker)
        topic, reload, read = catalog.topic("t"), type(catalog).reload_segments, []

        async def counted(self: Any, one: Any) -> None:
            read.append(one)
            await reload(self, one)

        topic.removed.clear()  # as at a broker that came later
        monkeypatch.setattr(type(catalog), "reload_segments", counted)
        for _ in range(5):
            await inside.positions(world.broker).positions(topic)
        assert len(read) == 1


@pytest.mark.brokers
async def test_a_tombstone_goes_in_time_unless_an_open_segment_descends_from_it(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        open_ = [0]
        for _ in range(11):
            open_ = await replace(world.together, open_, 1)
        await rounds(world, 4, 200)
        assert known(world) == set(open_)
        removal = inside.retention(world.broker).removal
        await removal.sweep()
        assert (await get(world, "segments/0"))["state"] == "removed"
        world.broker.process.store.requests.clear()
        world.pass_time(29 * DAY_S)
        await removal.sweep()
        assert not world.broker.process.store.requests, "nothing is over, so no round begins"
        assert (await get(world, "segments/0"))["state"] == "removed"
        world.pass_time(2 * DAY_S)
        await removal.sweep()
        assert (await get(world, "segments/0", 404))["type"] == "/problems/segment-not-found"
        assert (await get(world, "segments/1"))["state"] == "removed", "it is ten generations away"


def test_ancestors_within_ten_generations() -> None:
    """A chain of 20, of which the older half are tombstones; and a merge, whose nearer way counts."""

    def preds(number: int) -> tuple[int, ...]:
        return (number - 1, 3) if number == 15 else (number - 1,) if number else ()

    graves = {n: TombstoneRecord(0, 1, 0, preds(n), (n + 1,), 0, 0, 0) for n in range(10)}
    records = {
        n: Versioned(SegmentRecord(0, 1, "sealed" if n < 20 else "open", preds(n), (), None, 0, 0), 1)
        for n in range(10, 21)
    }
    assert near_ancestors(records, graves) == {*range(10, 20), 3, 2, 1, 0}
