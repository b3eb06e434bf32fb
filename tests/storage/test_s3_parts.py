"""Uploads to S3 in parts: resumed, ended, aborted, and what is lost on the way."""

import threading
from collections.abc import AsyncIterator

import pytest

from seaweedq.errors import StoreUnavailable
from seaweedq.storage import s3
from seaweedq.storage.endpoints import Endpoints
from seaweedq.storage.interface import Part
from seaweedq.storage.s3 import S3Store
from seaweedq.storage.s3_requests import Bucket
from tests.support.processes.s3_service import S3Service
from tests.support.storage.clients_put import once, send, status
from tests.support.storage.store_proxy import answers, proxy_of, reset_after, reset_before

NAME = "_payloads/t/20260102/1"
MIB = 1024 * 1024
PART = 5 * MIB  # the least that may be followed by another
DATA = b"12345"


@pytest.fixture
async def store(any_s3: S3Service) -> AsyncIterator[S3Store]:
    store = S3Store(f"s3://{any_s3.place()}/below")
    yield store
    await store.close()


async def put_parts(store: S3Store, parts: str, *contents: bytes, first: int = 1) -> None:
    for number, content in enumerate(contents, first):
        assert await status(await store.presign_part(NAME, parts, number, 60, len(content)), content) == 200


@pytest.mark.service
async def test_an_upload_in_parts_is_resumed_and_ended(store: S3Store) -> None:
    parts = await store.begin_parts(NAME, "image/png")
    assert await store.list_parts(NAME, parts) == []
    await put_parts(store, parts, b"c" * 7, first=3)
    await put_parts(store, parts, b"a" * PART, b"x" * PART)
    await put_parts(store, parts, b"b" * PART, first=2)  # once more
    found = await store.list_parts(NAME, parts)
    assert [(each.number, each.size) for each in found] == [(1, PART), (2, PART), (3, 7)]
    assert await store.list("") == []
    await store.end_parts(NAME, parts, found[::-1])
    await store.end_parts(NAME, parts, found)
    assert await store.read(NAME) == b"a" * PART + b"b" * PART + b"c" * 7
    assert await store.digest(NAME) == (2 * PART + 7, None)
    get = await send(await store.presign_get(NAME, 60), None, headers={"Range": "bytes=0-0"})
    assert get.headers["content-type"] == "image/png"


@pytest.mark.service
async def test_a_part_is_for_its_number_and_size_alone(store: S3Store, checks: None) -> None:
    parts, others = await store.begin_parts(NAME, "a/b"), await store.begin_parts(NAME, "a/b")
    put = await store.presign_part(NAME, parts, 1, 60, 5)
    assert await status(put, b"123456", headers={"Content-Length": "6"}) == 403
    assert await status(put, url=put.url.replace("partNumber=1", "partNumber=2")) == 403
    assert await status(put, url=put.url.replace(parts, others)) == 403
    assert await status(put, method="DELETE") in (400, 403)
    assert await store.list_parts(NAME, parts) == await store.list_parts(NAME, others) == []


