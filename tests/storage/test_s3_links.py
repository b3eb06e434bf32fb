"""Links that follow an example are letter by letter those that botocore signs, and S3 takes them."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import pytest

from seaweedq.storage import s3_signed
from seaweedq.storage.s3 import S3Store
from seaweedq.storage.s3_signed import Example
from tests.support import privates
from tests.support.processes.s3_service import S3Service
from tests.support.storage.clients_put import key_of, send

SECRET = "s" * 40
NAMES = ["_payloads/t/1", "a", "a/b c", "a/ü€/~_-.", "ü/%41", "a/%2e%2e/b", "a/+&=?#@:;,$!'()*[]", "a/" + "x" * 500]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a" * 20)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)


@pytest.fixture
async def stores() -> AsyncIterator[list[S3Store]]:
    stores = [
        S3Store(url, endpoint, addressing)
        for url, endpoint, addressing in (
            ("s3://bucket/some/where", "http://127.0.0.1:9", "path"),
            ("s3://bucket/some/where", "https://s3.eu-central-1.amazonaws.com", "virtual"),
            ("s3://bucket", None, "auto"),
            ("s3://bucket/pre fix/ü", "http://127.0.0.1:9000", "auto"),
            ("s3://bucket.with.dots/p", "http://weed:80", "path"),
        )
    ]
    yield stores
    for store in stores:
        await store.close()


def date(url: str) -> str:
    return parse_qs(urlsplit(url).query)["X-Amz-Date"][0]


async def compared(store: S3Store, name: str, expires_s: int) -> None:
    """A link and botocore's own, of the same second."""
    for _ in range(20):
        privates.forget_example(store)
        await store.presign_get("example", expires_s)
        link = (await store.presign_get(name, expires_s)).url
        own = await privates.bucket(store).presign("get_object", key_of(store, name), expires_s)
        if date(link) == date(own):
            assert link == own
            return
    raise AssertionError("no two were signed within one second")


@pytest.mark.default
@pytest.mark.parametrize("token", [None, "a session/token+of=some+length=="])
async def test_a_link_is_what_botocore_signs(
    stores: list[S3Store], token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    for store in stores:
        for name in NAMES:
            await compared(store, name, 3600)
        assert privates.example(store) is not None


async def test_an_example_serves_for_a_while_and_for_its_lifetime_alone(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, signed = stores[0], 0
    real = privates.bucket(store).presign

    async def presign(*arguments: object, **parameters: object) -> str:
        nonlocal signed
        signed += 1
        return await real(*arguments, **parameters)

    monkeypatch.setattr(privates.bucket(store), "presign", presign)
    urls = {(await store.presign_get(f"a/{number}", 3600)).url for number in range(100)}
    assert (len(urls), signed) == (100, 1)
    url = (await store.presign_get("a/1", 60)).url
    assert (signed, parse_qs(urlsplit(url).query)["X-Amz-Expires"]) == (2, ["60"])
    store._until_s = asyncio.get_running_loop().time()
    await store.presign_get("a/1", 60)
    assert signed == 3
    for name in ("", "../a", "a//b"):
        with pytest.raises(ValueError, match="not a valid object name"):
            await store.presign_get(name, 60)
    for expires_s in (0, 604_801):
        with pytest.raises(ValueError, match="can be valid for 1 to"):
            await store.presign_get("a", expires_s)


async def test_other_lifetimes_are_not_mixed_up(stores: list[S3Store]) -> None:
    for expires_s in (600, 60, 600, 61):
        for name in NAMES[:2]:
            assert f"X-Amz-Expires={expires_s}&" in (await stores[0].presign_get(name, expires_s)).url


async def test_what_does_not_come_out_as_it_was_signed_is_no_example(
    stores: list[S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (await stores[0].presign_get("a", 60)).url
    key = "some/where/a"
    assert Example.from_url(url, key, SECRET) is not None
    assert Example.from_url(url, key, "another") is None
    assert Example.from_url(url, "some/where/b", SECRET) is None
    assert Example.from_url(url.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), key, SECRET) is None
    assert Example.from_url(url.replace("Expires=60", "Expires=61"), key, SECRET) is None
    assert Example.from_url(url.replace("X-Amz-Date=2", "X-Amz-Date=3"), key, SECRET) is None
    assert Example.from_url(url + "&more=1", key, SECRET) is None
    assert Example.from_url("http://127.0.0.1:9/bucket/some/where/a", key, SECRET) is None
    monkeypatch.setattr(s3_signed, "_ALGORITHM", "another")  # nobody knows it: botocore signs all of them
    privates.forget_example(stores[1])
    for name in NAMES[:3]:
        await compared(stores[1], name, 60)
    assert privates.example(stores[1]) is None


async def test_no_secret_is_shown(stores: list[S3Store]) -> None:
    await stores[0].presign_get("a", 60)
    example = privates.example(stores[0])
    assert example is not None
    assert repr(example.secret) not in repr(example)
    assert SECRET not in repr(example)


@pytest.mark.service
async def test_s3_takes_links_and_refuses_changed_ones(s3: S3Service, request: pytest.FixtureRequest) -> None:
    store = S3Store(f"s3://{s3.place()}/below")
    for name in NAMES[:4]:
        await store.create(name, name.encode())
    for name in NAMES[:4]:
        link = await store.presign_get(name, 60)
        assert (await send(link, None)).content == name.encode()
    if "moto" not in request.node.name:
        changed = link.url.replace("/below/", "/other/")
        assert (await send(link, None, url=changed)).status_code in (400, 403)
        assert (await send(link, None, url=link.url[:-1] + "xy"[link.url[-1] == "x"])).status_code == 403
    await store.close()
