"""Rounds of retention: due files are taken, and deleted a grace later; nothing else ever is, whatever the clocks say,
wherever a round ends, and whatever coordination is restored; also while segments give way to others, while lives end as
by SIGKILL, and while a subscription reads.
"""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.broker.retention.files import TopicFiles
from seaweedq.checks import using
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import Counter, TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import SeaweedqError
from seaweedq.segments.entry import MARKERS, segment_folder
from seaweedq.storage.identity import newest_round
from tests.support.brokers import inside
from tests.support.brokers.in_process import publish
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.reshaped import opened, replace
from tests.support.brokers.retained import RetainedWorld, fill, retained
from tests.support.tiers import later

pytestmark = pytest.mark.brokers

DAY_S, HOUR_S = 86_400, 3_600
GRACE_S = HOUR_S + 130  # the grace, and what clocks may differ
T, S = "/v1/topics/t", "/v1/topics/t/subscriptions/s"
PLACES = ("number", "numbered", "marked", "raise", "raised", "delete", "deleted")


async def values(world: RetainedWorld, offset: int) -> list[int]:
    async with world.http() as http:
        answer = await http.get(f"{T}/segments/0/messages?offset={offset}")
        assert answer.status_code == 200, answer.text
        return [each["value"] for each in answer.json()["messages"]]


async def test_what_is_older_is_taken_and_its_files_go_a_grace_later(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_age_s=DAY_S)
        await world.retention.round()
        assert (world.start, await newest_round(world.store)) == (0, 0)
        world.pass_time(DAY_S - 5)
        await fill(world.broker, 1)
        world.pass_time(130)
        await world.retention.round()
        assert (world.start, await world.sequences()) == (6, [0, 1, 2, 3, 4])
        async with world.http() as http:
            answer = await http.get(f"{T}/segments/0/messages?offset=5")
            assert (answer.status_code, answer.json()["start_offset"]) == (410, 6)
        world.pass_time(HOUR_S - 10)
        await world.retention.round()
        assert await world.sequences() == [0, 1, 2, 3, 4], "readers of files have a grace"
        world.pass_time(140)
        await world.retention.round()
        assert await world.sequences() == [4]
        await fill(world.broker, 1)
        assert await values(world, 6) == [0, 1, 0, 1]
        assert (world.retention.files, await newest_round(world.store)) == (4, 2)
        assert await world.store.list("_retention/") == ["_retention/0000000002"]


async def test_an_idle_topic_costs_the_store_nothing(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_age_s=DAY_S, max_bytes=2**40, keep_unread=True)
        await world.retention.round()  # the owner gets to know the sizes
        world.broker.process.store.requests.clear()
        for _ in range(3):
            world.pass_time(1000)
            await world.retention.round()
        assert not world.broker.process.store.requests
        world.pass_time(10 * DAY_S)
        for _ in range(3):
            await world.retention.round()
            world.pass_time(GRACE_S)
        assert await world.sequences() == [4], "the newest file stays, which has no rows"
        world.broker.process.store.requests.clear()
        for _ in range(3):
            world.pass_time(DAY_S)
            await world.retention.round()
        assert not world.broker.process.store.requests, "nothing has changed since the last look"


async def test_each_file_of_an_idle_topic_goes_when_it_is_due(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_age_s=DAY_S)
        world.pass_time(DAY_S / 2)
        await fill(world.broker, 1)
        world.pass_time(DAY_S / 4)
        await fill(world.broker, 1)
        world.pass_time(DAY_S / 4 + 130)
        await world.retention.round()
        assert world.start == 6
        world.broker.process.store.requests.clear()
        await world.retention.round()
        assert not world.broker.process.store.requests, "nothing can be due"
        world.pass_time(DAY_S / 2)
        await world.retention.round()
        assert world.start == 8, "nothing but time has changed since the last look"


