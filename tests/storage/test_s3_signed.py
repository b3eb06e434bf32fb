"""Requests and links to S3 that are signed here: as botocore signs them, and given up if the store refuses them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from seaweedq.errors import StoreUnavailable
from seaweedq.storage import s3_signed
from seaweedq.storage.s3 import S3Store
from seaweedq.storage.s3_signed import MOST_REFUSED, ErrorAnswer, Example, SignedRequests, SigningPlace, read_page
from tests.support import privates
from tests.support.processes.s3_service import S3Service
from tests.support.storage.clients_put import key_of, send
from tests.support.storage.store_proxy import Exchange, Fault, answers, proxy_of, through

NOW = datetime(2026, 11, 23, 6, 30, tzinfo=UTC)
KEYS = ("q/topics/t/00000001", "a b+c~é=&/x%20y", "-_.~!*'()@:$,;", "a//b/../c/./e\u0301\u00e9/")
PLACES = (
    SigningPlace("http://127.0.0.1:9000", "127.0.0.1:9000", "/bucket", "us-east-1"),
    SigningPlace("https://bucket.s3.eu-west-1.amazonaws.com", "bucket.s3.eu-west-1.amazonaws.com", "", "eu-west-1"),
    SigningPlace("http://[::1]:9000", "[::1]:9000", "/bucket", "us-east-1"),
)
QUERY = {"list-type": "2", "prefix": "q/a b+&=", "max-keys": "1000", "encoding-type": "url", "start-after": "q/é"}
PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><IsTruncated>true</IsTruncated>%s
<Contents><Key>a%%2Bb+c%%25</Key><LastModified>%s</LastModified><Size>7</Size><Owner><ID>x</ID></Owner></Contents>
</ListBucketResult>"""
SECRET = "s" * 40
NAMES = ["_payloads/t/1", "a", "a/b c", "a/ü€/~_-.", "ü/%41", "a/%2e%2e/b", "a/+&=?#@:;,$!'()*[]", "a/" + "x" * 500]


@pytest.fixture(params=[None, "a/token+="])
def keys(request: pytest.FixtureRequest) -> Credentials:
    return Credentials("AKIDEXAMPLE", "the/secret+key", request.param)


@pytest.mark.parametrize("place", PLACES, ids=["path", "virtual", "ipv6"])
@pytest.mark.parametrize("key", [*KEYS, None])
def test_a_signature_is_that_of_botocore(place: SigningPlace, key: str | None, keys: Credentials) -> None:
    headers = {"range": "bytes=0-9", "if-none-match": "*", "x-amz-checksum-crc32": "NSRBwg=="}
    query = {} if key else QUERY
    made = place.request("GET", key, query, headers, None, keys, NOW)
    theirs = AWSRequest("GET", made.url, headers)
    theirs.context["payload_signing_enabled"] = False
    theirs.context["client_config"] = SimpleNamespace(s3={"payload_signing_enabled": False})
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW):
        S3SigV4Auth(keys, "s3", place.region).add_auth(theirs)
    assert made.headers["authorization"] == theirs.headers["Authorization"]
    assert made.headers.get("x-amz-security-token") == theirs.headers.get("X-Amz-Security-Token")


@pytest.mark.parametrize(
    ("url", "key", "found"),
    [
        ("http://127.0.0.1:9000/bucket/a%20b", "a b", PLACES[0]),
        ("http://127.0.0.1:9000/bucket", None, PLACES[0]),
        ("https://bucket.s3.eu-west-1.amazonaws.com/a%20b", "a b", PLACES[1]),
        ("https://bucket.s3.eu-west-1.amazonaws.com/?list-type=2", None, PLACES[1]),
        ("https://bucket.s3.eu-west-1.amazonaws.com/another", "a b", None),
        (
            "http://[::1]:9000/bucket/a%20b",
            "a b",
            SigningPlace("http://[::1]:9000", "[::1]:9000", "/bucket", "us-east-1"),
        ),
        ("http://[::1]/bucket", None, SigningPlace("http://[::1]", "[::1]", "/bucket", "us-east-1")),
    ],
)
def test_a_place_is_learnt_from_a_request(url: str, key: str | None, found: SigningPlace | None) -> None:
    request = SimpleNamespace(url=url, context={"input_params": {"Bucket": "bucket"} | ({"Key": key} if key else {})})
    region = found.region if found else "eu-west-1"
    assert SigningPlace.from_request(request, "s3", region, "s3v4") == found


