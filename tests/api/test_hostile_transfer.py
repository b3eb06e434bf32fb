"""Bodies that are too large, too slow, cut off or bombs; requests that are not HTTP; more than memory allows."""

import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pytest

from tests.support.http.asking import ARROW, NDJSON, fetch, problem_of
from tests.support.http.raw import answer_of, ask, connection, head
from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later

pytestmark = pytest.mark.process

LIMIT = 1 << 20
ENV = {"SEAWEEDQ_MAX_REQUEST_BYTES": str(LIMIT)}
FORKS = False  # its memory is looked at
JSON = {"content-type": "application/json"}
TYPE = "Content-Type: application/json"
MIB = 1 << 20
SMALL = gzip.compress(b'{"value":1}', mtime=0)  # the same bytes in all workers: they name the tests


@pytest.fixture(scope="module")
def hasty(broker_processes: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that waits a second for heads and bodies."""
    return broker_processes("--request-timeout-s", "1", "--head-timeout-s", "1")


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data))


def test_a_body_over_the_limit_is_refused_by_its_length_alone(topic: str, broker: BrokerProcess) -> None:
    for length in (LIMIT + 1, 10**15):
        for method, path in (("POST", f"{topic}/messages"), ("PUT", topic), ("PATCH", topic)):
            with connection(broker) as sock:
                sock.sendall(head(method, path, f"Content-Length: {length}"))
                found = problem_of(answer_of(sock), 413, "request-too-large", LIMIT, "upload")
                assert found["limit_bytes"] == LIMIT


def test_a_body_over_the_limit_is_refused_without_a_length(http: httpx.Client, topic: str) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield bytes(65_536)

    answer = http.post(f"{topic}/messages", content=endless(), headers=JSON)
    problem_of(answer, 413, "request-too-large", LIMIT)
    assert http.get(topic).status_code == 200  # on the same connection


def test_a_body_of_just_the_limit_is_taken(http: httpx.Client) -> None:
    http.put("/v1/topics/exact", json={"format": "bytes"})
    octets = {"content-type": "application/octet-stream"}
    assert http.post("/v1/topics/exact/messages", content=bytes(LIMIT), headers=octets).status_code == 200
    assert http.post("/v1/topics/exact/messages", content=iter([bytes(LIMIT)]), headers=octets).status_code == 200
    problem_of(
        http.post("/v1/topics/exact/messages", content=bytes(LIMIT + 1), headers=octets), 413, "request-too-large"
    )


def test_a_message_over_the_limit_is_named(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process("--max-message-bytes", "2048")
    with httpx.Client(base_url=broker.url, timeout=30, trust_env=False) as http:
        text = "x" * 2100
        for body in ({"value": text}, {"value": 1, "key": text}, {"value": 1, "headers": {"a": text}}):
            for messages in (body, {"messages": [{"value": 1}, body]}):
                answer = http.post("/v1/topics/t/messages", json=messages)
                found = problem_of(answer, 413, "message-too-large", 2048, "upload")
                assert found["limit_bytes"] == 2048
                assert found["index"] == (0 if messages is body else 1)
        assert http.get("/v1/topics").json() == {"topics": []}


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("zstd", zstd)])
def test_bombs_are_stopped_at_the_limit(
    http: httpx.Client, topic: str, encoding: str, encode: Callable[[bytes], bytes], broker: BrokerProcess
) -> None:
    bomb = encode(bytes(256 * MIB))
    assert len(bomb) < LIMIT
    assert broker.process
    process = psutil.Process(broker.process.pid)
    before = process.memory_info().rss
    for kind in ("application/json", NDJSON, ARROW):
        answer = http.post(
            f"{topic}/messages", content=bomb, headers={"content-type": kind, "content-encoding": encoding}
        )
        problem_of(answer, 413, "request-too-large", LIMIT)
    for method, path in (("PUT", topic), ("PATCH", topic), ("PUT", f"{topic}/subscriptions/s")):
        answer = http.request(method, path, content=bomb, headers={**JSON, "content-encoding": encoding})
        problem_of(answer, 413, "request-too-large", LIMIT)
    assert process.memory_info().rss - before < 128 * MIB


WINDOW_OF_2_GIB = b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b'{"value":1}'),
        ("gzip", b""),
        ("gzip", SMALL[:-9]),
        ("gzip", SMALL + b"\xff\xff"),
        ("zstd", b'{"value":1}'),
        ("zstd", b""),
        ("zstd", zstd(b'{"value":1}')[:-3]),
        ("zstd", SMALL),
        ("zstd", WINDOW_OF_2_GIB),
    ],
)
def test_encodings_that_are_damaged(http: httpx.Client, topic: str, encoding: str, body: bytes) -> None:
    answer = http.post(f"{topic}/messages", content=body, headers={**JSON, "content-encoding": encoding})
    problem_of(answer, 400, "unreadable-body")
    assert fetch(http, topic)["next_offset"] == 0


@pytest.mark.parametrize("lines", [["br"], ["gzip, gzip"], ["gzip", "zstd"], ["deflate"], ["x" * 1000], ["gzip;q=1"]])
def test_encodings_that_are_unknown(topic: str, broker: BrokerProcess, lines: list[str]) -> None:
    headers = [f"Content-Encoding: {line}" for line in lines]
    answer = ask(broker, "POST", f"{topic}/messages", TYPE, *headers, body=SMALL)
    found = problem_of(answer, 415, "unsupported-encoding", lines[0][:50])
    assert found["supported"] == ["gzip", "zstd"]


def test_a_slow_body_gets_408(hasty: BrokerProcess) -> None:
    for lines in (["Content-Length: 100"], ["Transfer-Encoding: chunked"]):
        for method, path in (("POST", "/v1/topics/t/messages"), ("PUT", "/v1/topics/t")):
            with connection(hasty) as sock:
                began = time.monotonic()
                sock.sendall(head(method, path, TYPE, *lines))
                answer = answer_of(sock)
                assert 0.9 < time.monotonic() - began < 20
                problem_of(answer, 408, "request-timeout", "request_timeout_s=1")
                assert answer.headers["connection"] == "close"
                assert sock.recv(1) == b""


def test_a_body_that_trickles_gets_408_too(hasty: BrokerProcess) -> None:
    with connection(hasty) as sock:
        began = time.monotonic()
        sock.sendall(head("POST", "/v1/topics/t/messages", TYPE, "Content-Length: 1000"))
        sock.settimeout(0.2)
        while time.monotonic() - began < 20:
            sock.sendall(b" ")
            try:
                answer = answer_of(sock)
            except TimeoutError:
                continue
            break
        problem_of(answer, 408, "request-timeout")
        assert time.monotonic() - began < 20


def held(http: httpx.Client) -> float:
    """Bytes that requests in flight hold."""
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("seaweedq_request_bytes "))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_body_that_is_cut_off_is_not_stored(http: httpx.Client, topic: str, broker: BrokerProcess) -> None:
    line = b'{"value":1}\n'
    chunk = b"%x\r\n%b\r\n" % (len(line), line)
    for lines, sent in ((f"Content-Length: {2 * len(line)}", line), ("Transfer-Encoding: chunked", chunk)):
        for _ in range(5):
            with connection(broker) as sock:
                sock.sendall(head("POST", f"{topic}/messages", f"Content-Type: {NDJSON}", lines) + sent)
                until(lambda: held(http) > 0)
            until(lambda: held(http) == 0)
    assert fetch(http, topic)["next_offset"] == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b"BREW /v1/topics HTTP/1.1\r\n\r\n",
        b"GET /v1/topics/\xff HTTP/1.1\r\n\r\n",
        b"GET /v1/topics/a b HTTP/1.1\r\n\r\n",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /v1/topics HTTP/1.1\r\nBad\x00Name: 1\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_problem_too(broker: BrokerProcess, request_bytes: bytes) -> None:
    with connection(broker) as sock:
        sock.sendall(request_bytes)
        problem_of(answer_of(sock), 400, "unreadable-request")


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, chunked", "chunked, chunked", "x"])
def test_transfer_codings_other_than_chunked_are_refused(
    broker: BrokerProcess, http: httpx.Client, octets: str, coding: str
) -> None:
    """The content would be stored in a coding that nobody knows of."""
    with connection(broker) as sock:
        lines = ("Content-Type: application/octet-stream", f"Transfer-Encoding: {coding}")
        sock.sendall(head("POST", f"{octets}/messages", *lines) + b"3\r\nabc\r\n0\r\n\r\n")
        answer = answer_of(sock)
        problem_of(answer, 400, "unreadable-request")
        assert answer.headers["connection"] == "close"
    assert fetch(http, octets)["next_offset"] == 0


def test_a_stream_in_http_1_0_has_no_chunks(broker: BrokerProcess, http: httpx.Client, topic: str) -> None:
    """It ends with its connection."""
    http.post(f"{topic}/messages", json={"value": 17})
    with connection(broker) as sock:
        sock.sendall(f"GET {topic}/stream?start=earliest HTTP/1.0\r\n\r\n".encode())
        data = b""
        while b'"value":17' not in data:
            data += (more := sock.recv(65536))
            assert more
    start, _, content = data.partition(b"\r\n\r\n")
    assert b"200 OK" in start
    assert b"chunked" not in start.lower()
    assert b"connection: close" in start.lower()
    assert content.startswith(b"retry: ")


def test_heads_are_bounded(broker: BrokerProcess, http: httpx.Client) -> None:
    for start in (b"GET /", b"GET /healthz HTTP/1.1\r\nX: ", b"GET /healthz HTTP/1.1\r\n"):
        with connection(broker) as sock:
            sock.sendall(start)
            more = b"a: b\r\n" * 10_000 if start.endswith(b"\n") else b"x" * 60_000
            with pytest.raises(OSError, match=r"reset|pipe"):
                sock.sendall(more * 1000)
    assert http.get("/healthz", headers={"x": "y" * 30_000}).status_code == 200


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTTP/1.1\r\nX: "])
def test_heads_that_do_not_come_end_the_connection(hasty: BrokerProcess, start: bytes) -> None:
    with connection(hasty) as sock:
        sock.sendall(start)
        assert sock.recv(1) == b""


def test_a_connection_outlives_the_time_of_a_head(hasty: BrokerProcess) -> None:
    with connection(hasty) as sock:
        for _ in range(3):
            sock.sendall(head("GET", "/healthz"))
            assert answer_of(sock).status_code == 200
            time.sleep(0.5)


BIG = 8 * MIB
SENDERS = 60


@pytest.mark.parametrize("chunked", [False, later(True)])
def test_more_requests_than_memory_are_sent_away(broker_process: Callable[..., BrokerProcess], chunked: bool) -> None:
    broker = broker_process("--memory-budget-bytes", str(64 * MIB), "--max-message-bytes", str(BIG))
    assert broker.process
    process, peak, done = psutil.Process(broker.process.pid), 0, threading.Event()
    noise = np.random.default_rng(1).bytes(BIG)
    kind = {"content-type": "application/octet-stream"}

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    def publish(_: int) -> httpx.Response:
        content = (noise[at : at + 65_536] for at in range(0, BIG, 65_536)) if chunked else noise
        with httpx.Client(base_url=broker.url, trust_env=False, timeout=120) as http:
            return http.post("/v1/topics/t/messages", content=content, headers=kind)

    with httpx.Client(base_url=broker.url, trust_env=False, timeout=60) as http:
        http.put("/v1/topics/t", json={"format": "bytes"})
        with ThreadPoolExecutor(SENDERS) as pool:
            watcher = threading.Thread(target=watch)
            watcher.start()
            answers = list(pool.map(publish, range(SENDERS)))
            done.set()
            watcher.join()
        seen = Counter(answer.status_code for answer in answers)
        assert set(seen) == {200, 503}
        for answer in answers:
            if answer.status_code == 503:
                assert problem_of(answer, 503, "overloaded", 64 * MIB)["budget_bytes"] == 64 * MIB
        assert peak < 450 * MIB, f"{peak >> 20} MiB of {SENDERS * BIG >> 20} that were sent"
        until(lambda: publish(0).status_code == 200)
        assert http.get("/v1/topics/t").json()["messages"] == seen[200] + 1
    assert broker.ready()
    assert "Traceback" not in broker.log
