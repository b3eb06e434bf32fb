"""Ends of uploads that need a hand on the clock, or on the order of requests: deletions, folders of the dead, limits,
secrets, and two requests that complete one upload.
"""

import asyncio
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from seaweedq.broker.uploads import broker_urls, records
from seaweedq.broker.uploads import rules as upload_plan
from seaweedq.broker.uploads.broker_urls import key_of
from seaweedq.broker.uploads.records import clear_folder
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import Counter, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    Forbidden,
    InvalidRequest,
    NotReady,
    TooManyUploads,
    TopicBeingDeleted,
    UploadConflict,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)
from tests.support import privates
from tests.support.brokers.stored import record_of
from tests.support.tiers import examples
from tests.support.uploads.upload_world import BYTES, DAY_S, SHA256, World, inline


@pytest.fixture
async def world():
    """A store that presigns."""
    made = World(presigns=True)
    await made.start()
    return made


async def begun(world, broker=0, sha256=None, write=UNSET) -> tuple[str, str]:
    upload, record = await world.uploads[broker].create(world.topic, len(BYTES), "a/b", sha256, None, write)
    return upload, record.name


async def there(world, content=BYTES, sha256=None, write=UNSET) -> tuple[str, str]:
    upload, name = await begun(world, sha256=sha256, write=write)
    await world.store.create(name, content)
    return upload, name


async def write_topic(world, incarnation, state="active") -> None:
    record = TopicRecord(incarnation, state, TopicConfig(), world.clock.us)
    await world.coordination.commit([], [Put(keys.TOPICS.key("t"), keys.TOPICS.encode(Versioned.new(record)))])
    await world.catalog.load()


async def test_a_deletion_takes_what_is_its_own_and_what_was_before(world):
    await there(world)
    mine = world.topic
    older = f"20200101-0-{'0' * 32}"
    later = f"20300101-5-{'0' * 32}"
    for upload in (older, later):
        await world.store.create(upload_plan.object_name("t", upload), BYTES)
    await world.store.create("_payloads/t/somebody-elses", BYTES)
    await write_topic(world, 0, "deleting")
    await world.uploads[1].remove_topic(mine)
    assert await world.store.list("_payloads/") == [upload_plan.object_name("t", later), "_payloads/t/somebody-elses"]


async def test_no_upload_begins_behind_the_deletion_of_its_topic(world):
    topic = world.topic
    await world.coordination.commit(
        [], [Put(keys.TOPICS.key("t"), keys.TOPICS.encode(Versioned.new(TopicRecord(0, "deleting", TopicConfig(), 0))))]
    )
    with pytest.raises(TopicBeingDeleted):
        await world.uploads[0].create(topic, 1, "a/b", None, None)
    assert not (await world.coordination.range("uploads/")).entries


async def test_an_upload_of_a_newer_topic_than_the_broker_knows_of(world):
    """Its watch is behind: the request was right, and is so once more in a moment."""
    topic = world.topic
    newer = f"20300101-5-{'0' * 32}"
    for work in (world.uploads[0].find, world.uploads[0].claim):
        with pytest.raises(UploadNotFound):
            await work(topic, newer)
    record = TopicRecord(5, "active", TopicConfig(), world.clock.us)
    await world.coordination.commit([], [Put(keys.TOPICS.key("t"), keys.TOPICS.encode(Versioned.new(record)))])
    with pytest.raises(NotReady):
        await world.uploads[0].claim(topic, newer)
    with pytest.raises(UploadNotFound):
        await world.uploads[0].claim(world.topic, newer)


async def test_a_put_that_ends_behind_the_deletion_goes_a_day_later(world):
    _, name = await begun(world)
    topic = world.topic
    await write_topic(world, 0, "deleting")
    await world.uploads[0].remove_topic(topic)
    await world.sweep.records()
    await world.store.create(name, BYTES)
    await world.coordination.commit([], [Delete(keys.TOPICS.key("t"))])
    world.pass_s(world.settings.upload_expires_s + DAY_S + 1)
    await world.sweep.records()
    assert not await world.store.list("_payloads/")
    assert not (await world.coordination.range("uploads/")).entries