def test_a_place_with_other_signatures_is_not_learnt() -> None:
    request = SimpleNamespace(url="http://h/b", context={})
    assert SigningPlace.from_request(request, "s3", "r", "s3v4") == SigningPlace("http://h", "h", "/b", "r")
    assert SigningPlace.from_request(request, "s3express", "r", "s3v4") is None
    assert SigningPlace.from_request(request, "s3", "r", "s3") is None
    assert SigningPlace.from_request(request, "s3", "", "s3v4") is None
    request.context["auth_options"] = ["aws.auth#sigv4a", "aws.auth#sigv4"]
    assert SigningPlace.from_request(request, "s3", "r", "s3v4") is None


def test_a_page_is_read_as_botocore_reads_it() -> None:
    for time in ("2026-11-23T06:30:00.000Z", "2026-11-23T06:30:00Z", "Mon, 23 Nov 2026 06:30:00 GMT"):
        [found], more = read_page((PAGE % ("<EncodingType>url</EncodingType>", time)).encode())
        assert (found.name, found.size, found.modified_us) == ("a+b c%", 7, int(NOW.timestamp() * 1e6))
        assert more
    [found], _ = read_page((PAGE % ("", "2026-11-23T06:30:00Z")).encode())
    assert found.name == "a%2Bb+c%25"
    for broken in (b"", b"<a", b"<html><body/></html>", PAGE[:300].encode()):
        with pytest.raises(OSError, match="cannot be read"):
            read_page(broken)


def _is_botocores(exchange: Exchange) -> bool:
    return b"amz-sdk-request" in exchange.head.lower()


@pytest.fixture
def names() -> Iterator[str]:
    return iter(f"o/{number}" for number in range(100))


async def _each_kind(store: S3Store, name: str) -> None:
    assert await store.create(name, b"0123456789")
    assert not await store.create(name, b"")
    assert await store.read(name, 2, 5) == b"234"
    assert await store.read(name, 2, 50) == b"23456789"
    assert await store.read(name, 20, 30) == b""
    assert name in await store.list("o/")
    assert await asyncio.to_thread(lambda: store.open(name).read()) == b"0123456789"
    with pytest.raises(FileNotFoundError):
        await store.read(f"{name}/none", 0, 1)


@pytest.mark.service
async def test_botocore_makes_the_first_request_alone(s3: S3Service, names: Iterator[str]) -> None:
    theirs: list[bytes] = []

    async def note(exchange: Exchange) -> None:
        if _is_botocores(exchange):
            theirs.append(exchange.head.split(b" ")[0])
        await through(exchange)

    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await _each_kind(store, next(names))
        proxy.inject(note)
        await _each_kind(store, next(names))
        assert theirs == []
        await store.close()


