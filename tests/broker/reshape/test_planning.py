"""Segments split, merged, rolled and moved through the API of either of two brokers, while publishes go on; changes
that are refused, or not carried out in time; and a chain that has grown long is rolled.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape import planning
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.rows import Single
from tests.support.brokers import inside
from tests.support.brokers.changing import TOPIC, ask, at, in_order, make, publishing, records, refused
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import replace

pytestmark = pytest.mark.brokers

LONG = 5


async def flushed(broker: Broker, count: int) -> None:
    """So many messages, each in an entry of its own."""
    topic = inside.topic(broker, "t")
    for _ in range(count):
        number, _, _ = await inside.publisher(broker).single(
            topic, Single("k", b"1", None, broker.process.clock.now_us(), None), None
        )
        await inside.flusher(broker).flush(topic.opened[number])


async def test_a_long_segment_gives_way_to_one_on_its_range_a_short_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        monkeypatch.setattr(inside.roller(broker), "_entries", LONG)
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        await flushed(broker, LONG - 2)  # its creation put one entry
        assert list(inside.catalog(broker).segments(topic)) == [0]
        await flushed(broker, 1)
        await until(lambda: inside.catalog(broker).segments(topic)[0].state == "sealed")
        records = inside.catalog(broker).segments(topic)
        assert (records[0].end_offset, records[0].successors) == (LONG - 1, (1,))
        assert (records[1].low, records[1].high) == (records[0].low, records[0].high)
        await flushed(broker, LONG)
        await until(lambda: inside.catalog(broker).segments(topic)[1].state == "sealed")
        assert sum(record.end_offset or 0 for record in inside.catalog(broker).segments(topic).values()) == 2 * LONG - 1


async def test_one_that_can_not_roll_now_rolls_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "AGAIN", 2)
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        monkeypatch.setattr(inside.roller(broker), "_entries", LONG)
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        plan, refused = inside.planner(broker).plan, []

        async def refuse(*_: object) -> None:
            refused.append(None)
            raise CoordinationUnavailable("not now")

        monkeypatch.setattr(inside.planner(broker), "plan", refuse)
        await flushed(broker, LONG)
        await until(lambda: len(refused) == 1)
        monkeypatch.setattr(inside.planner(broker), "plan", plan)
        assert list(inside.catalog(broker).segments(topic)) == [0]
        await flushed(broker, 1)
        await until(lambda: inside.catalog(broker).segments(topic)[0].state == "sealed")


@pytest.fixture
async def together(tmp_path: Path) -> AsyncIterator[InLoop]:
    async with in_loop(tmp_path) as made:
        yield made


async def test_a_split_a_merge_a_roll_and_a_move_while_messages_are_published(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    async with publishing(together) as published, at(together, one) as here, at(together, two) as there:
        await until(lambda: len(published.ids) == 16)
        split = await ask(there, 0, "split", {"parts": 3})
        assert split.status_code == 200, split.text
        third, owner = KEY_SPACE // 3, one.id
        assert split.json() == {
            "sealed": [0],
            "successors": [
                {"id": 1, "low": 0, "high": third, "owner": owner},
                {"id": 2, "low": third, "high": KEY_SPACE * 2 // 3, "owner": owner},
                {"id": 3, "low": KEY_SPACE * 2 // 3, "high": KEY_SPACE, "owner": owner},
            ],
        }
        moved = await ask(here, 2, "move", {"to": "b1"})
        assert (moved.status_code, moved.json()) == (200, {"segment": 2, "owner": two.id})
        merged = await ask(there, 2, "merge", {"with": 1})  # the second one moves to the first one's owner
        assert (merged.status_code, merged.json()["sealed"]) == (200, [1, 2])
        assert merged.json()["successors"] == [{"id": 4, "low": 0, "high": KEY_SPACE * 2 // 3, "owner": two.id}]
        rolled = await ask(here, 3, "roll")
        assert (rolled.status_code, rolled.json()["sealed"]) == (200, [3])
        assert rolled.json()["successors"] == [{"id": 5, "low": KEY_SPACE * 2 // 3, "high": KEY_SPACE, "owner": owner}]
    lineage = records(one)
    assert {number: record.successors for number, record in lineage.items()} == {
        0: (1, 2, 3), 1: (4,), 2: (4,), 3: (5,), 4: (), 5: (),
    }  # fmt: skip
    for ids in published.ids.values():
        in_order(ids, lineage)
    taken = [id for ids in published.ids.values() for id in ids]
    assert len(taken) == len(set(taken))


async def test_successors_are_opened_only_while_their_owners_live(
    together: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = together.brokers
    await make(one)
    catalog, seen = inside.catalog(one), list[set[Compare]]()
    commit, opened = catalog.commit, keys.SEGMENTS.key("t", inside.topic(one, "t").record.incarnation, 1)

    async def noted(compares: Sequence[Compare], writes: Sequence[Put]) -> int | None:
        if opened in {write.key for write in writes}:
            seen.append(set(compares))
        return await commit(compares, writes)

    monkeypatch.setattr(catalog, "commit", noted)
    await replace(together, [0], 2, [one, two])
    assert {inside.ownership(one).compare(), inside.roster(one).compare(two.id)} <= seen[-1]


async def test_a_segment_takes_nothing_more_and_is_sealed_once_quiet(
    together: InLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = together.brokers
    await make(one)
    quiet = Gate()
    monkeypatch.setattr(inside.group_commit(one), "wait_until_idle", quiet)
    splitting = asyncio.create_task(replace(together, [0], 2))
    async with asyncio.timeout(30):
        await quiet.reached.wait()
    async with at(together, one) as http:
        late = asyncio.create_task(http.post(f"{TOPIC}/messages", json={"value": 1}))
        await asyncio.sleep(0.3)
        assert not late.done(), "it is taken by a segment that is about to be sealed"
        assert records(one)[0].state != "sealed"
        quiet.open.set()
        await splitting
        assert records(one)[0].state == "sealed"
        assert (await late).status_code == 200


async def test_a_split_at_hashes(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    async with at(together, two) as http:
        answer = await ask(http, 0, "split", {"at": [7, 2_000_000_000]})
        assert answer.status_code == 200, answer.text
        assert [(s["low"], s["high"]) for s in answer.json()["successors"]] == [
            (0, 7), (7, 2_000_000_000), (2_000_000_000, KEY_SPACE),
        ]  # fmt: skip
        halves = await ask(http, 2, "split")
        assert [s["id"] for s in halves.json()["successors"]] == [4, 5]
        most = await ask(http, 3, "split", {"parts": 32})
        assert [s["id"] for s in most.json()["successors"]] == list(range(6, 38))
        assert (await ask(http, 38, "roll")).status_code == 404


async def test_a_segment_that_is_there_already_is_moved(together: InLoop) -> None:
    one, two = together.brokers
    await make(one, 2)
    async with at(together, one) as http:
        for segment, broker in ((0, one), (1, two)):
            answer = await ask(http, segment, "move", {"to": broker.id})
            assert answer.json() == {"segment": segment, "owner": broker.id}
        assert not inside.reshaper(one).counters.done + inside.reshaper(two).counters.done


async def test_changes_of_the_same_segment_at_once_come_about_once(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    async with at(together, one) as here, at(together, two) as there:
        answers = await asyncio.gather(*(ask(http, 0, "split") for http in (here, there, here, there)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        shown = await here.get(f"{TOPIC}/segments/1/messages")
        assert shown.status_code == 200
    assert sorted(records(one)) == [0, 1, 2]


HALF = KEY_SPACE // 2


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[InLoop]:
    async with in_loop(tmp_path, publish_timeout_s=2) as made:
        yield made


@pytest.mark.parametrize(
    ("segment", "change", "body", "status", "slug", "says"),
    [
        (9, "split", {}, 404, "segment-not-found", "no segment 9"),
        (9, "merge", {"with": 0}, 404, "segment-not-found", "no segment 9"),
        (0, "merge", {"with": 9}, 404, "segment-not-found", "no segment 9"),
        (9, "roll", None, 404, "segment-not-found", "no segment 9"),
        (9, "move", {"to": "b0"}, 404, "segment-not-found", "no segment 9"),
        ("x", "roll", None, 422, "invalid-request", "'x'"),
        ("-1", "split", None, 422, "invalid-request", "'-1'"),
        (0, "split", {"parts": 1}, 422, "invalid-request", "at least 2"),
        (0, "split", {"parts": 33}, 422, "invalid-request", "at most 32"),
        (0, "split", {"parts": "2"}, 422, "invalid-request", "parts"),
        (0, "split", {"parts": 2, "at": [5]}, 422, "invalid-request", "cannot be combined"),
        (0, "split", {"at": []}, 422, "invalid-request", "at"),
        (0, "split", {"at": [0]}, 422, "invalid-request", "at least 1"),
        (0, "split", {"at": [KEY_SPACE]}, 422, "invalid-request", "at"),
        (0, "split", {"at": [HALF]}, 422, "invalid-request", f"above 0 and below {HALF}"),
        (0, "split", {"at": [7, 7]}, 422, "invalid-request", "in ascending order"),
        (0, "split", {"at": [8, 7]}, 422, "invalid-request", "in ascending order"),
        (0, "split", {"at": list(range(1, 33))}, 422, "invalid-request", "at"),
        (0, "split", {"in": 2}, 422, "invalid-request", "in"),
        (0, "merge", {}, 422, "invalid-request", "with"),
        (0, "merge", {"with": 0}, 422, "invalid-request", "different"),
        (0, "merge", {"with": "1"}, 422, "invalid-request", "with"),
        (0, "move", {}, 422, "invalid-request", "to"),
        (0, "move", {"to": ""}, 422, "invalid-request", "to"),
        (0, "move", {"to": "b7"}, 422, "invalid-request", "no broker 'b7' is running; running brokers: b0."),
    ],
)
async def test_what_is_wrong_is_said(
    impatient: InLoop, segment: Any, change: str, body: Any, status: int, slug: str, says: str
) -> None:
    one, two = impatient.brokers
    await make(one, 2)
    await inside.catalog(two).require("t")
    before = records(one)
    async with at(impatient, two) as http:
        refused(await ask(http, segment, change, body), status, slug, says)
    assert records(one) == before


async def test_segments_that_are_no_neighbours_are_not_merged_and_nothing_moves(impatient: InLoop) -> None:
    one, two = impatient.brokers
    await make(one, 4)
    async with at(impatient, one) as http:
        refused(await ask(http, 0, "merge", {"with": 3}), 422, "invalid-request", "only segments with adjacent")
        owners = [record.owner for record in records(one).values()]
        assert owners == [broker.id for broker in (one, two, one, two)]


async def test_there_is_no_such_topic(impatient: InLoop) -> None:
    async with at(impatient, impatient.brokers[0]) as http:
        for change, body in (("split", {}), ("merge", {"with": 1}), ("roll", None), ("move", {"to": "b0"})):
            refused(await ask(http, 0, change, body), 404, "topic-not-found", "'t'")
        bad = await http.post("/v1/topics/-/segments/0/roll")
        refused(bad, 422, "invalid-name")


async def test_a_repeated_change_is_told_what_came_of_the_first(impatient: InLoop) -> None:
    one, _ = impatient.brokers
    await make(one)
    async with at(impatient, one) as http:
        assert (await ask(http, 0, "split")).status_code == 200
        for change, body in (("split", {}), ("roll", None), ("merge", {"with": 1}), ("move", {"to": "b1"})):
            told = refused(await ask(http, 0, change, body), 409, "segment-conflict", "replaced", [1, 2])
            assert (told["segment"], told["successors"]) == (0, [1, 2])
        told = refused(await ask(http, 1, "merge", {"with": 0}), 409, "segment-conflict", "replaced")
        assert told["segment"] == 0


async def test_a_segment_with_fewer_hashes_than_parts(impatient: InLoop) -> None:
    one, _ = impatient.brokers
    await make(one)
    async with at(impatient, one) as http:
        assert (await ask(http, 0, "split", {"at": [3]})).status_code == 200
        refused(await ask(http, 1, "split", {"parts": 4}), 422, "invalid-request", "3 key hashes", "4 parts")
        assert (await ask(http, 1, "split", {"parts": 3})).status_code == 200


async def test_segments_with_too_many_parts_are_not_merged(impatient: InLoop) -> None:
    one, _ = impatient.brokers
    await make(one, 2)
    async with at(impatient, one) as http:
        cut = msgspec.structs.replace(records(one)[0], cuts=tuple(range(1, 64)))
        key = keys.SEGMENTS.key("t", inside.topic(one, "t").record.incarnation, 0)
        await impatient.coordination.commit([], [Put(key, keys.SEGMENTS.encode(Versioned.new(cut)))])
        told = refused(
            await ask(http, 1, "merge", {"with": 0}),
            409,
            "segment-conflict",
            "65 tables of producers' sequence numbers",
            "at most 64",
        )
        assert told["parts"] == 65
        assert records(one)[0].owner != records(one)[1].owner


async def test_a_name_that_several_brokers_have_means_none_of_them(impatient: InLoop) -> None:
    one, two = impatient.brokers
    await make(one)
    known = inside.roster(one).brokers[two.id]
    inside.roster(one).brokers[two.id] = Versioned(msgspec.structs.replace(known.record, name="b0"), known.revision)
    async with at(impatient, one) as http:
        told = refused(await ask(http, 0, "move", {"to": "b0"}), 422, "invalid-request", "2 brokers", "'b0'")
        assert told["brokers"] == sorted(broker.id for broker in (one, two))
        assert (await ask(http, 0, "move", {"to": two.id})).status_code == 200


async def test_a_broker_that_drains_is_given_nothing(impatient: InLoop) -> None:
    one, two = impatient.brokers
    await make(one)
    known = inside.roster(one).brokers[two.id]
    inside.roster(one).brokers[two.id] = Versioned(msgspec.structs.replace(known.record, draining=True), known.revision)
    async with at(impatient, one) as http:
        refused(await ask(http, 0, "move", {"to": "b1"}), 422, "invalid-request", "draining")
    assert records(one)[0].owner == one.id
