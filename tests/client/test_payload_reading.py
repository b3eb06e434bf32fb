"""How a payload comes back, against a fake store: its digest, cuts, a store that is gone, files that appear whole."""

import hashlib
import io
import json
import logging
from random import Random

import httpx
import pytest

from seaweedq import AsyncClient
from seaweedq.client.core.message import AsyncMessage, Message
from seaweedq.client.core.wire import decode_pull
from seaweedq.errors import ConnectionFailed, Damaged, PayloadNotFound
from tests.support import privates
from tests.support.client.fake_store import SECRET, Cut, FakeStore, problem, sends, xml

DATA = Random(0).randbytes(700_000)
OTHER_END = DATA[:-1] + bytes([DATA[-1] ^ 1])


def _refused(request):
    raise httpx.ConnectError("refused", request=request)


def _wire(store, **more):
    text = json.dumps({"messages": [store.message(0) | more]}).encode()
    return decode_pull(text).messages[0]


@pytest.fixture
def stored(store: FakeStore) -> FakeStore:
    """With a message 0 that has a payload of DATA."""
    facts = {"size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest(), "content_type": "text/plain"}
    store.uploads["u0"] = facts | {"state": "published"}
    store.objects["u0"] = DATA
    store.messages = [{"reference": {"upload_id": "u0"}}]
    return store


@pytest.fixture
def message(stored, payload_client) -> Message:
    """That message."""
    return privates.message(payload_client)("t")(_wire(stored), print)


def _hosts(store):
    return [request.url.host for request in store.requests]


def test_a_message_knows_its_payload_and_shows_no_secret(message, stored):
    found = message.reference
    assert (found.uri, found.size, found.content_type) == ("s3://b/u0", len(DATA), "text/plain")
    assert found.sha256 == hashlib.sha256(DATA).hexdigest()
    assert SECRET in found.url
    assert (message.value, message.raw) == (None, b"")
    assert SECRET not in repr(message) + repr(found)
    assert json.loads(message.json)["reference"]["url"] == found.url
    assert not stored.requests, "nothing is fetched that nobody asked for"


def test_it_is_read_from_the_store_in_any_way_a_file_is(message, stored):
    with message.open() as file:
        assert (file.read(10), file.read(), file.read()) == (DATA[:10], DATA[10:], b"")
    with message.open() as file:
        buffer = bytearray(1000)
        assert file.readinto(buffer) == 1000
        assert bytes(buffer) == DATA[:1000]
    with message.open() as file:
        assert b"".join(file) == DATA
    assert _hosts(stored) == ["store"] * 3
    assert "authorization" not in stored.requests[0].headers


def test_a_value_that_is_inline_can_be_opened_as_well(payload_client, stored, tmp_path):
    stored.messages = [{"value": {"a": 1}}]
    message = privates.message(payload_client)("t")(_wire(stored), print)
    assert message.reference is None
    assert message.open().read() == b'{"a": 1}'
    message.download(tmp_path / "value")
    assert (tmp_path / "value").read_bytes() == b'{"a": 1}'


def test_what_is_cut_off_goes_on_where_it_ended(message, stored):
    stored.faults["GET", "/u0"] = [
        lambda _: httpx.Response(200, stream=Cut(DATA[:300_000])),
        lambda _: httpx.Response(
            206, stream=Cut(DATA[300_000:500_000]), headers={"content-range": "bytes 300000-9/700000"}
        ),
    ]
    with message.open() as file:
        assert file.read() == DATA
    assert [request.headers.get("range") for request in stored.requests] == [None, "bytes=300000-", "bytes=500000-"]
    assert _hosts(stored) == ["store"] * 3


def test_a_store_that_knows_no_ranges_sends_it_all_again(message, stored):
    stored.faults["GET", "/u0"] = [
        lambda _: httpx.Response(200, stream=Cut(DATA[:300_000])),
        lambda _: sends(DATA),
    ]
    with message.open() as file:
        assert file.read() == DATA


@pytest.mark.parametrize(
    "fault",
    [
        lambda _: xml(403, "AccessDenied"),
        lambda _: httpx.Response(302, headers={"location": "http://elsewhere/"}),
        lambda _: sends(b"<html>a login page</html>"),
        lambda _: sends(DATA[5:], 206, **{"content-range": "bytes 5-9/700000"}),
        _refused,
    ],
)
def test_where_the_store_does_not_give_it_a_broker_does(message, stored, fault):
    stored.faults["GET", "/u0"] = [fault] * 9
    stored.faults["GET", "/payload"] = [
        lambda _: problem(503, "overloaded"),
        lambda _: httpx.Response(200, stream=Cut(DATA[:100_000])),
    ]
    with message.open() as file:
        assert file.read() == DATA
    assert _hosts(stored) == ["store", "broker", "broker", "broker"]
    assert stored.requests[-1].headers["range"] == "bytes=100000-"


def test_one_without_a_url_comes_through_a_broker(stored, payload_client):
    reference = stored.message(0)["reference"] | {"url": None}
    message = privates.message(payload_client)("t")(_wire(stored, reference=reference), print)
    with message.open() as file:
        assert file.read() == DATA
    assert _hosts(stored) == ["broker"]


@pytest.mark.parametrize("bad", [OTHER_END, DATA + b"more", DATA[:-1]])
def test_other_bytes_than_were_published_are_never_taken_for_them(message, stored, tmp_path, bad):
    stored.objects["u0"] = bad
    (tmp_path / "out").write_bytes(b"before")
    with message.open() as file, pytest.raises(Damaged, match="0-0"):
        file.read()
    got = []
    with message.open() as file:
        with pytest.raises(Damaged):
            got.extend(iter(lambda: file.read(1000), b""))
        with pytest.raises(Damaged):
            file.read(1)
    assert len(b"".join(got)) < len(DATA)
    with pytest.raises(Damaged):
        message.download(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"before"


def test_a_download_appears_whole(message, tmp_path):
    path, seen = tmp_path / "out", []

    def watch(done, total):
        assert not path.exists()
        seen.append((done, total))

    message.download(path, watch)
    assert path.read_bytes() == DATA
    assert seen[-1] == (len(DATA), len(DATA))
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_an_empty_payload_needs_no_request(message, stored, payload_client):
    empty = stored.message(0)["reference"] | {"size": 0, "sha256": hashlib.sha256().hexdigest()}
    made = privates.message(payload_client)("t")
    assert made(_wire(stored, reference=empty), print).open().read() == b""
    with pytest.raises(Damaged):
        made(_wire(stored, reference=empty | {"sha256": "0" * 64}), print).open().read()
    assert not stored.requests


def test_what_is_nowhere_is_said_clearly_and_without_secrets(message, stored, caplog):
    caplog.set_level(logging.DEBUG)
    stored.faults["GET", "/u0"] = [_refused] * 2
    stored.faults["GET", "/payload"] = [lambda _: problem(404, "payload-not-found"), *[_refused] * 1000]
    with pytest.raises(PayloadNotFound):
        message.open().read()
    with pytest.raises(ConnectionFailed) as raised:
        message.open().read()
    assert SECRET not in f"{raised.value} {raised.value.fields} {caplog.text}"


async def test_the_async_client_reads_the_same_way(stored, tmp_path):
    async with AsyncClient("http://broker", transport=httpx.MockTransport(stored.async_call)) as client:
        message: AsyncMessage = privates.message(client)("t")(_wire(stored), print)
        stored.faults["GET", "/u0"] = [lambda _: httpx.Response(200, stream=Cut(DATA[:300_000])), _refused]
        async with message.open() as payload:
            assert (await payload.read(10), await payload.read(), await payload.read()) == (DATA[:10], DATA[10:], b"")
        assert _hosts(stored) == ["store", "store", "broker"]
        async with message.open() as payload:
            assert await payload.read(7) == DATA[:7]
            assert b"".join([piece async for piece in payload]) == DATA[7:]
        async with message.open() as payload:
            assert len(await payload.read(1)) == 1  # and no more: the connection is given back
        await message.download(tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == DATA
        stored.objects["u0"] = OTHER_END
        async with message.open() as payload:
            for _ in range(2):
                with pytest.raises(Damaged):
                    await payload.read()
        with pytest.raises(Damaged):
            await message.download(tmp_path / "bad")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_pyarrow_reads_it_as_a_stream(stored, payload_client):
    import pyarrow as pa

    sink = io.BytesIO()
    table = pa.table({"n": list(range(1000))})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stored.objects["u0"] = data = sink.getvalue()
    reference = stored.message(0)["reference"] | {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    message = privates.message(payload_client)("t")(_wire(stored, reference=reference), print)
    with message.open() as file:
        assert pa.ipc.open_stream(file).read_all().equals(table)
