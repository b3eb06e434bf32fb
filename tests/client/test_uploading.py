"""How a client uploads, against a fake store: what is put again, what is aborted, and what nobody may see."""

import hashlib
import io
import logging
from random import Random

import httpx
import pytest

from seaweedq import AsyncClient
from seaweedq.errors import ClientError, ConnectionFailed, UploadExpired, UploadMismatch, UploadNotFound
from tests.support.client.fake_store import SECRET, problem, xml

MIB = 1024 * 1024


def _cut(request):
    raise httpx.WriteError("broken pipe", request=request)


def _refused(request):
    raise httpx.ConnectError("refused", request=request)


def test_bytes_go_to_the_store_and_what_is_announced_is_what_comes(store, payload_client):
    data = Random(0).randbytes(3 * MIB + 17)
    upload = payload_client.upload("t", data)
    assert store.objects[upload] == data
    said = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "content_type": "application/octet-stream"}
    assert said.items() <= store.uploads[upload].items()
    assert store.asked("POST", "/complete") == 1


def test_paths_files_and_nothing_at_all_are_uploaded(store, payload_client, tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"film")
    of_path = payload_client.upload("t", tmp_path / "film.mp4")
    with io.BytesIO(b"in memory") as file:
        of_file = payload_client.upload("t", file, "text/plain")
        assert not file.closed
    empty = payload_client.upload("t", b"")
    assert [store.objects[upload] for upload in (of_path, of_file, empty)] == [b"film", b"in memory", b""]
    assert [store.uploads[u]["content_type"] for u in (of_path, of_file)] == ["video/mp4", "text/plain"]
    with pytest.raises(FileNotFoundError):
        payload_client.upload("t", tmp_path / "none")


def test_a_put_that_is_cut_off_or_too_late_goes_again_with_a_fresh_url(store, payload_client):
    store.faults["PUT", "u0"] = [_cut, lambda _: xml(403, "AccessDenied"), lambda _: xml(503, "SlowDown")]
    assert store.objects[payload_client.upload("t", b"data")] == b"data"
    puts = [request.url.params["n"] for request in store.requests if request.method == "PUT"]
    assert puts == ["1", "2", "3", "4"]


def test_a_put_whose_answer_was_lost_is_found_to_be_there(store, payload_client):
    def lost(request):
        store.handle(request)
        raise httpx.ReadError("reset", request=request)

    store.faults["PUT", "u0"] = [lost]
    assert store.objects[payload_client.upload("t", b"data")] == b"data"
    assert len(store.put_paths()) == 2


def test_only_the_parts_that_are_missing_are_put_again(store, payload_client):
    store.part_bytes = MIB
    data = Random(0).randbytes(4 * MIB + 1)

    def forgets(request):
        del store.parts["u0", 3]

    store.faults["PUT", "u0/2"] = [_cut]
    store.faults["POST", "/complete"] = [forgets]
    seen = []
    upload = payload_client.upload("t", data, progress=lambda done, total: seen.append((done, total)))
    assert store.objects[upload] == data
    puts = sorted(store.put_paths())
    assert puts == ["/u0/1", "/u0/2", "/u0/2", "/u0/3", "/u0/3", "/u0/4", "/u0/5"]
    assert seen[-1] == (len(data), len(data))
    assert max(seen)[0] == len(data)


def test_an_upload_that_was_begun_goes_on_with_what_is_missing(store, payload_client):
    store.part_bytes = MIB
    data = Random(0).randbytes(3 * MIB)
    store.uploads["old"] = {
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "content_type": "a/b",
        "state": "open",
    }
    store.parts["old", 2] = data[MIB : 2 * MIB]
    store.parts["old", 3] = b"too short"
    assert payload_client.upload("t", data, upload_id="old") == "old"
    assert sorted(store.put_paths()) == ["/old/1", "/old/3"]
    assert store.objects["old"] == data
    with pytest.raises(UploadMismatch, match="created for"):
        payload_client.upload("t", data[1:], upload_id="old")
    with pytest.raises(UploadNotFound):
        payload_client.upload("t", data, upload_id="none")
    assert store.asked("DELETE", "/old") == 0


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda _: xml(400, "BadDigest"), UploadMismatch),
        (lambda _: problem(422, "upload-mismatch", field="sha256"), UploadMismatch),
    ],
)
def test_other_bytes_than_announced_fail_at_once_and_leave_nothing(store, payload_client, fault, error):
    store.faults["PUT", "u0"] = [fault] * 9
    with pytest.raises(error):
        payload_client.upload("t", b"data")
    assert store.uploads["u0"]["state"] == "removed"
    assert len(store.put_paths()) == 1


