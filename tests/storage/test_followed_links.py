"""Presigned GETs that follow an example are letter by letter what botocore would have signed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from seaweedq.storage.s3 import S3Store
from seaweedq.storage.s3_links import Example
from tests.support import privates

NAMES = ["_payloads/t/20261121/20261121-0-ab", "a b+c~d", "ü/%41", "x" * 200]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a/se+cr=et")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def with_store(store: S3Store, work: Callable[[S3Store], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


async def same_moment(store: S3Store) -> None:
    """Signed within one second, both ways, unless the second ends in between; then once more."""
    for _ in range(20):
        plain = [await privates.bucket(store).presign("get_object", store._key(name), 600) for name in NAMES]
        store._example_for = 0
        followed = [(await store.presign_get(name, 600)).url for name in NAMES]
        again = await privates.bucket(store).presign("get_object", store._key(NAMES[0]), 600)
        if again == plain[0]:
            assert followed == plain
            assert privates.example(store) is not None
            return
    raise AssertionError("never within one second")


@pytest.mark.parametrize("token", [None, "to/ke+n=="])
@pytest.mark.parametrize(
    ("url", "endpoint", "addressing"),
    [
        ("s3://bucket", None, "auto"),
        ("s3://bucket/pre fix/ü", "http://127.0.0.1:9000", "auto"),
        ("s3://bucket/p", "https://minio.example:9443", "virtual"),
        ("s3://bucket.with.dots/p", "http://weed:80", "path"),
    ],
)
def test_as_botocore_would(
    monkeypatch: pytest.MonkeyPatch, token: str | None, url: str, endpoint: str | None, addressing: str
) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    with_store(S3Store(url, endpoint, addressing), same_moment)


def test_what_is_no_example() -> None:
    async def look(store: S3Store) -> None:
        url = (await store.presign_get(NAMES[0], 600)).url
        key, secret = store._key(NAMES[0]), await privates.bucket(store).secret()
        assert Example.of(url, key, secret)
        assert Example.of(url, key, "another") is None
        assert Example.of(url, "another", secret) is None
        assert Example.of(url.replace("X-Amz-Date=2", "X-Amz-Date=3"), key, secret) is None
        assert Example.of(url + "&more=1", key, secret) is None
        assert Example.of(url.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA"), key, secret) is None
        assert Example.of("http://x/" + key, key, secret) is None

    with_store(S3Store("s3://bucket/p"), look)


def test_other_lifetimes_are_not_mixed_up() -> None:
    async def look(store: S3Store) -> None:
        for expires_s in (600, 60, 600, 61):
            for name in NAMES[:2]:
                assert f"X-Amz-Expires={expires_s}&" in (await store.presign_get(name, expires_s)).url

    with_store(S3Store("s3://bucket"), look)


def test_without_an_example_each_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Example, "of", staticmethod(lambda *_: None))

    async def look(store: S3Store) -> None:
        urls = [(await store.presign_get(name, 600)).url for name in NAMES]
        assert len({url.partition("?")[0] for url in urls}) == len(NAMES)

    with_store(S3Store("s3://bucket"), look)
