"""Payloads with a real broker on a folder: sent, read, through a broker that dies, on topics of each kind."""

import hashlib
import subprocess
import sys
import threading
from random import Random
from urllib.parse import urlsplit

import msgspec
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import InvalidMessages, PayloadTooLarge, UploadMismatch, UploadNotFound

pytestmark = pytest.mark.process

MIB = 1024 * 1024


@pytest.fixture
def film(tmp_path):
    """A file, and what it holds."""
    path = tmp_path / "film.mp4"
    path.write_bytes(Random(0).randbytes(3 * MIB + 7))
    return path, path.read_bytes()


def _read(message):
    with message.open() as file:
        return file.read()


def test_a_file_and_a_large_value_come_back_as_they_were(real_client, film, tmp_path):
    path, data = film
    large = {"k": "a", "text": "x" * (2 * MIB)}
    real_client.create_topic("films", key_field="k")
    with real_client.producer("films") as producer:
        producer.send({"k": "a", "n": 1})
        producer.send_file(path, key="a", headers={"h": "x"})
        producer.send(large)
        producer.send({"k": "a", "n": 2})
    messages = list(real_client.subscribe("films", "s", start="earliest", idle_timeout_s=1))
    assert [message.key for message in messages] == ["a"] * 4
    assert [message.value for message in messages] == [{"k": "a", "n": 1}, None, None, {"k": "a", "n": 2}]
    file, value = messages[1], messages[2]
    assert (file.headers, file.reference.size, file.reference.content_type) == ({"h": "x"}, len(data), "video/mp4")
    assert file.reference.sha256 == hashlib.sha256(data).hexdigest()
    assert _read(file) == data
    assert msgspec.json.decode(_read(value)) == large
    seen = []
    file.download(tmp_path / "out", lambda done, total: seen.append((done, total)))
    assert (tmp_path / "out").read_bytes() == data
    assert seen[-1] == (len(data), len(data))


def test_the_brokers_route_stands_in_for_a_url_that_is_dead(real_broker, real_client, film):
    real_client.create_topic("dead-urls")
    with real_client.producer("dead-urls") as producer:
        producer.send_file(film[0])
    message = real_client.fetch("dead-urls", 0, 0).messages[0]
    url = urlsplit(message.reference.url)
    for bad in (url._replace(query="expires=1&token=00").geturl(), url._replace(netloc="127.0.0.1:9").geturl()):
        message._wire.reference = msgspec.structs.replace(message.reference, url=bad)
        assert _read(message) == film[1]


def test_a_bytes_topic_takes_files_and_bytes_of_any_size(real_client, film):
    real_client.create_topic("octets-by-reference", format="bytes")
    with real_client.producer("octets-by-reference") as producer:
        producer.send(b"small")
        producer.send(b"\0" * (MIB + 1))
        producer.send_file(film[0])
    small, large, file = real_client.fetch("octets-by-reference", 0, 0).messages
    assert (small.value, small.reference) == (b"small", None)
    assert (large.value, large.reference.content_type) == (None, "application/octet-stream")
    assert [_read(each) for each in (small, large, file)] == [b"small", b"\0" * (MIB + 1), film[1]]


def test_what_is_below_send_file(real_client, film):
    real_client.create_topic("below")
    upload = real_client.upload("below", film[0])
    published = real_client.publish("below", [{"reference": {"upload_id": upload}, "key": "k"}, {"value": 1}])
    assert published.count == 2
    first, second = real_client.fetch("below", 0, 0).messages
    assert (first.key, _read(first), second.value) == ("k", film[1], 1)
    with pytest.raises(ValueError, match="reference"):
        real_client.publish("below", {"reference": {"upload_id": upload}, "value": 1})
    with pytest.raises(ValueError, match="upload_id"):
        real_client.publish("below", {"reference": upload})


def test_errors_say_what_is_wrong(real_client, film):
    real_client.create_topic("refusing", max_payload_bytes=1000)
    with pytest.raises(PayloadTooLarge) as raised:
        real_client.upload("refusing", film[0])
    assert raised.value.fields["limit_bytes"] == 1000
    bounds = {"max_message_bytes": 1024**2, "max_payload_bytes": 1000, "max_write_uploads": 100_000}
    assert real_client.topic("refusing")["bounds"] == bounds
    with pytest.raises(UploadNotFound):
        real_client.upload("refusing", b"x", upload_id="20260101-0-" + "0" * 32)
    fields = [{"id": 1, "name": "n", "required": False, "type": "string"}]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    real_client.create_topic("typed-refusing", format="typed", schema=schema)
    producer = real_client.producer("typed-refusing")
    receipt = producer.send_file(film[0])
    assert receipt.exception(30) is not None
    with pytest.raises(InvalidMessages):
        producer.close()


