"""Segments split, merged, rolled and moved through the API of either of two brokers, while publishes go on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.segments.keyrange import KEY_SPACE
from tests.support.brokers import inside
from tests.support.brokers.changing import TOPIC, ask, at, in_order, make, publishing, records
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import replace

pytestmark = pytest.mark.brokers


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
    async with asyncio.timeout(10):
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
