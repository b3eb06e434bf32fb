"""What a producer sends by reference, against a fake store: in order with the rest, by itself above the limit."""

import asyncio
import json
import threading

import httpx
import pytest

from seaweedq import AsyncClient
from seaweedq.errors import InvalidMessages, MessageTooLarge, TopicNotFound, UploadMismatch
from seaweedq.segments.keyhash import hash_key
from tests.support.client.fake_store import problem, xml

MIB = 1024 * 1024


def _cut_short(store):
    """What was published, payloads as their bytes."""
    return [
        store.objects[line["reference"]["upload_id"]] if "reference" in line else line["value"]
        for line in store.messages
    ]


def test_a_file_keeps_its_place_among_the_messages_and_what_follows_waits(store, payload_client, tmp_path):
    gate = threading.Event()
    store.faults["PUT", "u0"] = [lambda _: gate.wait(10) and None]
    (tmp_path / "a.json").write_bytes(b"[1]")
    with payload_client.producer("t") as producer:
        first = producer.send("before")
        file = producer.send_file(tmp_path / "a.json", key="k", headers={"h": "x"})
        last = producer.send("after")
        assert first.result(5) == "0-0"
        assert not file.done()
        assert not last.done()
        gate.set()
        assert [file.result(5), last.result(5)] == ["0-1", "0-2"]
    assert _cut_short(store) == ["before", b"[1]", "after"]
    assert store.messages[1] == {"reference": {"upload_id": "u0"}, "key": "k", "headers": {"h": "x"}}
    assert store.uploads["u0"]["content_type"] == "application/json"
    sequences = [int(r.headers["producer-sequence"]) for r in store.requests if "producer-sequence" in r.headers]
    assert sequences == [0, 1, 2]


def test_files_upload_at_the_same_time_and_are_published_in_order(store, payload_client, tmp_path):
    meet = threading.Barrier(2)

    def wait(_):
        meet.wait(10)

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
    assert isinstance(bad.exception(5), UploadMismatch)
    assert good.result(5) == "0-0"
    with pytest.raises(UploadMismatch):
        producer.close()
    assert store.uploads["u0"]["state"] == "removed"


def test_a_file_that_goes_before_its_turn_is_known_to_its_receipt_and_hides_no_error_of_the_user(
    store, payload_client, tmp_path
):
    (tmp_path / "a").write_bytes(b"a")
    sent = threading.Event()

    def unlink(_):
        assert sent.wait(10)
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
        assert isinstance(receipts[1].exception(5), FileNotFoundError)
        raise KeyError("mine")


def test_an_upload_whose_message_is_refused_is_aborted(store, payload_client, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    store.faults["POST", "/messages"] = [lambda _: problem(404, "topic-not-found")]
    producer = payload_client.producer("t")
    assert isinstance(producer.send_file(tmp_path / "a").exception(5), TopicNotFound)
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


def test_a_refused_message_keeps_its_own_reason_where_an_upload_of_another_fails(store, payload_client):
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
    producer.send(large).result(5)
    store.topic["key_field"] = "b"
    producer.send(large).result(5)
    assert [line["key"] for line in store.messages] == ["1", "2"]
    store.topic["format"] = "typed"
    assert isinstance(producer.send(large).exception(5), MessageTooLarge)
    with pytest.raises(MessageTooLarge):
        producer.close()
    assert len(store.uploads) == 2


def test_a_place_is_in_the_stream_of_its_key():
    from seaweedq.client.core.batching import Limits
    from seaweedq.client.core.offload import Sent
    from seaweedq.client.core.segment_map import KeyRule, Segment, SegmentMap
    from seaweedq.client.core.streams import Partition

    partition = Partition(Limits(linger_ms=0), object, iter("abcdefgh").__next__)
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
    held.release(Sent(b"3", "u0"), 50.0)
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
        assert began.wait(10)
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