@pytest.mark.parametrize(("method", "end"), [("POST", "/complete"), ("GET", "/u0")])
def test_an_expired_upload_says_so(store, payload_client, method, end):
    store.faults["PUT", "u0"] = [lambda _: xml(403, "AccessDenied")]
    store.faults[method, end] = [lambda _: problem(410, "upload-expired")]
    with pytest.raises(UploadExpired):
        payload_client.upload("t", b"data")
    assert store.uploads["u0"]["state"] == "removed"


def test_a_file_that_becomes_shorter_meanwhile_is_no_payload(store, payload_client, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * MIB)

    def shorten(request):
        path.write_bytes(b"x")

    store.faults["POST", "/uploads"] = [shorten]
    with pytest.raises(UploadMismatch, match="changed"):
        payload_client.upload("t", path)
    assert store.uploads["u0"]["state"] == "removed"


@pytest.mark.parametrize("part_bytes", [None, MIB])
def test_an_interrupt_aborts_the_upload(store, payload_client, part_bytes):
    store.part_bytes = part_bytes

    def interrupt(done, total):
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        payload_client.upload("t", Random(0).randbytes(8 * MIB), progress=interrupt)
    assert store.uploads["u0"]["state"] == "removed"
    assert not store.objects


def test_a_store_that_never_takes_it_is_named_without_its_secret(store, payload_client, caplog):
    caplog.set_level(logging.DEBUG)
    store.faults["PUT", "u0"] = [lambda _: xml(500, "InternalError")] * 1000
    with pytest.raises(ClientError, match="http://store/u0 answered 500 InternalError") as raised:
        payload_client.upload("t", b"data")
    store.faults["PUT", "u1"] = [_refused] * 1000
    with pytest.raises(ConnectionFailed, match="http://store/u1") as unreachable:
        payload_client.upload("t", b"data")
    for error in (raised.value, unreachable.value):
        assert SECRET not in f"{error!r} {error} {error.fields} {error.__cause__!r}"
    assert "HTTP Request: PUT http://store/u0" in caplog.text
    assert SECRET not in caplog.text


def test_the_store_gets_what_was_signed_and_nothing_of_the_users(store, payload_client):
    payload_client.upload("t", b"data")
    for request in store.requests:
        assert ("authorization" in request.headers) == (request.url.host == "broker")


def test_a_brokers_own_url_is_tried_at_the_brokers_that_the_user_named(store):
    from seaweedq import Client

    def begun(request):
        return httpx.Response(
            201, json={"upload_id": "u0", "url": f"http://inside:1/v1/topics/t/uploads/u0/content?{SECRET}"}
        )

    def broker(request):
        if request.url.host == "inside":
            raise httpx.ConnectError("refused", request=request)
        request.read()
        return store.answer(request)

    def content(request):
        assert SECRET in request.url.query.decode()
        store.objects["u0"] = request.content
        return httpx.Response(201)

    store.uploads["u0"] = {"size": 4, "sha256": hashlib.sha256(b"data").hexdigest(), "state": "open"}
    store.faults["POST", "/uploads"] = [begun]
    store.faults["PUT", "/content"] = [content]
    with Client("http://broker", transport=httpx.MockTransport(broker)) as client:
        assert client.upload("t", b"data") == "u0"
    assert store.objects["u0"] == b"data"
    assert store.put_paths() == ["/v1/topics/t/uploads/u0/content"]


async def test_the_async_client_uploads_the_same_way(store):
    store.part_bytes = MIB
    data = Random(0).randbytes(4 * MIB + 1)
    store.faults["PUT", "u0/2"] = [_cut]
    async with AsyncClient("http://broker", transport=httpx.MockTransport(store.async_call)) as client:
        assert store.objects[await client.upload("t", data)] == data
        store.faults["PUT", "u1/2"] = [lambda _: xml(400, "BadDigest")]
        with pytest.raises(UploadMismatch):
            await client.upload("t", data)
    assert store.uploads["u1"]["state"] == "removed"