async def test_folders_of_topics_that_are_gone(world):
    dead, unborn = f"20200101-3-{'0' * 32}", f"20200101-4-{'0' * 32}"
    for topic in ("gone", "t", "unknown"):
        for upload in (dead, unborn):
            await world.store.create(upload_plan.object_name(topic, upload), BYTES)
    for topic in ("gone", "t"):
        await world.coordination.commit(
            [], [Put(keys.COUNTERS.key(topic), keys.COUNTERS.encode(Versioned.new(Counter(4))))]
        )
    assert await world.sweep.folders() == 1
    left = await world.store.list("_payloads/")
    assert upload_plan.object_name("gone", dead) not in left
    assert len(left) == 5


async def test_a_folder_of_many_pages(world):
    names = [upload_plan.object_name("t", f"20200101-0-{n:032x}") for n in range(450)]
    for name in names:
        await world.store.create(name, b"x")
    assert await clear_folder(world.store, "t", 1) == 450
    assert not await world.store.list("_payloads/")


async def test_it_expires(world):
    upload, name = await there(world)
    other, _ = await there(world)
    await world.uploads[0].claim(world.topic, other)
    world.pass_s(world.settings.upload_expires_s - 1)
    await world.uploads[0].claim(world.topic, other)
    await world.sweep.records()
    world.pass_s(1)
    for each in (upload, other):
        with pytest.raises(UploadExpired) as caught:
            await world.uploads[0].claim(world.topic, each)
        assert caught.value.fields["expires_at"].endswith("Z")
    for work in (world.uploads[0].signed, world.uploads[0].complete):
        with pytest.raises(UploadExpired):
            await work(world.topic, upload)
    await world.sweep.records()
    assert name in await world.store.list("_payloads/")
    world.pass_s(world.settings.upload_grace_s + 1)
    await world.sweep.records()
    assert name not in await world.store.list("_payloads/")
    with pytest.raises(UploadNotFound):
        await world.uploads[0].claim(world.topic, upload)


async def test_what_is_published_is_looked_at_once(world, monkeypatch):
    upload, _ = await there(world, sha256=SHA256)
    reads = []
    read = world.store.read
    monkeypatch.setattr(world.store, "read", lambda *range: reads.append(range) or read(*range))
    found = {await world.uploads[n % 2].claim(world.topic, upload) for n in range(6)}
    assert {each.sha256 for each in found} == {SHA256}
    assert len(reads) == 1


