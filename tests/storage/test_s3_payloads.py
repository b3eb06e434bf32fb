"""What S3 itself refuses of a signed request. moto looks at no signature: it is not asked."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator

import pytest

from seaweedq.storage.interface import SignedRequest
from seaweedq.storage.s3 import S3Store
from tests.support.processes.s3_service import S3Service
from tests.support.storage.clients_put import once, send, status
from tests.support.storage.store_proxy import proxy_of

pytestmark = pytest.mark.service

NAME = "_payloads/t/20260102/1"
MIB = 1024 * 1024
PART = 5 * MIB  # the least that may be followed by another
DATA = b"12345"
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
async def store(s3: S3Service) -> AsyncIterator[S3Store]:
    store = S3Store(f"s3://{s3.place()}/below")
    yield store
    await store.close()


def signed_headers(signed: SignedRequest) -> list[str]:
    return signed.url.partition("X-Amz-SignedHeaders=")[2].partition("&")[0].split("%3B")


async def test_a_put_is_for_these_bytes_alone(store: S3Store, checks: None) -> None:
    put = await store.presign_put(NAME, 60, 5, "image/png", DIGEST)
    checksum = "x-amz-checksum-sha256"
    assert await status(put, b"123456", headers={"Content-Length": "6"}) == 403
    assert await status(put, b"1234", headers={"Content-Length": "4"}) == 403
    assert await status(put, once(DATA), headers={"Content-Length": None}) in (403, 411)  # chunked
    assert await status(put, b"12346") == 400  # the store hashes what comes
    other = "9j8wyWU6DVfN5ZQ3rVAEBaAZFUbRb7kVyGq1hB9jkxU="
    assert await status(put, b"12346", headers={checksum: other}) == 403
    assert await status(put, b"12346", headers={checksum: None}) in (400, 403)
    assert await status(put, headers={"Content-Type": "text/html"}) == 403
    assert await status(put, headers={"If-None-Match": None}) in (400, 403)
    assert await status(put, url=f"{put.url}&if-none-match=*", headers={"If-None-Match": None}) in (400, 403)
    assert await store.list("") == []
    assert await status(put) == 200
    assert await status(put) == 412
    assert await store.read(NAME) == DATA


async def test_a_request_is_for_its_key_and_method_alone(store: S3Store, checks: None) -> None:
    put, get = await store.presign_put(NAME, 60, 5, "image/png", None), await store.presign_get(NAME, 60)
    other = NAME.replace("/t/", "/u/")
    await store.create(other, b"not for you")
    assert await status(put, url=put.url.replace("/t/", "/u/").replace("20260102/1", "20260102/2")) == 403
    for variant in ("/t/../u/", "/t/%2e%2e/u/", "/u/", "/t//../../_payloads/u/"):
        assert await status(get, None, url=get.url.replace("/t/", variant)) in (400, 403, 404), variant
    assert await status(put, url=put.url.replace("-Expires=60", "-Expires=604800")) == 403
    assert await status(put) == 200
    for method in ("GET", "DELETE", "HEAD"):
        assert await status(put, None, method=method, headers=dict.fromkeys(put.headers)) in (400, 403), method
    for method in ("PUT", "DELETE"):
        assert await status(get, None, method=method) in (400, 403), method
    assert await store.list("") == [NAME, other]


async def test_a_put_copies_nothing_that_its_sender_may_not_read(store: S3Store, checks: None) -> None:
    await store.create("secret", DATA)
    parts = await store.begin_parts(NAME, "a/b")
    for put in (await store.presign_put(NAME, 60, 5, "a/b", None), await store.presign_part(NAME, parts, 1, 60, 5)):
        bar = "x-amz-copy-source-if-match"
        source = {"x-amz-copy-source": store.uri("secret").removeprefix("s3:/")}
        assert await status(put, headers=source) in (400, 403, 412)
        assert await status(put, headers={**source, bar: "*"}) in (400, 403)
        assert await status(put, headers={**source, bar: None}) in (400, 403)
        assert await status(put, url=f"{put.url}&{bar}=%22no-copies%22", headers={**source, bar: None}) in (400, 403)
    assert await store.list("") == ["secret"]
    assert await store.list_parts(NAME, parts) == []


async def test_aws_refuses_what_is_not_signed_and_is_sent_nothing_more(store: S3Store) -> None:
    aws = S3Store("s3://bucket/prefix", "https://s3.eu-central-1.amazonaws.com")
    put = await aws.presign_put(NAME, 60, 5, "a/b", None)
    assert signed_headers(put) == ["content-length", "content-type", "host", "if-none-match"]
    assert set(put.headers) == {"Content-Length", "Content-Type", "If-None-Match"}
    assert signed_headers(await aws.presign_part(NAME, "upload", 1, 60, 5)) == ["content-length", "host"]
    await aws.close()


async def test_a_request_expires(store: S3Store, checks: None) -> None:
    await store.create("there", DATA)
    put, get = await store.presign_put(NAME, 1, 5, "image/png", None), await store.presign_get("there", 1)
    await asyncio.sleep(2.1)
    assert await status(put) == 403
    assert await status(get, None) == 403


async def test_a_get_takes_ranges(store: S3Store) -> None:
    put = await store.presign_put(NAME, 60, 5, "image/png", None)
    assert await status(put) == 200
    get = await store.presign_get(NAME, 60)
    part = await send(get, None, headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content, part.headers["content-type"]) == (206, b"23", "image/png")
    assert (await send(get, None)).content == DATA


async def test_all_that_is_stated_is_signed_also_where_nobody_checks(store: S3Store) -> None:
    put = await store.presign_put(NAME, 60, 5, "image/png", DIGEST)
    assert signed_headers(put) == sorted([*(name.lower() for name in put.headers), "host"])
    part = await store.presign_part(NAME, "upload", 7, 60, 5)
    assert signed_headers(part) == ["content-length", "host", "x-amz-copy-source-if-match"]
    assert "partNumber=7" in part.url
    get = await store.presign_get(NAME, 60)
    assert (get.method, dict(get.headers), signed_headers(get)) == ("GET", {}, ["host"])


@pytest.mark.parametrize("expires_s", [0, -1, 604_801])
async def test_a_request_has_a_bounded_life(store: S3Store, expires_s: int) -> None:
    acts = [
        store.presign_put(NAME, expires_s, 5, "image/png", None),
        store.presign_get(NAME, expires_s),
        store.presign_part(NAME, "upload", 1, expires_s, 5),
    ]
    for act in acts:
        with pytest.raises(ValueError, match="can be valid for 1 to"):
            await act


async def test_signing_asks_nobody_and_gives_the_loop_its_turns(s3: S3Service) -> None:
    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}", proxy.endpoint)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.create_task(turn())
        urls = {(await store.presign_part(NAME, "upload", number, 60, PART)).url for number in range(1, 101)}
        turning.cancel()
        assert (len(urls), proxy.methods) == (100, [])
        assert turns >= 100
        await store.close()


async def test_a_signed_url_is_in_no_log_and_in_no_repr(store: S3Store, caplog: pytest.LogCaptureFixture) -> None:
    for chatty in ("aiobotocore", "botocore"):  # as `serve` has it
        caplog.set_level(logging.WARNING, chatty)
    caplog.set_level(logging.DEBUG)
    made = [
        await store.presign_put(NAME, 60, 5, "image/png", DIGEST),
        await store.presign_get(NAME, 60),
        await store.presign_part(NAME, await store.begin_parts(NAME, "image/png"), 1, 60, 5),
    ]
    for signed in made:
        signature = signed.url.partition("X-Amz-Signature=")[2][:64]
        assert len(signature) == 64
        assert signature not in caplog.text + repr(signed)
        assert "X-Amz" not in caplog.text + repr(signed)