async def test_the_first_files_of_a_topic_that_was_empty_for_long_go_too(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        await inside.topic_admin(world.broker).create("u", TopicConfig())
        topic = inside.topic(world.broker, "u")
        await http.patch("/v1/topics/u", json={"retention": {"max_age_s": DAY_S}})
        world.pass_time(2 * DAY_S)
        await world.retention.round()
        await fill(world.broker, name="u")
        await world.retention.round()
        world.pass_time(DAY_S + 200)
        await world.retention.round()
        assert set(inside.catalog(world.broker).start_offsets(topic).values()) == {6}


async def test_a_segment_without_files_has_nothing_that_could_go(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        await inside.topic_admin(world.broker).create("u", TopicConfig(initial_segments=2))
        assert len(await world.store.list("topics/u/")) == 1
        answer = await http.patch("/v1/topics/u?dry_run=true", json={"retention": {"max_age_s": 1}})
        assert answer.json() == {"files": 0, "bytes": 0, "messages": 0, "unread": 0}


async def test_a_size_takes_the_oldest_files(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        sizes = [each.size for each in await world.store.listed(segment_folder("t", 0))]
        await world.policy(max_bytes=sum(sizes[2:]))
        await world.retention.round()
        assert world.start == 2
        await world.policy(max_bytes=1)
        await world.retention.round()
        assert world.start == 4, "the newest file stays"


async def test_a_topic_without_files_has_nothing_that_is_due(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put("/v1/topics/new", json={"initial_segments": 2})).status_code == 201
        patch = {"retention": {"max_age_s": 60, "max_bytes": 1}}
        nothing = {"files": 0, "bytes": 0, "messages": 0, "unread": 0}
        assert (await http.patch("/v1/topics/new?dry_run=true", json=patch)).json() == nothing
        assert (await http.patch("/v1/topics/new", json=patch)).status_code == 200
        await world.policy(max_age_s=60)
        world.pass_time(DAY_S)
        await world.retention.round()
        assert world.start == 6, "the other topic's files are taken"


async def test_unread_rows_stay_and_read_ones_go(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await world.policy(max_age_s=60, keep_unread=True)
        world.pass_time(DAY_S)
        await world.retention.round()
        assert world.start == 0
        pulled = (await http.post(f"{S}/pull", json={"max_messages": 3})).json()["messages"]
        assert (await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})).status_code == 200
        await inside.dispatcher(world.broker).checkpoint()
        await world.retention.round()
        assert world.start == 2, "of the second file one row is unread"
        await world.policy(max_age_s=None, keep_unread=False, delete_read=True)
        pulled = (await http.post(f"{S}/pull", json={"max_messages": 3})).json()["messages"]
        assert [each["value"] for each in pulled] == [3, 4, 5]
        assert (await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})).status_code == 200
        await inside.dispatcher(world.broker).checkpoint()
        await world.retention.round()
        assert world.start == 6