async def test_all_who_publish_at_once_share_one_reading_and_it_outlives_them(world, monkeypatch):
    upload, _ = await there(world)
    reads, go_on = [], asyncio.Event()
    read = world.store.read

    async def slow(*range):
        reads.append(range)
        await go_on.wait()
        return await read(*range)

    monkeypatch.setattr(world.store, "read", slow)
    claims = [asyncio.create_task(world.uploads[0].claim(world.topic, upload)) for _ in range(5)]
    while not reads:
        await asyncio.sleep(0)
    claims[0].cancel()
    go_on.set()
    done = await asyncio.gather(*claims, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert {each.sha256 for each in done[1:]} == {SHA256}
    assert len(reads) == 1


@pytest.mark.parametrize("content", [BYTES[:-1], BYTES + b"x", BYTES[::-1]])
async def test_other_bytes(world, content, monkeypatch):
    upload, _ = await there(world, content, SHA256)
    with pytest.raises(UploadMismatch):
        await world.uploads[0].claim(world.topic, upload)
    monkeypatch.setattr(world.store, "read", None)  # it is not read once more to say so again
    for work in (world.uploads[0].claim, world.uploads[1].complete):
        with pytest.raises(UploadMismatch):
            await work(world.topic, upload)
    await world.uploads[0].abort(world.topic, upload)


async def test_what_is_not_there(world):
    upload, _ = await begun(world)
    for work in (world.uploads[0].claim, world.uploads[0].complete):
        with pytest.raises(UploadIncomplete):
            await work(world.topic, upload)


async def test_a_published_one_is_not_aborted(world):
    upload, name = await there(world)
    await world.uploads[0].claim(world.topic, upload)
    with pytest.raises(UploadConflict):
        await world.uploads[1].abort(world.topic, upload)
    assert name in await world.store.list("_payloads/")


async def test_the_limit_counts_open_ones_alone_and_over_brokers():
    world = World(presigns=True)
    object.__setattr__(world.settings, "max_open_uploads", 5)
    await world.start()
    uploads = [await there(world) for _ in range(5)]
    with pytest.raises(TooManyUploads):
        await begun(world, 0)
    with pytest.raises(TooManyUploads):
        await begun(world, 1)
    await world.uploads[0].claim(world.topic, uploads[0][0])
    await world.uploads[1].abort(world.topic, uploads[1][0])
    world.pass_s(1)
    await begun(world, 1)
    await begun(world, 1)
    with pytest.raises(TooManyUploads):
        await begun(world, 1)
    world.pass_s(31)  # the other broker counts again
    both = await asyncio.gather(*(begun(world, 0) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, TooManyUploads) for each in both)


async def test_uploads_for_writes_have_a_limit_of_their_own():
    world = World(presigns=True)
    object.__setattr__(world.settings, "max_open_uploads", 2)
    object.__setattr__(world.settings, "max_write_uploads", 3)
    await world.start()
    mine = [await there(world, write=f"w/{number}") for number in range(3)]
    with pytest.raises(TooManyUploads, match="3 open uploads for writes") as refused:
        await begun(world, 0, write="other/0")
    assert refused.value.fields["limit"] == 3
    for _ in range(2):
        await begun(world, 0)
    with pytest.raises(TooManyUploads):
        await begun(world, 0)
    await world.uploads[0].claim(world.topic, mine[0][0], "imported", write="w/0")
    await world.uploads[0].abort(world.topic, mine[1][0])
    for _ in range(2):
        await begun(world, 0, write="w/3")
    with pytest.raises(TooManyUploads):
        await begun(world, 0, write="w/3")


async def test_a_long_count_is_made_seldom_and_holds_nobody_up(world, monkeypatch):
    monkeypatch.setattr(records, "SHORT", 10)
    for _ in range(30):
        await begun(world, 1, write="w/1")
    reads = []
    real = world.coordination.range

    async def counted(*args, **more):
        reads.append(args)
        if len(reads) == 2:
            await held.wait()
        return await real(*args, **more)

    held = asyncio.Event()
    monkeypatch.setattr(world.coordination, "range", counted)
    for passed_s in (0, 3 * records.RECOUNT_S - 1):
        world.pass_s(passed_s)
        await begun(world, 0, write="w/1")
    assert len(reads) == 1, "30 records are counted each 90 s"
    world.pass_s(1)
    counting = asyncio.create_task(begun(world, 0, write="w/1"))
    await asyncio.sleep(0)
    await asyncio.wait_for(begun(world, 0, write="w/1"), 15)
    assert not counting.done()
    held.set()
    await counting
    assert len(reads) == 2


WRONG = ["w/02", "a b/1", "/1", "w", "w/1/2", f"w/{2**63}", "w/-1", f"{'w' * 129}/1", "w/1\n"]


@pytest.mark.parametrize("write", WRONG)
def test_a_write_is_a_writer_and_a_number(write):
    with pytest.raises(InvalidRequest):
        upload_plan.check_write(write)


async def test_only_its_write_takes_an_upload(world):
    upload, _ = await there(world, write=f"w.W_-/{2**63 - 1}")
    plain, _ = await there(world)
    uploads, topic = world.uploads[0], world.topic
    for work in (
        uploads.claim(topic, upload),
        uploads.claim(topic, upload, "imported"),
        uploads.claim(topic, upload, "imported", write="w/8"),
        uploads.claim(topic, plain, "imported", write="w/8"),
    ):
        with pytest.raises(UploadConflict):
            await work
    await uploads.claim(topic, upload, "imported", write=upload_plan.check_write(f"w.W_-/{2**63 - 1}"))
    with pytest.raises(UploadConflict):
        await uploads.abort(topic, upload)
    assert (await uploads.find(topic, upload)).record.state == "imported"


async def test_all_brokers_share_one_secret(world):
    """Also when both draw one at the same time."""
    first, second = (each.own_urls for each in world.uploads)
    name = upload_plan.object_name("t", f"20200101-0-{'0' * 32}")
    one, two = await asyncio.gather(first.put(name, "a/b", 60), second.put(name, "a/b", 60))
    assert one == two
    token, expires = one.url.rpartition("token=")[2], one.url.partition("expires=")[2].partition("&")[0]
    await second.check("PUT", name, expires, token)
    world.pass_s(60)
    with pytest.raises(Forbidden) as caught:
        await second.check("PUT", name, expires, token)
    assert token not in str(caught.value)
    (entry,) = (await world.coordination.range(keys.URL_SECRET.key())).entries
    assert len(bytes.fromhex(record_of(keys.URL_SECRET, entry.value).secret)) == 32


PAYLOAD = upload_plan.object_name("t", f"20200101-0-{'0' * 32}")


async def link(world, expires_s: int = 60) -> tuple[str, str]:
    """Expiry and token of a link that the first broker makes."""
    url = (await world.uploads[0].own_urls.get(PAYLOAD, expires_s)).url
    return url.partition("expires=")[2].partition("&")[0], url.rpartition("token=")[2]


async def passes(world, expires: str, token: str) -> bool:
    """Whether the second broker takes it."""
    try:
        await world.uploads[1].own_urls.check("GET", PAYLOAD, expires, token)
    except Forbidden:
        return False
    return True


async def test_links_are_signed_by_the_day_with_the_secret_of_the_cluster(world):
    world.secret = "of the cluster, never in coordination"
    world.uploads = [world.new_uploads() for _ in range(2)]
    (root,) = world.roots()
    old = [key_of(root, world.clock.now_us() / 1e6 + days * 86_400) for days in (-2, -1, 0, 1)]
    expires, token = await link(world)
    assert token == broker_urls.sign(old[2], broker_urls.Grant("GET", PAYLOAD, int(expires)))
    assert await passes(world, expires, token)
    taken = [
        await passes(world, expires, broker_urls.sign(key, broker_urls.Grant("GET", PAYLOAD, int(expires))))
        for key in old
    ]
    assert taken == [False, True, True, False]
    assert not (await world.coordination.range(keys.URL_SECRET.key())).entries


async def test_a_link_forged_for_years_is_refused(world):
    key = await privates.keys(world.uploads[0].own_urls).signing(world.clock.now_us() / 1e6)
    for ahead_s, taken in ((60, True), (3600, True), (3600 + 301, False), (3 * 365 * 86_400, False)):
        until_s = world.clock.now_us() // 1_000_000 + ahead_s
        token = broker_urls.sign(key, broker_urls.Grant("GET", PAYLOAD, until_s))
        assert await passes(world, str(until_s), token) == taken, ahead_s


PART = 10


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sha256=st.sampled_from([None, SHA256]), brokers=st.sampled_from([(0, 1), (0, 0)]))
def test_neither_is_told_that_parts_are_missing(data, sha256, brokers):
    found = []

    async def complete(world: World, broker: int, upload: str) -> None:
        try:
            found.append(await world.uploads[broker].complete(world.topic, upload))
        except Exception as error:
            found.append(error)

    async def run() -> None:
        world = World(presigns=True)
        await world.start()
        upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", sha256, True)
        for number, start in enumerate(range(0, len(BYTES), PART), 1):
            await world.store.put_part(record.name, number, BYTES[start : start + PART])
        choose = lambda count: data.draw(st.integers(0, count - 1))  # noqa: E731
        await world.run([complete(world, broker, upload) for broker in brokers], choose, kills=0)
        assert world.store.objects[record.name] == BYTES

    found.clear()
    small = patch.multiple(upload_plan, MIN_PART_BYTES=PART, PART_BYTES=PART, MIB=1)
    with small, patch.object(asyncio, "to_thread", inline):
        asyncio.run(run())
    assert [getattr(one, "checked", one) for one in found] == [SHA256] * 2
