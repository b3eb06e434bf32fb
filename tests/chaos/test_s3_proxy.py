"""Each rule of the proxy, in front of a real S3 server, by what a client is told and by what the store then holds."""

import asyncio
import random
from contextlib import closing

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from tests.support.chaos.s3_proxy import Rule, S3Proxy
from tests.support.chaos.store_server import client, store_server
from tests.support.processes.tcp_proxy import LoopThread

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with store_server("moto", tmp_path_factory.mktemp("proxied") / "store") as server:
        yield server


@pytest.fixture
def link(server):
    thread = LoopThread()
    with closing(thread):
        proxy = S3Proxy(thread, server.service.endpoint, random.Random(1)).start()
        yield proxy
        proxy.stop()


@pytest.fixture
def there(server):
    """What the store holds, asked without the proxy."""
    s3 = client(server.service.endpoint)

    def objects():
        keys = [found["Key"] for found in s3.list_objects_v2(Bucket=server.bucket).get("Contents", [])]
        return {key: s3.get_object(Bucket=server.bucket, Key=key)["Body"].read() for key in keys}

    for key in objects():
        s3.delete_object(Bucket=server.bucket, Key=key)
    return objects


@pytest.fixture
def s3(link, server):
    s3 = client(link.url)
    s3.bucket = server.bucket
    return s3


def create(s3, key, body=b"content"):
    return s3.put_object(Bucket=s3.bucket, Key=key, Body=body, IfNoneMatch="*")


def status_of(error):
    return error.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_without_rules_it_carries_puts_reads_lists_and_deletes(link, s3, there):
    big = random.Random(0).randbytes(3_000_000)
    create(s3, "a/b", big)
    assert s3.get_object(Bucket=s3.bucket, Key="a/b")["Body"].read() == big
    assert s3.get_object(Bucket=s3.bucket, Key="a/b", Range="bytes=5-9")["Body"].read() == big[5:10]
    assert s3.head_object(Bucket=s3.bucket, Key="a/b")["ContentLength"] == len(big)
    with pytest.raises(ClientError) as error:
        create(s3, "a/b")
    assert status_of(error) == 412
    s3.delete_object(Bucket=s3.bucket, Key="a/b")
    assert there() == {}
    assert [done.status for done in link.log] == [200, 200, 206, 200, 412, 204]


def test_requests_come_through_byte_for_byte(link, server):
    request = (
        b"PUT /b/x%20y HTTP/1.1\r\nHoSt: elsewhere:1\r\nx-Odd:  two  spaces \r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: t\r\n\r\n"
    )
    heard = link.thread.run(_relayed(link, request))
    assert heard == request


async def _relayed(link, request):
    """What a server in the place of the real one receives."""
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader, writer):
        heard.set_result(await reader.readexactly(len(request)))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as fake:
        link.target = fake.sockets[0].getsockname()
        _, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(request)
        found = await asyncio.wait_for(heard, 15)
        writer.close()
    return found


@pytest.mark.parametrize("status", [500, 503, 409])
def test_an_error_comes_before_it_happened(link, s3, there, status):
    link.add(Rule("error", status=status, count=1))
    with pytest.raises(ClientError) as error:
        create(s3, "a")
    assert status_of(error) == status
    assert there() == {}
    create(s3, "a")


def test_a_dropped_answer_is_a_reset_after_it_happened(link, s3, there):
    link.add(Rule("drop_answer", count=1))
    with pytest.raises(HTTPClientError):
        create(s3, "a")
    assert there() == {"a": b"content"}


def test_a_put_made_twice_is_told_412(link, s3, there):
    link.add(Rule("twice", count=1))
    with pytest.raises(ClientError) as error:
        create(s3, "a")
    assert status_of(error) == 412
    assert there() == {"a": b"content"}


def test_a_late_put_happens_when_it_is_let(link, s3, there):
    link.add(Rule("late", count=1, seconds=60))
    with pytest.raises(HTTPClientError):
        create(s3, "a", b"late")
    assert there() == {}
    assert link.deliver() == 1
    assert there() == {"a": b"late"}


def test_a_late_put_comes_too_late_where_the_name_is_taken(link, s3, there):
    link.add(Rule("late", count=1, seconds=60))
    with pytest.raises(HTTPClientError):
        create(s3, "a", b"late")
    create(s3, "a", b"first")
    link.heal()
    link.deliver()
    assert there() == {"a": b"first"}
    assert [(done.action, done.status) for done in link.log] == [("late", 0), (None, 200), ("late", 412)]


def test_a_read_that_is_cut_short_is_an_error(link, s3, there):
    create(s3, "a", b"x" * 1000)
    link.add(Rule("cut_read", method="GET", path="/a$", count=1))
    with pytest.raises(HTTPClientError):
        s3.get_object(Bucket=s3.bucket, Key="a")["Body"].read()
    assert s3.get_object(Bucket=s3.bucket, Key="a")["Body"].read() == b"x" * 1000


def test_a_flipped_read_has_one_other_bit(link, s3, there):
    body = bytes(1000)
    create(s3, "a", body)
    link.add(Rule("flip_read", method="GET", path="/a$", count=1))
    got = s3.get_object(Bucket=s3.bucket, Key="a", ChecksumMode="DISABLED")["Body"].read()
    assert len(got) == 1000
    assert sum(byte.bit_count() for byte in got) == 1


def test_rules_choose_by_method_path_count_and_a_seeded_chance(link, s3, server):
    link.add(Rule("error", path="/rare", probability=0.5))
    outcomes = []
    for n in range(20):
        try:
            create(s3, f"rare{n}")
            outcomes.append(True)
        except ClientError:
            outcomes.append(False)
    assert 4 < sum(outcomes) < 16
    create(s3, "common")
    again = random.Random(1)
    assert outcomes == [again.random() >= 0.5 for _ in outcomes]


@pytest.mark.long
def test_a_hole_holds_requests_and_healing_brings_them_late(link, s3, there):
    link.cut("to")
    with pytest.raises(HTTPClientError):
        create(s3, "a")
    assert there() == {}
    link.heal()
    while not there():
        pass
    assert there() == {"a": b"content"}
