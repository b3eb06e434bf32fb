"""What each method of the S3 store raises, and how often it asks, when the network or the store misbehave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from seaweedq.clock import Ids
from seaweedq.errors import StoreUnavailable, UnfitStore
from seaweedq.storage.endpoints import Endpoints
from seaweedq.storage.probe import probe
from seaweedq.storage.s3 import S3Store
from tests.support import privates
from tests.support.processes.s3_service import S3Service
from tests.support.storage.clients_put import key_of
from tests.support.storage.store_proxy import (
    Exchange,
    Fault,
    Proxy,
    answers,
    cut,
    flipped,
    proxy_of,
    reset_after,
    reset_before,
    shortened,
    silence_after,
    through,
    without_range,
)
from tests.support.tiers import later

pytestmark = pytest.mark.service

READ_TIMEOUT_S = 3.0  # a busy machine answers within it
Act = Callable[[S3Store], Awaitable[object]]
over_moto_alone = pytest.mark.parametrize("s3", ["moto_server"], indirect=True)


@pytest.fixture
async def proxy(s3: S3Service) -> AsyncIterator[Proxy]:
    async with proxy_of(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def store(s3: S3Service, proxy: Proxy) -> AsyncIterator[S3Store]:
    store = S3Store(f"s3://{s3.place()}", proxy.endpoint, "path", read_timeout_s=READ_TIMEOUT_S)
    assert await store.create("there", b"0123456789")
    yield store
    await store.close()


UNKNOWN = {
    "500": answers(500, "InternalError"),
    "503": answers(503, "ServiceUnavailable"),
    "slow down": answers(503, "SlowDown"),
    "conflict": answers(409, "ConditionalRequestConflict"),
    "forbidden": answers(403, "AccessDenied"),
    "reset": reset_before,
}
HAPPENED = {"reset": reset_after, "silence": silence_after}


@pytest.mark.parametrize("fault", UNKNOWN)
async def test_a_create_that_failed_is_unknown_and_was_sent_once(store: S3Store, proxy: Proxy, fault: str) -> None:
    proxy.inject(UNKNOWN[fault])
    with pytest.raises(StoreUnavailable, match=r"create \S*new"):
        await store.create("new", b"mine")
    assert proxy.methods == ["PUT"]
    proxy.inject(through)
    assert await store.create("new", b"mine")


@pytest.mark.parametrize("fault", HAPPENED)
async def test_a_create_without_an_answer_may_have_happened(store: S3Store, proxy: Proxy, fault: str) -> None:
    proxy.inject(HAPPENED[fault])
    with pytest.raises(StoreUnavailable):
        await store.create("new", b"mine")
    assert proxy.methods == ["PUT"]
    proxy.inject(through)
    assert not await store.create("new", b"mine")
    assert await store.read("new") == b"mine"


@pytest.mark.parametrize("code", ["NotImplemented", "InternalError"])
async def test_a_501_that_passes_is_an_outage_and_one_that_lasts_is_the_store(
    store: S3Store, proxy: Proxy, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = answers(501, code)
    for name in ("first", "second"):
        proxy.inject(refusing)
        with pytest.raises(StoreUnavailable, match="501"):
            await store.create(name, b"mine")
        proxy.inject(through)
        assert await store.create(name, b"mine")
        assert privates.bucket(store)._unsupported_s is None, "the time begins anew"
    proxy.inject(refusing)
    with pytest.raises(StoreUnavailable):
        await store.create("new", b"mine")
    monkeypatch.setattr("seaweedq.storage.s3_requests.UNSUPPORTED_S", 0.0)
    with pytest.raises(UnfitStore, match="create-if-absent"):
        await store.create("new", b"mine")


async def test_the_probe_finds_a_store_that_does_not_know_the_condition(store: S3Store, proxy: Proxy, ids: Ids) -> None:
    async def refusing(exchange: Exchange) -> None:
        """Refuses creates alone."""
        await (answers(501, "NotImplemented") if exchange.head.startswith(b"PUT") else through)(exchange)

    proxy.inject(refusing)
    with pytest.raises(UnfitStore, match="create-if-absent"):
        await probe(store, ids, racers=4)


async def _open(store: S3Store) -> bytes:
    def read() -> bytes:
        with store.open("there") as reader:
            return reader.read()

    return await asyncio.to_thread(read)


REPEATABLE: dict[str, Act] = {
    "read": lambda store: store.read("there"),
    "range": lambda store: store.read("there", 2, 9),
    "size": lambda store: store.size("there"),
    "list": lambda store: store.list("there"),
    "delete": lambda store: store.delete("gone"),
    "open": _open,
}
WITH_BODY = ("read", "range", "list", "open")


@pytest.mark.parametrize("act", REPEATABLE)
@pytest.mark.parametrize("fault", ["500", "slow down", "reset"])
async def test_what_may_be_sent_again_is_once(store: S3Store, proxy: Proxy, act: str, fault: str) -> None:
    expected = await REPEATABLE[act](store)
    proxy.inject(UNKNOWN[fault], times=1)
    assert await REPEATABLE[act](store) == expected
    assert len(proxy.methods) == 2
    proxy.inject(UNKNOWN[fault])
    with pytest.raises(StoreUnavailable):
        await REPEATABLE[act](store)
    assert len(proxy.methods) in ((2, 4) if fault == "reset" else (2,))  # aiohttp goes on after a reset by itself


@pytest.mark.long
@over_moto_alone
@pytest.mark.parametrize("act", [act if act == "read" else later(act) for act in REPEATABLE])
async def test_no_answer_is_waited_for_no_longer_than_the_timeout(store: S3Store, proxy: Proxy, act: str) -> None:
    if act == "open":
        store = S3Store(store.uri("x")[:-2], proxy.endpoint, "path", read_timeout_s=READ_TIMEOUT_S)
    proxy.inject(silence_after)
    async with asyncio.timeout(20 * READ_TIMEOUT_S):
        with pytest.raises(StoreUnavailable):
            await REPEATABLE[act](store)


@pytest.mark.parametrize("fault", [cut, shortened], ids=["cut", "shortened"])
@pytest.mark.parametrize("act", WITH_BODY)
async def test_a_short_body_is_an_error(store: S3Store, proxy: Proxy, act: str, fault: Fault) -> None:
    expected = await REPEATABLE[act](store)
    proxy.inject(fault, times=1)
    assert await REPEATABLE[act](store) == expected
    proxy.inject(fault)
    with pytest.raises(StoreUnavailable):
        await REPEATABLE[act](store)


async def test_a_flipped_bit_of_a_whole_object_is_an_error(store: S3Store, proxy: Proxy) -> None:
    proxy.inject(flipped)
    with pytest.raises(StoreUnavailable):
        await store.read("there")


@over_moto_alone  # the range is signed: who looks at signatures refuses a request that has lost it
async def test_a_store_that_ignores_ranges_is_read_right(store: S3Store, proxy: Proxy) -> None:
    proxy.inject(without_range)
    assert await store.read("there", 2, 5) == b"234"
    assert await store.read("there", 8, 99) == b"89"
    assert await store.read("there", 99) == b""
    assert await _open(store) == b"0123456789"


async def test_a_missing_bucket_is_named_and_is_no_missing_object(
    s3: S3Service, request: pytest.FixtureRequest
) -> None:
    store = S3Store("s3://no-such-bucket", s3.endpoint)
    acts: list[Act] = [lambda store: store.check_bucket(), *REPEATABLE.values()]
    if "seaweedfs" not in request.node.name and "yours" not in request.node.name:  # which may make it
        acts.append(lambda store: store.create("new", b""))
    for act in acts:
        with pytest.raises(StoreUnavailable, match=r"NoSuchBucket: bucket no-such-bucket at http") as caught:
            await act(store)
        assert caught.value.fields["code"] == "NoSuchBucket"
    await store.close()


async def test_an_existing_bucket_is_found_and_the_endpoint_boto_chose_is_named(s3: S3Service) -> None:
    there, missing = S3Store(f"s3://{s3.place()}"), S3Store("s3://no-such-bucket")
    await there.check_bucket()
    with pytest.raises(StoreUnavailable, match=f"bucket no-such-bucket at {s3.endpoint}"):
        await missing.check_bucket()
    with pytest.raises(StoreUnavailable, match="no such bucket"):
        await Endpoints([there, missing]).check_bucket()
    await there.close()
    await missing.close()


async def test_a_listing_that_does_not_advance_ends(store: S3Store, proxy: Proxy) -> None:
    async def empty(exchange: Exchange) -> None:
        body = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
        exchange.client.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    proxy.inject(empty)
    with pytest.raises(StoreUnavailable, match="the next page contains no new name"):
        await store.list("")


async def test_keys_that_were_not_asked_for_are_left_out_and_logged_once(
    store: S3Store, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    rest = "<LastModified>2026-01-31T12:00:00.000Z</LastModified><Size>1</Size>"
    names = ("a", key_of(store, "a"), key_of(store, "b"), "z")
    keys = "".join(f"<Contents><Key>{name}</Key>{rest}</Contents>" for name in names)

    async def beside(exchange: Exchange) -> None:
        body = f"<ListBucketResult>{keys}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()
        exchange.client.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    proxy.inject(beside)
    assert await store.list("") == ["a", "b"]
    assert await store.list("", after="a") == ["b"]
    assert caplog.text.count("the store lists keys outside the prefix") == 1


async def test_all_racers_are_under_way_at_once(store: S3Store, proxy: Proxy) -> None:
    arrived, waiting = asyncio.Event(), []

    async def together(exchange: Exchange) -> None:
        waiting.append(exchange)
        if len(waiting) == 32:
            arrived.set()
        await arrived.wait()
        await through(exchange)

    store = S3Store(store.uri("x")[:-2], proxy.endpoint, "path")
    proxy.inject(together)
    won = await asyncio.gather(*(store.create("race", b"%d" % number) for number in range(32)))
    assert sum(won) == 1
    await store.close()


async def test_the_next_endpoint_serves_what_may_be_sent_again(store: S3Store, proxy: Proxy, s3: S3Service) -> None:
    other = S3Store(store.uri("x")[:-2], s3.endpoint, "path")
    both = Endpoints([store, other])
    proxy.inject(reset_before)
    assert await both.read("there") == b"0123456789"
    assert both.endpoints == (other, store)
    assert await both.list("") == ["there"]
    assert await both.create("new", b"by the other one")
    await both.close()


async def test_a_create_is_not_repeated_at_the_next_endpoint_the_next_one_is(
    store: S3Store, proxy: Proxy, s3: S3Service
) -> None:
    both = Endpoints([store, S3Store(store.uri("x")[:-2], s3.endpoint, "path")])
    proxy.inject(reset_before)
    with pytest.raises(StoreUnavailable):
        await both.create("new", b"mine")
    assert await both.list("") == ["there"]
    assert await both.create("new", b"mine")
    assert (await asyncio.to_thread(both.open, "new")).read() == b"mine"
    await both.close()