@pytest.mark.service
async def test_a_store_that_refuses_them_is_asked_by_botocore_from_then_on(
    s3: S3Service, names: Iterator[str], caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[bytes] = []

    async def refuse(exchange: Exchange) -> None:
        if _is_botocores(exchange):
            await through(exchange)
        else:
            refused.append(exchange.head)
            await answers(403, "SignatureDoesNotMatch")(exchange)

    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await store.list("o/")
        proxy.inject(refuse)
        with caplog.at_level(logging.WARNING):
            with pytest.raises(StoreUnavailable):
                await store.create(name := next(names), b"once")  # a put is sent once
            assert await store.create(name, b"once")
            await _each_kind(store, next(names))
        assert len(refused) == 1
        assert caplog.text.count("refuses requests that this broker signs itself") == 1
        assert await store.read(name) == b"once"
        await store.close()


@pytest.mark.service
async def test_a_get_that_is_refused_is_botocores_at_once(s3: S3Service, names: Iterator[str]) -> None:
    async def refuse(exchange: Exchange) -> None:
        await (through if _is_botocores(exchange) else answers(400, "AuthorizationHeaderMalformed"))(exchange)

    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await store.create(name := next(names), b"0123")
        proxy.inject(refuse)
        assert await store.read(name, 1, 3) == b"12"
        assert await store.list("o/") == [name]
        assert len(proxy.methods) == 3
        await store.close()


@pytest.mark.service
async def test_a_refusal_that_botocore_gets_too_is_an_error(s3: S3Service, names: Iterator[str]) -> None:
    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await store.list("o/")
        proxy.inject(answers(403, "AccessDenied"))
        for act in (store.create(next(names), b""), store.list("o/"), store.read("o", 0, 1)):
            with pytest.raises(StoreUnavailable) as error:
                await act
            assert error.value.fields["code"] == "AccessDenied"
        assert privates.signed(privates.bucket(store)).place
        await store.close()


@pytest.mark.service
async def test_a_good_status_with_an_error_in_the_body_is_no_answer(s3: S3Service, names: Iterator[str]) -> None:
    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await store.list("o/")
        for fault in (answers(200, "InternalError"), _with_body(200, b"cut <off")):
            proxy.inject(fault, times=1)
            with pytest.raises(StoreUnavailable, match="answered 500"):
                await store.create(next(names), b"not stored")
            assert proxy.methods == ["PUT"]
        assert privates.signed(privates.bucket(store)).place
        await store.close()


@pytest.mark.service
async def test_a_message_in_no_known_encoding_is_an_error_all_the_same(s3: S3Service, names: Iterator[str]) -> None:
    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await store.list("o/")
        proxy.inject(_with_body(503, b"<Error><Code>Slow\xff</Code><Message>\xe9</Message></Error>"))
        with pytest.raises(StoreUnavailable, match="answered 503"):
            await store.create(next(names), b"")
        await store.close()


@pytest.mark.service
async def test_a_request_damaged_on_its_way_says_nothing_about_signatures(s3: S3Service, names: Iterator[str]) -> None:
    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        await store.list("o/")
        proxy.inject(answers(400, "RequestTimeout"), times=1)
        with pytest.raises(StoreUnavailable):
            await store.create(name := next(names), b"once")
        assert await store.create(name, b"once")
        assert privates.signed(privates.bucket(store)).place
        await store.close()


@pytest.mark.service
@pytest.mark.parametrize("part", ["_request_signer", "_endpoint"])
async def test_without_the_private_parts_of_botocore_it_makes_all_requests(
    s3: S3Service, names: Iterator[str], part: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Newer:
        """Its client, where one part has another name."""

        def __init__(self, client: object) -> None:
            self._client = client

        def __getattr__(self, name: str) -> object:
            if name == part:
                raise AttributeError(name)
            return getattr(self._client, name)

    store = S3Store(f"s3://{s3.place()}/below", s3.endpoint)
    await store.list("o/")
    signed = privates.signed(privates.bucket(store))
    send = signed.send
    with mock.patch.object(signed, "send", lambda client, *asked: send(Newer(client), *asked)):
        assert await store.create(name := next(names), b"0123")
        assert await store.read(name, 1, 3) == b"12"
    assert signed.place is None
    assert caplog.text.count("so from now on botocore sends all S3 requests") == 1
    await store.close()


def test_a_request_that_is_not_as_expected_is_botocores_alone() -> None:
    signed = SignedRequests()
    signed.learn_place(SimpleNamespace(url="http://[bad"), "s3", "r", "s3v4", "PutObject")
    assert signed.learnt is None


async def test_refused_puts_that_never_come_again_take_bounded_memory() -> None:
    place = PLACES[0]
    signed = SignedRequests()
    signed.place = place

    async def refuse(_: object) -> SimpleNamespace:
        return SimpleNamespace(status_code=403, content=_refusal(), headers={})

    async def _refusal() -> bytes:
        return b"<Error><Code>AccessDenied</Code></Error>"

    async def frozen() -> Credentials:
        return Credentials("a", "b")

    client = SimpleNamespace(
        _request_signer=SimpleNamespace(_credentials=SimpleNamespace(get_frozen_credentials=frozen)),
        _endpoint=SimpleNamespace(http_session=SimpleNamespace(send=refuse)),
    )
    for number in range(2 * MOST_REFUSED):
        with pytest.raises(ErrorAnswer):
            await signed.send(client, "PUT", f"k/{number}", {}, {}, b"")
    assert len(signed._refused) <= MOST_REFUSED


def _with_body(status: int, body: bytes) -> Fault:
    async def fault(exchange: Exchange) -> None:
        exchange.client.write(f"HTTP/1.1 {status} Is\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    return fault


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
    monkeypatch.setattr(store, "_until_s", asyncio.get_running_loop().time())
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
