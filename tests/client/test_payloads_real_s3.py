"""Payloads with a real broker on S3: presigned, in parts, gone on with, and a store that is out of reach."""

import hashlib
import logging
import subprocess
import sys
from random import Random
from urllib.parse import urlsplit

import httpx
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import ConnectionFailed, UploadNotFound

pytestmark = [pytest.mark.process, pytest.mark.service]

MIB = 1024 * 1024
SIZE = 17 * MIB + 5


@pytest.fixture(scope="module")
def s3_broker(broker_processes, moto_server):
    """A broker on moto, and moto; over 5 MiB uploads go in parts."""
    store = f"s3://{moto_server.place()}/prod"
    return broker_processes("--store", store, "--multipart-bytes", str(5 * MIB), env=moto_server.env), moto_server


@pytest.fixture
def big(tmp_path):
    """A file that goes in parts, and what it holds."""
    path = tmp_path / "big"
    path.write_bytes(Random(0).randbytes(SIZE))
    return path, path.read_bytes()


class Watched(httpx.HTTPTransport):
    """What goes to the store; `refuse` is asked of each request to it."""

    def __init__(self, store: str, refuse=lambda request: False) -> None:
        super().__init__()
        self._store, self._refuse = urlsplit(store).netloc, refuse
        self.seen: list[httpx.Request] = []

    def handle_request(self, request):
        if request.url.netloc.decode() == self._store:
            self.seen.append(request)
            if self._refuse(request):
                raise httpx.ConnectError("refused", request=request)
        return super().handle_request(request)

    def parts(self):
        """The numbers of the parts that were put."""
        return [int(request.url.params["partNumber"]) for request in self.seen if request.method == "PUT"]


def _read(message):
    with message.open() as file:
        return file.read()


def test_whole_and_in_parts_and_back_without_the_broker(s3_broker, big, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    broker, moto = s3_broker
    watched = Watched(moto.endpoint)
    (tmp_path / "small").write_bytes(b"small")
    with Client(broker.url, transport=watched, headers={"Authorization": "Bearer mine"}) as client:
        client.create_topic("both")
        with client.producer("both") as producer:
            producer.send_file(tmp_path / "small")
            producer.send_file(big[0])
        small, large = client.fetch("both", 0, 0).messages
        puts = [request for request in watched.seen if request.method == "PUT"]
        assert len(puts) > 2
        assert (_read(small), _read(large)) == (b"small", big[1])
        assert large.reference.sha256 == hashlib.sha256(big[1]).hexdigest()
        assert large.reference.uri.startswith("s3://")
        gets = [request for request in watched.seen if request.method == "GET"]
        assert len(gets) == 2
    assert not any("authorization" in request.headers for request in watched.seen)
    assert "HTTP Request: PUT" in caplog.text
    assert "Signature" not in caplog.text
    assert "Signature" not in broker.log


def test_an_upload_in_parts_goes_on_with_those_that_are_missing(s3_broker, big):
    broker, moto = s3_broker
    facts = {"size": SIZE, "sha256": hashlib.sha256(big[1]).hexdigest()}
    with Client(broker.url) as client:
        client.create_topic("resumed")
        began = httpx.post(f"{broker.url}/v1/topics/resumed/uploads", json=facts, timeout=30, trust_env=False).json()
        upload, parts = began["upload_id"], began["parts"]
        assert parts > 1
        refusing = Watched(moto.endpoint, lambda request: request.url.params["partNumber"] == "2")
        with Client(broker.url, transport=refusing, timeout_s=0.5) as first, pytest.raises(ConnectionFailed):
            first.upload("resumed", big[0], upload_id=upload)
        going_on = Watched(moto.endpoint)
        with Client(broker.url, transport=going_on) as second:
            assert second.upload("resumed", big[0], upload_id=upload) == upload
        assert 2 in going_on.parts()
        assert len(going_on.parts()) < parts or parts == 2
        client.publish("resumed", {"reference": {"upload_id": upload}})
        assert _read(client.fetch("resumed", 0, 0).messages[0]) == big[1]


def test_a_part_that_is_cut_off_goes_again_alone(s3_broker, big):
    broker, moto = s3_broker
    failures = [True, True]
    flaky = Watched(
        moto.endpoint, lambda r: r.url.params.get("partNumber") == "1" and bool(failures and failures.pop())
    )
    with Client(broker.url, transport=flaky) as client:
        client.create_topic("flaky")
        with client.producer("flaky") as producer:
            producer.send_file(big[0])
        assert _read(client.fetch("flaky", 0, 0).messages[0]) == big[1]
    assert flaky.parts().count(1) == 3
    assert all(flaky.parts().count(number) == 1 for number in set(flaky.parts()) - {1})


def test_without_the_store_brokers_give_bytes_and_an_upload_fails_clearly(s3_broker, big):
    broker, moto = s3_broker
    with Client(broker.url) as client:
        client.create_topic("behind")
        with client.producer("behind") as producer:
            producer.send_file(big[0])
        outside = Watched(moto.endpoint, lambda request: True)
        with Client(broker.url, transport=outside, timeout_s=0.5) as far:
            assert _read(far.fetch("behind", 0, 0).messages[0]) == big[1]
            assert len(outside.seen) == 1
            with pytest.raises(ConnectionFailed, match=moto.endpoint) as raised:
                far.upload("behind", big[0])
            assert "?" not in f"{raised.value} {raised.value.fields}"


def test_an_interrupted_upload_leaves_nothing_in_the_store(s3_broker, big):
    broker, _ = s3_broker
    ids = []

    def interrupt(done, total):
        if done > 6 * MIB:
            raise KeyboardInterrupt

    watched = Watched(broker.url)
    with Client(broker.url, transport=watched) as client:
        client.create_topic("interrupted")
        with pytest.raises(KeyboardInterrupt):
            client.upload("interrupted", big[0], progress=interrupt)
        ids = [request.url.path.rpartition("/")[2] for request in watched.seen if request.method == "DELETE"]
        assert len(ids) == 1
        with pytest.raises(UploadNotFound):
            client.upload("interrupted", big[0], upload_id=ids[0])


def test_a_program_that_forgets_to_close_still_sends_all_parts(s3_broker, big):
    with Client(s3_broker[0].url) as client:
        client.create_topic("forgot")
        program = (
            "from seaweedq import Client; import sys; Client(sys.argv[1]).producer('forgot').send_file(sys.argv[2])"
        )
        subprocess.run([sys.executable, "-c", program, s3_broker[0].url, str(big[0])], check=True, timeout=60)
        assert _read(client.fetch("forgot", 0, 0).messages[0]) == big[1]


async def test_the_async_client_in_parts(s3_broker, big, tmp_path):
    async with AsyncClient(s3_broker[0].url) as client:
        await client.create_topic("async-parts")
        async with client.producer("async-parts") as producer:
            await producer.send_file(big[0])
        message = (await client.fetch("async-parts", 0, 0)).messages[0]
        await message.download(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == big[1]


@pytest.mark.long
def test_the_clients_memory_does_not_grow_with_the_file(s3_broker, tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(96 * MIB)
    program = """
import resource, sys
from seaweedq import Client
with Client(sys.argv[1]) as client:
    client.create_topic("memory")
    with client.producer("memory") as producer:
        producer.send(1)
        producer.flush()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        producer.send_file(sys.argv[2])
    client.fetch("memory", 0, 1).messages[0].download(sys.argv[2] + ".out")
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    command = [sys.executable, "-c", program, s3_broker[0].url, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "large.out").stat().st_size == 96 * MIB
    assert int(done.stdout) < 40, f"{done.stdout} MiB"
