"""What a rebuild reads from the store beside the state."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.rebuild.plan import Found, FoundJournal, Journals, StateView, plan
from seaweedq.broker.rebuild.reading import PIECE, StoreReader
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import (
    Counter,
    JournalRecord,
    RetentionPolicy,
    SegmentRecord,
    StartRecord,
    SubscriptionRecord,
    TopicConfig,
    TopicRecord,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running
from tests.support.brokers.reshaped import replace as reshaped
from tests.support.brokers.returned import returned

FRAME = Journals({"x": FoundJournal(JournalRecord("object", ""), {("t", 1): (1, 1)})})
COUNTER = (keys.COUNTERS, ("t",))
ENDING = TopicRecord(0, "deleting", TopicConfig(), 1)
SUBSCRIPTION = (keys.SUBSCRIPTIONS, ("t", 0, "s"), SubscriptionRecord("shared", "earliest", 30, 0, None, 7, 9))


async def created(folder: Path, store: MemoryStore) -> TopicRecord:
    async with running(folder, store) as broker:
        return (await make_topic(broker, "t", 2)).record


async def read(store: MemoryStore, *records: Any, **found: Any) -> Found:
    state = {kind.key(*parts): kind.encode(Versioned.new(record)) for kind, parts, record in records}
    return await StoreReader(store, store).read(StateView(state), Found({}, **found), 1)


@pytest.mark.parametrize(
    ("records", "journals", "is_there"),
    [
        ((), Journals(), False),  # a creation that was cut off looks like this
        ((), FRAME, True),
        ((SUBSCRIPTION,), Journals(), True),
        (((*COUNTER, Counter(2)),), FRAME, True),  # the state is of amid its creation
        (((*COUNTER, Counter(3)),), FRAME, False),  # it was deleted before the state
        (((keys.TOPICS, ("t",), ENDING),), FRAME, False),
        (((keys.TOPICS, ("t",), replace(ENDING, state="later")),), FRAME, False),
    ],
)
async def test_a_topic_that_its_first_entry_tells(
    tmp_path: Path, records: tuple[Any, ...], journals: Journals, is_there: bool
) -> None:
    record = await created(tmp_path, store := MemoryStore())
    found = await read(store, *records, journals=journals)
    assert {name: held.record for name, held in found.topics.items()} == ({"t": record} if is_there else {})
    assert not found.damaged


async def test_a_topic_that_was_made_again_while_the_state_has_its_end(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(tmp_path, store) as broker:
        ended = await make_topic(broker, "t", 1)
        await inside.topic_admin(broker).begin_delete(ended)
        ending = ended.record
        while inside.catalog(broker).get("t"):
            await inside.topic_admin(broker).finish_delete(ended)
        record = (await make_topic(broker, "t", 2)).record
    assert record.incarnation == 1
    found = await read(store, (keys.TOPICS, ("t",), ending), (*COUNTER, Counter(1)), journals=FRAME)
    assert found.topics["t"].record == record


async def test_a_first_entry_that_is_damaged_is_said(tmp_path: Path) -> None:
    await created(tmp_path, store := MemoryStore())
    (name,) = [one for one in store.objects if one.startswith("topics/t/segment=0/")]
    store.objects[name] = store.objects[name][:-9]
    found = await read(store, journals=FRAME)
    assert name in found.damaged["t"]


@pytest.mark.parametrize("known", [0, 1, PIECE, PIECE + 1, 5 * PIECE])
@pytest.mark.parametrize("every", [1, 2, 7, 1000])
async def test_all_folders_of_segments_are_found(known: int, every: int) -> None:
    """Those that the state knows cut the listing; some have gone, and others came since, or are somebody else's."""
    numbers = {one for one in range(3 * PIECE) if one % every == 0} | {known + 1, 10**6}
    store = MemoryStore()
    strange = ["t/segment=", "t/segment=1x", "t/segment=5.old", "t/x", "t/zzz", "t2/segment=7"]
    for folder in [*(f"t/segment={number}" for number in numbers), *strange]:
        store.objects[f"topics/{folder}/file"] = b""
    config = TopicConfig(retention=RetentionPolicy(max_age_s=60))
    sealed = SegmentRecord(0, 1, "sealed", (), (), None, 5, 1, 2)
    emptied = StartRecord(9, 5, emptied=True)
    records = [(keys.SEGMENTS, ("t", 0, number), sealed) for number in range(known)]
    records += [(keys.STARTS, ("t", 0, number), emptied) for number in range(known)]
    found = await read(store, (keys.TOPICS, ("t",), TopicRecord(0, "active", config, 1)), *records)
    assert found.chains["t"].folders == numbers
    assert found.folders["t"] == 10**6


@pytest.mark.brokers
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("kept", [0, 1])
async def test_a_sealed_segment_that_retention_has_shortened_since(tmp_path: Path, takes: bool, kept: int) -> None:
    async with returned(tmp_path, 1, journal="object") as world:
        (broker,) = world.together.brokers
        topic = await make_topic(broker)
        await publish(broker, topic, "1", "2")
        await reshaped(world.together, [0], 2)
        state = {one.key: one.value for one in (await broker.process.coordination.range("")).entries if not one.lease}
        store = world.together.store
        names = sorted(one for one in store.objects if one.startswith("topics/t/segment=0/"))
        for name in names[: len(names) - kept]:
            del store.objects[name]
        policy = RetentionPolicy(max_age_s=60) if takes else RetentionPolicy()
        config = replace(topic.record.config, retention=policy)
        state[keys.TOPICS.key("t")] = keys.TOPICS.encode(topic.held.with_record(replace(topic.record, config=config)))
        view = StateView(state)
        found = await StoreReader(store, store).read(view, Found({}), 1)
        made = plan(view, found, 1)
    key = keys.STARTS.key("t", 0, 0)
    start = keys.STARTS.require(Entry(key, made.keys[key], 1)).record if key in made.keys else StartRecord(0, 0)
    if not takes:
        assert start == StartRecord(0, 0)
    elif kept:
        assert (start.sequence, start.offset, start.emptied) == (len(names) - 1, 2, False)
    else:
        assert (start.offset, start.emptied) == (2, True)
