"""Uploads of a client and messages by reference, against a fake store: in order with the rest, by itself above the
limit, put again, aborted, and secret URLs.
"""

import asyncio
import hashlib
import io
import json
import logging
import threading
from random import Random

import httpx
import pytest

from seaweedq import AsyncClient
from seaweedq.errors import (
    ClientError,
    ConnectionFailed,
    InvalidMessages,
    MessageTooLarge,
    TopicNotFound,
    UploadExpired,
    UploadMismatch,
    UploadNotFound,
)
from seaweedq.segments.keyrange import hash_key
from tests.support.client.fake_store import SECRET, problem, xml

MIB = 1024 * 1024


def _cut_short(store):
    """What was published, payloads as their bytes."""
    return [
        store.objects[line["reference"]["upload_id"]] if "reference" in line else line["value"]
        for line in store.messages
    ]


def test_a_file_keeps_its_place_among_the_messages_and_what_follows_waits(store, payload_client, tmp_path):
    gate = threading.Event()
    store.faults["PUT", "u0"] = [lambda _: gate.wait(30) and None]
    (tmp_path / "a.json").write_bytes(b"[1]")
    with payload_client.producer("t") as producer:
        first = producer.send("before")
        file = producer.send_file(tmp_path / "a.json", key="k", headers={"h": "x"})
        last = producer.send("after")
        assert first.result(30) == "0-0"
        assert not file.done()
        assert not last.done()
        gate.set()
        assert [file.result(30), last.result(30)] == ["0-1", "0-2"]
    assert _cut_short(store) == ["before", b"[1]", "after"]
    assert store.messages[1] == {"reference": {"upload_id": "u0"}, "key": "k", "headers": {"h": "x"}}
    assert store.uploads["u0"]["content_type"] == "application/json"
    sequences = [int(r.headers["producer-sequence"]) for r in store.requests if "producer-sequence" in r.headers]
    assert sequences == [0, 1, 2]


def test_files_upload_at_the_same_time_and_are_published_in_order(store, payload_client, tmp_path):
    meet = threading.Barrier(2)

    def wait(_):
        meet.wait(30)

    store.faults["PUT", "u0"] = [wait]
    store.faults["PUT", "u1"] = [wait]
    paths = [tmp_path / name for name in "abc"]
    with payload_client.producer("t") as producer:
        for path in paths:
            path.write_text(path.name)
            producer.send_file(path)
    assert _cut_short(store) == [b"a", b"b", b"c"]
    assert store.uploads["u0"]["content_type"] == "application/octet-stream"


def test_a_file_that_fails_takes_none_of_the_others_with_it(store, payload_client, tmp_path):
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text(path.name)
    with pytest.raises(FileNotFoundError):
        payload_client.producer("t").send_file(tmp_path / "none")
    producer = payload_client.producer("t")
    store.faults["PUT", "u0"] = [lambda _: xml(400, "BadDigest")]
    bad, good = producer.send_file(paths[0]), producer.send("good")
    assert isinstance(bad.exception(30), UploadMismatch)
    assert good.result(30) == "0-0"
    with pytest.raises(UploadMismatch):
        producer.close()
    assert store.uploads["u0"]["state"] == "removed"