def test_a_file_that_changes_while_it_is_uploaded_is_not_published(real_client, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a" * (4 * MIB))
    real_client.create_topic("changing")

    def change(done, total):
        if done > 0:
            path.write_bytes(b"b" * (4 * MIB))

    with pytest.raises(UploadMismatch), real_client.producer("changing") as producer:
        producer.send_file(path, progress=change)
    assert real_client.topic("changing")["messages"] == 0


def test_a_first_value_that_is_large_makes_its_topic_as_any_other(real_client):
    with real_client.producer("made-by-a-large-one") as producer:
        producer.send("x" * (2 * MIB))
    message = real_client.fetch("made-by-a-large-one", 0, 0).messages[0]
    assert len(_read(message)) == 2 * MIB + 2


def test_read_table_shows_references_as_they_are(real_client, film):
    real_client.create_topic("tables-of-references")
    with real_client.producer("tables-of-references") as producer:
        producer.send_file(film[0])
        producer.flush()
        real_client.flush("tables-of-references")
        producer.send_file(film[0])
    rows = real_client.read_table("tables-of-references", live=True).to_pylist()
    assert [row["value"] for row in rows] == [None, None]
    assert {row["_reference"]["size"] for row in rows} == {len(film[1])}
    assert all(set(row["_reference"]) == {"uri", "size", "content_type", "sha256"} for row in rows)


def test_a_broker_that_dies_amid_uploads_loses_and_doubles_nothing(broker_process, tmp_path):
    broker = broker_process()
    paths = [tmp_path / f"{n}" for n in range(12)]
    for path in paths:
        path.write_bytes(path.name.encode() * (MIB + 1))
    with Client(broker.url) as client:
        client.create_topic("t")
        first = threading.Event()
        with client.producer("t") as producer:
            for path in paths:
                producer.send_file(path, progress=lambda done, total: first.set() if done else None)
                producer.send(int(path.name))
            assert first.wait(30)
            broker.kill()
            broker.start()
        found = client.fetch("t", 0, 0, limit=1000).messages
        assert [m.value for m in found[1::2]] == list(range(12))
        for number, message in enumerate(found[::2]):
            assert _read(message) == str(number).encode() * (MIB + 1)
        assert len(found) == 24


def test_a_program_that_forgets_to_close_still_sends_its_file(real_broker, real_client, film):
    real_client.create_topic("forgot-a-file")
    program = (
        "from seaweedq import Client; import sys; Client(sys.argv[1]).producer('forgot-a-file').send_file(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", program, real_broker.url, film[0]], check=True, timeout=60)
    assert _read(real_client.fetch("forgot-a-file", 0, 0).messages[0]) == film[1]


def test_a_reader_goes_on_where_it_was_when_its_broker_died(broker_process, tmp_path):
    broker = broker_process()
    path = tmp_path / "large"
    data = Random(0).randbytes(MIB) * 64
    path.write_bytes(data)
    with Client(broker.url) as client:
        client.create_topic("t")
        with client.producer("t") as producer:
            producer.send_file(path)
        message = client.fetch("t", 0, 0).messages[0]
        with message.open() as file:
            first = file.read(MIB)
            broker.kill()
            broker.start()
            assert first + file.read() == data


async def test_the_async_client_does_the_same(real_broker, film, tmp_path):
    async with AsyncClient(real_broker.url) as client:
        await client.create_topic("async-films")
        async with client.producer("async-films") as producer:
            await producer.send_file(film[0], key="k")
            await producer.send("x" * (2 * MIB))
        messages = []
        async for message in client.subscribe("async-films", "s", start="earliest", idle_timeout_s=1):
            messages.append(message)
            message.ack()
        async with messages[0].open() as payload:
            assert await payload.read() == film[1]
        await messages[0].download(tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == film[1]
        assert (messages[0].key, messages[1].reference.content_type) == ("k", "application/json")
        page = await client.fetch("async-films", 0, 1)
        async with page.messages[0].open() as payload:
            assert sum([len(piece) async for piece in payload]) == 2 * MIB + 2