async def test_a_seek_beside_a_round_keeps_what_is_unread_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round had read what was acked before the seek."""
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "latest"})).status_code == 201
        await fill(world.broker, 1)
        pulled = (await http.post(f"{S}/pull", json={})).json()["messages"]
        assert (await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})).status_code == 200
        await inside.dispatcher(world.broker).checkpoint()
        await world.policy(max_bytes=1, keep_unread=True)
        read = TopicFiles.read_after_empty_entries

        async def sought(self: TopicFiles, *more: Any) -> Any:
            found = await read(self, *more)
            assert (await http.post(f"{S}/seek", json={"to": "earliest"})).status_code == 200
            return found

        with monkeypatch.context() as patched:
            patched.setattr(TopicFiles, "read_after_empty_entries", sought)
            await world.retention.round()
        assert world.start == 0
        await world.retention.round()
        assert len((await http.post(f"{S}/pull", json={})).json()["messages"]) == 8


@pytest.mark.parametrize("race", ["seek", "creation"])
async def test_any_number_of_subscriptions_keeps_what_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, race: str
) -> None:
    """The last of 102 takes acks back while a round takes what all have acked."""
    async with retained(tmp_path) as world, world.http() as http:
        others = [f"{T}/subscriptions/a{n:03d}" for n in range(101)]
        for path in [*others, S]:
            assert (await http.put(path, json={"start": "latest"})).status_code == 201
        await world.policy(max_bytes=1, keep_unread=True)
        read = TopicFiles.read_after_empty_entries

        async def raced(self: TopicFiles, *more: Any) -> Any:
            found = await read(self, *more)
            if race == "seek":
                assert (await http.post(f"{S}/seek", json={"to": "earliest"})).status_code == 200
            else:
                assert (await http.put(f"{S}2", json={"start": "earliest"})).status_code == 201
            return found

        with monkeypatch.context() as patched:
            patched.setattr(TopicFiles, "read_after_empty_entries", raced)
            await world.retention.round()
        await world.retention.round()
        assert world.start == 0
        path = S if race == "seek" else f"{S}2"
        assert len((await http.post(f"{path}/pull", json={})).json()["messages"]) == 6


async def test_a_dry_run_says_what_would_go_and_changes_nothing(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        pulled = (await http.post(f"{S}/pull", json={"max_messages": 1})).json()["messages"]
        await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})
        await inside.dispatcher(world.broker).checkpoint()
        world.pass_time(DAY_S)
        sizes = [each.size for each in await world.store.listed(segment_folder("t", 0))]
        answer = await http.patch(f"{T}?dry_run=true", json={"retention": {"max_age_s": HOUR_S}})
        all_of_it = {"files": 4, "bytes": sum(sizes), "messages": 6, "unread": 5}
        assert answer.json() == all_of_it, "an idle segment's newest file, too"
        await fill(world.broker, 1)
        answer = await http.patch(f"{T}?dry_run=true", json={"retention": {"max_bytes": 1}})
        assert answer.json() == all_of_it, "a newest file that is young stays"
        answer = await http.patch(f"{T}?dry_run=true", json={"retention": {"max_age_s": HOUR_S, "keep_unread": True}})
        assert answer.json() == {"files": 1, "bytes": sizes[0], "messages": 0, "unread": 0}
        assert (await http.get(T)).json()["retention"]["max_age_s"] is None
        assert (await http.patch(f"{T}?dry_run=yes", json={})).status_code == 422
        for other in ({"flush": {"max_age_s": 60}}, {"ndjson": "bare"}, {"max_payload_bytes": None}):
            answer = await http.patch(f"{T}?dry_run=true", json={"retention": {"max_age_s": HOUR_S}, **other})
            assert answer.status_code == 422, "it was left out silently"
            assert next(iter(other)) in answer.json()["detail"]


@pytest.mark.parametrize("days", [3, later(-3)])
async def test_a_leader_whose_clock_is_wrong_takes_and_deletes_nothing(tmp_path: Path, days: int) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_age_s=DAY_S, max_bytes=1, grace_s=60)
        await world.retention.round()
        assert (world.start, len(await world.sequences())) == (4, 4)
        await fill(world.broker, 1)
        world.clock.shift_s = days * DAY_S
        await world.retention.round()
        assert (world.start, len(await world.sequences())) == (4, 5), "its grace is not over by the store's clock"
        async with world.http() as http:
            assert 'seaweedq_retention_held{reason="clock"} 1.0' in (await http.get("/metrics")).text
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Election, "is_leader", False)
                text = (await http.get("/metrics")).text
            assert 'seaweedq_retention_held{reason="clock"} 0.0' in text, "it is another leader's turn to say"
        world.clock.shift_s = 0
        world.pass_time(200)
        await world.retention.round()
        assert (world.start, await world.sequences()) == (6, [3, 4])


@pytest.mark.parametrize("days", [later(3), -3])
async def test_an_owners_clock_has_no_part_in_the_age_of_a_file(tmp_path: Path, days: int) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_age_s=DAY_S)
        world.clock.shift_s = days * DAY_S
        await fill(world.broker, 2)
        world.clock.shift_s = 0
        await world.retention.round()
        assert world.start == 0
        world.pass_time(DAY_S + 200)
        await world.retention.round()
        assert world.start == 10, "all rows, since the segment is idle"


async def test_a_restored_coordination_takes_nothing_until_it_is_rebuilt(tmp_path: Path) -> None:
    async def know(number: int) -> None:
        put = Put(keys.RETENTION.key(), keys.RETENTION.encode(Versioned.new(Counter(number))))
        await world.together.coordination.commit([], [put])

    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1)
        await world.retention.round()
        await fill(world.broker, 1)
        await world.retention.round()
        assert (world.start, await newest_round(world.store)) == (6, 2)
        await know(1)
        await fill(world.broker, 1)
        world.pass_time(DAY_S)
        await world.retention.round()
        assert (world.start, await world.sequences()) == (6, [0, 1, 2, 3, 4, 5])
        assert world.retention.rounds.held == "restored"
        await know(2)  # as a rebuild leaves it
        await world.retention.round()
        assert (world.start, await world.sequences()) == (10, [4, 5, 6])
        assert world.retention.rounds.held == ""


class Crash(BaseException):
    """What a crash at a fail point is in this process."""


class CrashAt:
    def __init__(self, place: str, times: int) -> None:
        self.place, self.left = f"retention.{place}", times

    def __call__(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                raise Crash


async def crashed(world: RetainedWorld, crash: CrashAt) -> bool:
    """Begins a round; tells whether the crash came in it."""
    try:
        with using(crash):
            await world.retention.round()
    except Crash:
        return True
    return False


def crashes() -> Iterator[tuple[str, int]]:
    for place in PLACES:
        yield place, 1
    yield "delete", 2
    yield "deleted", 2


async def test_after_a_crash_anywhere_in_a_round_the_next_goes_on_without_loss(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        for place, times in crashes():
            await fill(world.broker, 2)
            end = inside.topic(world.broker, "t").opened[0].end
            crash = CrashAt(place, times)
            for _ in range(3):
                world.pass_time(200)
                await crashed(world, crash)
                files = await world.sequences()
                start = inside.catalog(world.broker).start(inside.topic(world.broker, "t"), 0)
                assert start.sequence in files, "the first file that counts is there"
                assert len(await values(world, world.start)) == end - world.start, "and all behind it"
            assert crash.left <= 0 or times > 1, place
            assert (world.start, await world.sequences()) == (end - 2, [files[-1]]), place


async def test_a_deleted_name_put_late_does_not_count_and_goes_with_later_ones(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        before = {name: await world.store.read(name) for name in await world.store.list(segment_folder("t", 0))}
        await world.policy(max_bytes=1, grace_s=60)
        for _ in range(2):
            await world.retention.round()
            world.pass_time(200)
        assert await world.sequences() == [3]
        late = sorted(before)[1]
        await world.store.create(late, before[late])
        inside.topic(world.broker, "t").opened.clear()
        assert await values(world, 4) == [4, 5]
        await fill(world.broker, 1)
        for _ in range(2):
            await world.retention.round()
            world.pass_time(200)
        assert await world.sequences() == [4]
        assert await values(world, 6) == [0, 1]


async def check_readable(world: RetainedWorld) -> dict[int, int]:
    """Each segment's first file that counts is there, and all rows from its start on can be read. Returns how many
    rows each has."""
    catalog = inside.catalog(world.broker)
    topic = catalog.topic("t")
    positions = await inside.positions(world.broker).positions(topic)
    found = {}
    async with world.http() as http:
        for number, position in positions.items():
            start, files = catalog.start(topic, number), await world.sequences(number)
            assert not files or start.sequence in files
            answer = await http.get(f"{T}/segments/{number}/messages?offset={start.first_offset}")
            assert answer.status_code == 200, answer.text
            found[number] = len(answer.json()["messages"])
            assert found[number] == position.end - start.first_offset
    return found


@pytest.mark.parametrize("parts", [2, later(1)], ids=["split", "merge"])
async def test_rounds_beside_a_split_and_a_merge_keep_what_counts(tmp_path: Path, parts: int) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1, grace_s=60)
        if parts == 1:
            await replace(world.together, [0], 2)
        before = opened(world.broker)

        async def rounds() -> None:
            while True:
                await world.retention.round()
                world.pass_time(100)
                await asyncio.sleep(0)

        beside = asyncio.create_task(rounds())
        await replace(world.together, before, parts)
        await fill(world.broker)
        beside.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beside
        for _ in range(3):
            world.pass_time(200)
            await world.retention.round()
        for number in opened(world.broker):
            assert len(await world.sequences(number)) <= 1, "what is due has gone, but for the newest"
        await check_readable(world)
        for number in before:
            assert not await world.sequences(number), "a seal goes once its successors have entries"
            assert number not in inside.catalog(world.broker).records(inside.topic(world.broker, "t"))
        inside.topic(world.broker, "t").opened.clear()
        await check_readable(world)


@pytest.mark.long
async def test_the_life_after_a_crash_anywhere_goes_on_with_the_round(tmp_path: Path) -> None:
    async with retained(tmp_path, retention_grace_s=60) as world:
        await world.policy(max_bytes=1)
        for place, times in crashes():
            await fill(world.broker, 2)
            end = inside.topic(world.broker, "t").opened[0].end
            crash = CrashAt(place, times)
            for _ in range(3):
                world.pass_time(200)
                if await crashed(world, crash):
                    dead = world.broker
                    await world.together.crash(dead)
                    await world.together.begin_again(dead)
                    await until(lambda: inside.election(world.broker).is_leader)
                    await inside.positions(world.broker).positions(inside.topic(world.broker, "t"))
            assert crash.left <= 0 or times > 1, place
            assert sum((await check_readable(world)).values()) == end - world.start
            assert (world.start, len(await world.sequences())) == (end - 2, 1), place
        await world.broker.stop()


async def test_a_leader_that_lost_the_lead_raises_nothing_more(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_bytes=1)

        def lose(place: str) -> None:
            if place == "retention.raise":
                patched.setattr(Election, "is_leader", False)
                raise Crash

        with pytest.MonkeyPatch.context() as patched, using(lose):
            with pytest.raises(Crash):
                await world.retention.round()
            with pytest.raises(SeaweedqError):
                await world.retention.round()
        assert world.start == 0


async def test_a_subscription_moves_up_with_the_start_and_counts(tmp_path: Path) -> None:
    async with retained(tmp_path) as world, world.http() as http:
        assert (await http.put(S, json={"start": "earliest"})).status_code == 201
        await world.policy(max_bytes=1, grace_s=60)
        got: list[int] = []
        for at in range(4):
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 3})).json()["messages"]
            got += [each["offset"] for each in pulled]
            await fill(world.broker, 3)
            await world.retention.round()  # while they are leased
            world.pass_time(200)
            answer = await http.post(f"{S}/ack", json={"ids": [each["id"] for each in pulled]})
            assert answer.status_code == 200, answer.text
            await world.retention.round()
            assert len(pulled) == 3 or at, "the first pull reads what was there"
        rest = (await http.post(f"{S}/pull", json={"max_messages": 100})).json()["messages"]
        got += [each["offset"] for each in rest]
        end = inside.topic(world.broker, "t").opened[0].end
        shown = (await http.get(S)).json()
        assert got == sorted(set(got)), "nothing came twice, or out of order"
        assert got[-1] == end - 1
        skipped = shown["lag_total"]["skipped"]
        assert 0 < skipped <= end - len(got) + 3 * 4, "what was leased and not acked in time counts, too"
        assert len(got) + skipped >= end, "what never came was counted"
        await publish(world.broker, inside.topic(world.broker, "t"), "7")
        assert len((await http.post(f"{S}/pull", json={"max_messages": 9})).json()["messages"]) == 1


async def test_the_marker_of_a_schema_stays_when_all_rows_before_it_go(tmp_path: Path) -> None:
    """Bare readers have the columns of the newest version from it, also while no row of that version has come."""
    async with retained(tmp_path) as world, world.http() as http:
        fields = [{"name": "n", "type": "int"}]
        config = {"format": "typed", "schema": {"fields": fields}, "retention": {"max_age_s": DAY_S}}
        assert (await http.put("/v1/topics/typed", json=config)).status_code == 201
        assert (await http.post("/v1/topics/typed/messages", json={"value": {"n": 1}})).status_code == 200
        assert (await http.post("/v1/topics/typed/flush")).status_code == 200
        wider = {"fields": [{"name": "n", "type": "long"}, {"name": "x", "type": "string"}]}
        assert (await http.patch("/v1/topics/typed", json={"schema": wider})).status_code == 200
        markers = await world.store.list(segment_folder("typed", MARKERS))
        for seconds in (0, DAY_S + 130, GRACE_S, GRACE_S):
            world.pass_time(seconds)
            await world.retention.round()
        await inside.topic_admin(world.broker).sweep()
        (left,) = await world.store.list(segment_folder("typed", 0))
        assert await world.store.list(segment_folder("typed", MARKERS)) == markers
        assert len(markers) == 1
        shown = [pq.read_table(io.BytesIO(await world.store.read(name))) for name in (*markers, left)]
        assert [table.num_rows for table in shown] == [0, 0]
        assert shown[0].schema.field("n").type == pa.int64()
        assert shown[0].schema.remove_metadata() == shown[1].schema.remove_metadata()
        assert (await http.post("/v1/topics/typed/messages", json={"value": {"n": 2**40}})).status_code == 200
        page = (await http.get("/v1/topics/typed/segments/0/messages?offset=1")).json()["messages"]
        assert [message["value"] for message in page] == [{"n": 2**40, "x": None}]