def test_a_file_gone_before_its_turn_is_in_its_receipt_and_hides_no_error(store, payload_client, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    sent = threading.Event()

    def unlink(_):
        assert sent.wait(30)
        (tmp_path / "b").unlink()

    store.faults["PUT", "u0"] = [unlink]
    with pytest.raises(KeyError) as raised:
        _send_and_stumble(payload_client, tmp_path, sent)
    assert "No such file" in raised.value.__notes__[0]
    assert _cut_short(store) == [b"a"]


def _send_and_stumble(client, folder, sent):
    (folder / "b").write_bytes(b"b")
    with client.producer("t") as producer:
        producer._uploads._threads.update(threading.Thread() for _ in range(3))  # one at a time
        receipts = [producer.send_file(folder / name) for name in "ab"]
        sent.set()
        assert isinstance(receipts[1].exception(30), FileNotFoundError)
        raise KeyError("mine")


def test_an_upload_whose_message_is_refused_is_aborted(store, payload_client, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    store.faults["POST", "/messages"] = [lambda _: problem(404, "topic-not-found")]
    producer = payload_client.producer("t")
    assert isinstance(producer.send_file(tmp_path / "a").exception(30), TopicNotFound)
    with pytest.raises(TopicNotFound):
        producer.close()
    assert store.uploads["u0"]["state"] == "removed"


def test_a_value_above_the_limit_goes_by_reference_and_keeps_its_key(store, payload_client):
    store.topic["key_field"] = "k"
    large = {"k": 7, "text": "x" * MIB}
    with payload_client.producer("t") as producer:
        producer.send({"k": 7, "n": 0})
        producer.send(large, headers={"h": "x"}, expires_in_s=9)
        producer.send({"k": 7, "n": 1})
    assert [len(line) for line in store.messages] == [1, 4, 1]
    assert {"key": "7", "headers": {"h": "x"}, "expires_in_s": 9.0}.items() <= store.messages[1].items()
    assert json.loads(_cut_short(store)[1]) == large
    assert store.uploads["u0"]["content_type"] == "application/json"


def test_the_limit_counts_the_value_alone(store, payload_client):
    store.limit_bytes = 200
    with payload_client.producer("t", max_message_bytes=200) as producer:
        producer.send("x" * 198, headers={"h": "y" * 500})
        producer.send("x" * 199)
    assert ["reference" in line for line in store.messages] == [False, True]


def test_bytes_go_as_they_are(store, payload_client):
    with payload_client.producer("t", max_message_bytes=1000) as producer:
        producer.send(b"\0" * 1000)
        producer.send(b"\0" * 1001)
    assert store.objects["u0"] == b"\0" * 1001
    assert ["reference" in line for line in store.messages] == [False, True]
    assert store.uploads["u0"]["content_type"] == "application/octet-stream"


def test_a_smaller_limit_is_learned_from_the_broker(store, payload_client):
    store.limit_bytes = 500
    with payload_client.producer("t", linger_ms=10_000) as producer:
        receipts = [producer.send(value) for value in ("a", "b" * 600, "c", "d" * 700)]
        producer.flush()
        assert [receipt.result() for receipt in receipts] == ["0-0", "0-1", "0-2", "0-3"]
        assert store.asked("POST", "/messages") == 2
        producer.send("e" * 600)
    assert store.asked("POST", "/messages") == 3
    assert ["reference" in line for line in store.messages] == [False, True, False, True, True]
    sequences = [int(r.headers["producer-sequence"]) for r in store.requests if "producer-sequence" in r.headers]
    assert sequences == [0, 0, 4]


def test_a_refused_message_keeps_its_reason_if_an_upload_of_another_fails(store, payload_client):
    store.limit_bytes = 500
    invalid = problem(422, "invalid-messages", errors=[{"index": 0, "reason": "no"}], invalid=1)
    store.faults["POST", "/messages"] = [lambda _: invalid]
    store.faults["POST", "/uploads"] = [lambda _: problem(404, "topic-not-found")]
    producer = payload_client.producer("t", linger_ms=10_000)
    receipts = [producer.send(value) for value in ("a", "b" * 600, "c")]
    with pytest.raises(InvalidMessages):
        producer.close()
    assert [type(each.exception()) for each in receipts] == [InvalidMessages, TopicNotFound, TopicNotFound]
    assert not store.messages


def test_a_key_that_is_too_large_is_no_matter_for_an_upload(store, payload_client):
    store.faults["POST", "/messages"] = [lambda _: problem(413, "message-too-large", limit_bytes=500, index=0)]
    with pytest.raises(MessageTooLarge), payload_client.producer("t") as producer:
        producer.send("a", key="k" * 600)
    assert not store.uploads


def test_a_typed_topic_takes_no_references_and_judges_by_itself(store, payload_client):
    store.topic["format"] = "typed"
    with pytest.raises(MessageTooLarge), payload_client.producer("t") as producer:
        producer.send({"a": "x" * (2 * MIB)})
    assert not store.uploads


def test_another_topic_of_the_same_name_has_its_own_rule(store, payload_client):
    store.topic["key_field"] = "a"
    large = {"a": "1", "b": "2", "text": "x" * MIB}
    producer = payload_client.producer("t")
    producer.send(large).result(30)
    store.topic["key_field"] = "b"
    producer.send(large).result(30)
    assert [line["key"] for line in store.messages] == ["1", "2"]
    store.topic["format"] = "typed"
    assert isinstance(producer.send(large).exception(30), MessageTooLarge)
    with pytest.raises(MessageTooLarge):
        producer.close()
    assert len(store.uploads) == 2


def test_a_place_is_in_the_stream_of_its_key():
    from seaweedq.client.core.batching import Limits, SentLine
    from seaweedq.client.core.segment_map import KeyRule, Segment, SegmentMap
    from seaweedq.client.core.streams import Partitioner

    partition = Partitioner(Limits(linger_ms=0), object, iter("abcdefgh").__next__)
    halves = [Segment(n, n << 30, (n + 1) << 30, "open", f"b{n}", f"http://b{n}") for n in (0, 1)]
    partition.follow(SegmentMap(tuple(halves)), KeyRule("k"))
    low, high = (next(k for k in map(str, range(99)) if hash_key(k) >> 30 == half) for half in (0, 1))
    held = partition.hold(None, b'{"value":{"k":"%s"}}' % low.encode(), 0.0)
    partition.add_line(low, b"1", 0.0)
    partition.add_line(high, b"2", 0.0)
    other, batch = partition.next_batch(1.0)
    assert batch.lines == [b"2"]
    partition.finish(other, batch)
    assert partition.ready_in_s(2.0) is None
    assert not partition.idle
    held.release(SentLine(b"3", "u0"), 50.0)
    for expected in (b"3", b"1"):
        stream, batch = partition.next_batch(51.0)
        assert batch.lines == [expected]
        assert batch.opened_s == 50.0, "patience begins anew"
        partition.finish(stream, batch)
    assert partition.idle
    assert partition.pending_bytes == 0


def test_an_interrupt_leaves_at_once_and_aborts_what_is_on_its_way(store, payload_client, tmp_path):
    began = threading.Event()

    def slow(_):
        began.set()

    store.part_bytes = MIB
    store.faults["POST", "/parts"] = [slow, *[lambda _: problem(503, "overloaded")] * 1000]
    (tmp_path / "a").write_bytes(b"x" * 5 * MIB)
    with pytest.raises(KeyboardInterrupt):
        _send_and_be_interrupted(payload_client, tmp_path / "a", began)
    assert store.uploads["u0"]["state"] == "removed"
    assert not store.messages


def _send_and_be_interrupted(client, path, began):
    with client.producer("t") as producer:
        producer.send_file(path)
        assert began.wait(30)
        raise KeyboardInterrupt


async def test_the_async_producer_does_the_same(store, tmp_path):
    (tmp_path / "a.json").write_bytes(b"[1]")
    async with AsyncClient("http://broker", transport=httpx.MockTransport(store.async_call)) as client:
        async with client.producer("t") as producer:
            receipts = [
                await producer.send("before"),
                await producer.send_file(tmp_path / "a.json"),
                await producer.send("x" * 2 * MIB),
                await producer.send("after"),
            ]
            assert await asyncio.gather(*(r.result() for r in receipts)) == ["0-0", "0-1", "0-2", "0-3"]
        assert [line[:9] for line in _cut_short(store)] == ["before", b"[1]", b'"xxxxxxxx', "after"]
        store.faults["PUT", "u2"] = [lambda _: xml(400, "BadDigest")]
        with pytest.raises(UploadMismatch):
            async with client.producer("t") as producer:
                await producer.send_file(tmp_path / "a.json")
        assert store.uploads["u2"]["state"] == "removed"


async def test_a_cancelled_upload_is_aborted(store, tmp_path):
    began = asyncio.Event()

    async def answer(request):
        if request.method == "PUT":
            began.set()
            await asyncio.sleep(60)
        return await store.async_call(request)

    async with AsyncClient("http://broker", transport=httpx.MockTransport(answer)) as client:
        task = asyncio.create_task(client.upload("t", b"data"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert store.uploads["u0"]["state"] == "removed"


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