@pytest.mark.long
@pytest.mark.service
@pytest.mark.parametrize(
    "any_s3", ["moto_server", "moto_as_seaweedfs_server", "minio_server", "seaweedfs_server"], indirect=True
)
async def test_many_parts_are_listed_page_by_page(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PARTS_PAGE", 2)
    parts = await store.begin_parts(NAME, "a/b")
    for count in range(1, 6):
        await put_parts(store, parts, b"%d" % count, first=count)  # moto pages by place, not by number
        assert [each.number for each in await store.list_parts(NAME, parts)] == [*range(1, count + 1)]


@pytest.mark.service
async def test_the_loop_does_not_wait_for_the_xml_of_thousands_of_parts(
    moto: S3Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, bool] = {}
    real = Bucket.ask

    async def ask(bucket: Bucket, method: str, key: str, **parameters: object) -> dict[str, object]:
        asked[method] = threading.current_thread() is threading.main_thread()
        return await real(bucket, method, key, **parameters)

    monkeypatch.setattr(Bucket, "ask", ask)
    store = S3Store(f"s3://{moto.place()}")
    parts = await store.begin_parts(NAME, "a/b")
    await put_parts(store, parts, DATA)
    await store.end_parts(NAME, parts, await store.list_parts(NAME, parts))
    assert asked == {"create_multipart_upload": True, "list_parts": False, "complete_multipart_upload": False}
    await store.close()


async def listed_of_a_gone_one(store: S3Store, parts: str) -> list[Part] | None:
    """None: the store knows of no such upload."""
    try:
        return await store.list_parts(NAME, parts)
    except FileNotFoundError:
        return None


@pytest.mark.service
async def test_an_aborted_upload_is_gone(store: S3Store, request: pytest.FixtureRequest) -> None:
    parts = await store.begin_parts(NAME, "a/b")
    put = await store.presign_part(NAME, parts, 1, 60, 5)
    assert await status(put) == 200
    found = await store.list_parts(NAME, parts)
    await store.abort_parts(NAME, parts)
    await store.abort_parts(NAME, parts)
    assert await status(put) in (404, 500)  # moto
    expected = [] if "seaweedfs" in request.node.name else None
    assert await listed_of_a_gone_one(store, parts) == expected or "yours" in request.node.name
    with pytest.raises((FileNotFoundError, StoreUnavailable)):  # moto answers 500
        await store.end_parts(NAME, parts, found)
    assert await store.list("") == []


@pytest.mark.service
async def test_an_end_replaces_nothing_and_leaves_no_parts(store: S3Store, request: pytest.FixtureRequest) -> None:
    parts = await store.begin_parts(NAME, "a/b")
    await put_parts(store, parts, DATA)
    found = await store.list_parts(NAME, parts)
    await store.create(NAME, b"first")
    await store.end_parts(NAME, parts, found)
    assert await store.read(NAME) == b"first"
    expected = found if "seaweedfs" in request.node.name else None  # it lists those of a refused end
    assert await listed_of_a_gone_one(store, parts) == expected or "yours" in request.node.name


@pytest.mark.service
async def test_a_part_that_changed_since_it_was_listed_ends_nothing(store: S3Store) -> None:
    parts = await store.begin_parts(NAME, "a/b")
    await put_parts(store, parts, DATA)
    with pytest.raises(StoreUnavailable, match="InvalidPart"):
        await store.end_parts(NAME, parts, [Part(1, 5, '"0123456789abcdef0123456789abcdef"')])
    await store.end_parts(NAME, parts, await store.list_parts(NAME, parts))
    assert await store.read(NAME) == DATA


@pytest.mark.service
async def test_an_end_whose_answer_is_lost_is_asked_again(any_s3: S3Service) -> None:
    async with proxy_of(any_s3.endpoint) as proxy:
        store = S3Store(f"s3://{any_s3.place()}", proxy.endpoint, "path")
        for times in (1, 2):
            parts = await store.begin_parts(NAME, "a/b")
            await put_parts(store, parts, DATA)
            found = await store.list_parts(NAME, parts)
            proxy.inject(reset_after, times)
            if times == 2:
                with pytest.raises(StoreUnavailable):
                    await store.end_parts(NAME, parts, found)
            await store.end_parts(NAME, parts, found)
            assert await store.read(NAME) == DATA
            await store.delete(NAME)
        await store.close()


@pytest.mark.service
async def test_of_several_endpoints_the_next_is_asked(any_s3: S3Service) -> None:
    async with proxy_of(any_s3.endpoint) as proxy:
        place = any_s3.place()
        both = Endpoints([S3Store(f"s3://{place}", each, "path") for each in (proxy.endpoint, any_s3.endpoint)])
        assert both.presigns
        assert both.uri(NAME) == f"s3://{place}/{NAME}"
        assert (await both.presign_put(NAME, 60, 5, "a/b", None)).url.startswith(proxy.endpoint)
        proxy.inject(reset_before)
        parts = await both.begin_parts(NAME, "a/b")
        put = await both.presign_part(NAME, parts, 1, 60, 5)
        assert put.url.startswith(any_s3.endpoint)
        assert await status(put) == 200
        await both.end_parts(NAME, parts, await both.list_parts(NAME, parts))
        assert await both.digest(NAME) == (5, None)
        assert (await send(await both.presign_get(NAME, 60), None)).content == DATA
        await both.abort_parts(NAME, parts)
        with pytest.raises(NotImplementedError):
            await both.receive(NAME, once(DATA), 5, None)
        await both.close()


@pytest.mark.service
@pytest.mark.parametrize("act", ["begin_parts", "list_parts", "end_parts", "abort_parts", "digest"])
async def test_a_store_that_is_out_of_order_is_unavailable(any_s3: S3Service, act: str) -> None:
    async with proxy_of(any_s3.endpoint) as proxy:
        store = S3Store(f"s3://{any_s3.place()}", proxy.endpoint, "path")
        proxy.inject(answers(503, "SlowDown"))
        more = {"begin_parts": ("a/b",), "end_parts": ("upload", [Part(1, 5, "x")]), "digest": ()}
        with pytest.raises(StoreUnavailable):
            await getattr(store, act)(NAME, *more.get(act, ("upload",)))
        await store.close()
