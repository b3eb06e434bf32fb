"""What cannot be changed by hand is refused with the reason, before anything is done."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.keyrange import KEY_SPACE
from tests.support.brokers import inside
from tests.support.brokers.changing import ask, at, make, records, refused
from tests.support.brokers.in_process_cluster import InLoop, in_loop

pytestmark = pytest.mark.brokers

HALF = KEY_SPACE // 2


@pytest.fixture
async def together(tmp_path: Path) -> AsyncIterator[InLoop]:
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
        (0, "split", {"at": [HALF]}, 422, "invalid-request", f"within (0, {HALF})"),
        (0, "split", {"at": [7, 7]}, 422, "invalid-request", "rise strictly"),
        (0, "split", {"at": [8, 7]}, 422, "invalid-request", "rise strictly"),
        (0, "split", {"at": list(range(1, 33))}, 422, "invalid-request", "at"),
        (0, "split", {"in": 2}, 422, "invalid-request", "in"),
        (0, "merge", {}, 422, "invalid-request", "with"),
        (0, "merge", {"with": 0}, 422, "invalid-request", "different"),
        (0, "merge", {"with": "1"}, 422, "invalid-request", "with"),
        (0, "move", {}, 422, "invalid-request", "to"),
        (0, "move", {"to": ""}, 422, "invalid-request", "to"),
        (0, "move", {"to": "b7"}, 422, "invalid-request", "there is no broker 'b7'; these are living: b0."),
    ],
)
async def test_what_is_wrong_is_said(
    together: InLoop, segment: Any, change: str, body: Any, status: int, slug: str, says: str
) -> None:
    one, two = together.brokers
    await make(one, 2)
    await inside.catalog(two).known("t")
    before = records(one)
    async with at(together, two) as http:
        refused(await ask(http, segment, change, body), status, slug, says)
    assert records(one) == before


async def test_segments_that_are_no_neighbours_are_not_merged_and_nothing_moves(together: InLoop) -> None:
    one, two = together.brokers
    await make(one, 4)
    async with at(together, one) as http:
        refused(await ask(http, 0, "merge", {"with": 3}), 422, "invalid-request", "only segments with adjacent")
        owners = [record.owner for record in records(one).values()]
        assert owners == [broker.id for broker in (one, two, one, two)]


async def test_there_is_no_such_topic(together: InLoop) -> None:
    async with at(together, together.brokers[0]) as http:
        for change, body in (("split", {}), ("merge", {"with": 1}), ("roll", None), ("move", {"to": "b0"})):
            refused(await ask(http, 0, change, body), 404, "topic-not-found", "'t'")
        bad = await http.post("/v1/topics/-/segments/0/roll")
        refused(bad, 422, "invalid-name")


async def test_a_repeated_change_is_told_what_came_of_the_first(together: InLoop) -> None:
    one, _ = together.brokers
    await make(one)
    async with at(together, one) as http:
        assert (await ask(http, 0, "split")).status_code == 200
        for change, body in (("split", {}), ("roll", None), ("merge", {"with": 1}), ("move", {"to": "b1"})):
            told = refused(await ask(http, 0, change, body), 409, "segment-conflict", "sealed", [1, 2])
            assert (told["segment"], told["successors"]) == (0, [1, 2])
        told = refused(await ask(http, 1, "merge", {"with": 0}), 409, "segment-conflict", "sealed")
        assert told["segment"] == 0


async def test_a_segment_with_fewer_hashes_than_parts(together: InLoop) -> None:
    one, _ = together.brokers
    await make(one)
    async with at(together, one) as http:
        assert (await ask(http, 0, "split", {"at": [3]})).status_code == 200
        refused(await ask(http, 1, "split", {"parts": 4}), 422, "invalid-request", "3 key hashes", "4 parts")
        assert (await ask(http, 1, "split", {"parts": 3})).status_code == 200


async def test_segments_with_too_many_parts_are_not_merged(together: InLoop) -> None:
    one, _ = together.brokers
    await make(one, 2)
    async with at(together, one) as http:
        cut = msgspec.structs.replace(records(one)[0], cuts=tuple(range(1, 64)))
        key = keys.SEGMENTS.key("t", inside.topic(one, "t").record.incarnation, 0)
        await together.coordination.commit([], [Put(key, keys.SEGMENTS.encode(Versioned.new(cut)))])
        told = refused(
            await ask(http, 1, "merge", {"with": 0}), 409, "segment-conflict", "65 producer tables", "at most 64"
        )
        assert told["parts"] == 65
        assert records(one)[0].owner != records(one)[1].owner


async def test_a_name_that_several_brokers_have_means_none_of_them(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    known = inside.roster(one).brokers[two.id]
    inside.roster(one).brokers[two.id] = Versioned(msgspec.structs.replace(known.record, name="b0"), known.revision)
    async with at(together, one) as http:
        told = refused(await ask(http, 0, "move", {"to": "b0"}), 422, "invalid-request", "2 brokers", "'b0'")
        assert told["brokers"] == sorted(broker.id for broker in (one, two))
        assert (await ask(http, 0, "move", {"to": two.id})).status_code == 200


async def test_a_broker_that_drains_is_given_nothing(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    known = inside.roster(one).brokers[two.id]
    inside.roster(one).brokers[two.id] = Versioned(msgspec.structs.replace(known.record, draining=True), known.revision)
    async with at(together, one) as http:
        refused(await ask(http, 0, "move", {"to": "b1"}), 422, "invalid-request", "draining")
    assert records(one)[0].owner == one.id
