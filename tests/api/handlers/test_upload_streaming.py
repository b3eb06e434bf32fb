"""The bytes through a broker: streamed, cut off, stalled, refused early; and read in ranges."""

import hashlib
import json
import socket
import time
from contextlib import closing
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.http.uploading import BYTES, SHA256, begin, problem_of, put, uploaded

pytestmark = pytest.mark.process

ENV = {"SEAWEEDQ_REQUEST_TIMEOUT_S": "4"}
FORKS = False  # its memory is looked at
MIB = 1024 * 1024
LARGE = 256 * MIB
WITHIN_S = 30.0


def connected(upload, method="PUT", *headers):
    """A connection with the head of a request sent."""
    url = urlsplit(upload["url"])
    made = socket.create_connection((url.hostname, url.port), timeout=20)
    lines = [f"{method} {url.path}?{url.query} HTTP/1.1", f"host: {url.netloc}", *headers]
    made.sendall("\r\n".join([*lines, "", ""]).encode())
    return closing(made)


def status_of(made) -> int:
    answer = b""
    while b"\r\n" not in answer:
        more = made.recv(4096)
        assert more, "it was closed without an answer"
        answer += more
    return int(answer.split()[1])


def wait_until_nothing_is_stored(broker, topic):
    end = time.monotonic() + WITHIN_S
    name = topic.rpartition("/")[2]
    while left := [*(broker.store / "_tmp").glob("*"), *(broker.store / "_payloads" / name).glob("*/*")]:
        assert time.monotonic() < end, left
        time.sleep(0.02)


@pytest.mark.long
def test_a_large_payload_is_never_in_memory(http, broker, topic):
    piece = BYTES * 4
    hashed = hashlib.sha256()
    for _ in range(LARGE // len(piece)):
        hashed.update(piece)
    upload = begin(http, topic, LARGE, sha256=hashed.hexdigest())
    process = psutil.Process(broker.process.pid)
    before, most = process.memory_info().rss, 0

    def body():
        nonlocal most
        for at in range(LARGE // len(piece)):
            if at % 4 == 0:
                most = max(most, process.memory_info().rss)
            yield piece

    answer = put(http, upload, body(), **{"content-length": str(LARGE)})
    assert answer.status_code == 201, answer.text
    assert most - before < 32 * MIB
    url = read_url(http, topic, upload)
    with http.stream("GET", url) as found:
        got = hashlib.sha256()
        for chunk in found.iter_raw():
            got.update(chunk)
            most = max(most, process.memory_info().rss)
    assert got.hexdigest() == hashed.hexdigest()
    assert most - before < 48 * MIB


@pytest.mark.parametrize("sent", [0, 1, len(BYTES) - 1])
def test_a_put_that_is_cut_off_leaves_nothing(http, broker, topic, sent):
    upload = begin(http, topic)
    with connected(upload, "PUT", f"content-length: {len(BYTES)}") as made:
        made.sendall(BYTES[:sent])
    wait_until_nothing_is_stored(broker, topic)
    assert put(http, upload).status_code == 201


@pytest.mark.long
def test_who_sends_nothing_is_cut_off_and_who_is_slow_is_not(http, broker, topic):
    upload = begin(http, topic)
    with connected(upload, "PUT", f"content-length: {len(BYTES)}") as made:
        made.sendall(BYTES[:100])
        assert status_of(made) == 408
    wait_until_nothing_is_stored(broker, topic)
    began = time.monotonic()
    with connected(upload, "PUT", f"content-length: {len(BYTES)}") as made:
        for start in range(0, len(BYTES), len(BYTES) // 8):
            made.sendall(BYTES[start : start + len(BYTES) // 8])
            time.sleep(0.6)
        assert status_of(made) == 201
    assert time.monotonic() - began > 4


def test_an_answer_that_is_no_comes_before_the_body(http, topic):
    """As curl asks: only a 100 makes it send."""
    upload = begin(http, topic)
    upload["url"] = upload["url"][:-1] + ("0" if upload["url"][-1] != "0" else "1")
    with connected(upload, "PUT", f"content-length: {len(BYTES)}", "expect: 100-continue") as made:
        assert status_of(made) == 403
        made.settimeout(30)
        while made.recv(4096):
            pass


def test_a_refused_body_does_not_hide_the_answer(http, topic):
    upload = begin(http, topic)
    upload["url"] = upload["url"][:-64] + "0" * 64
    for _ in range(3):
        assert problem_of(put(http, upload)) == (403, "forbidden")
    assert http.get(topic).status_code == 200


def read_url(http, topic, upload) -> str:
    """What a reader of the message gets."""
    answer = http.post(f"{topic}/messages", json={"reference": {"upload_id": upload["upload_id"]}})
    assert answer.status_code == 200, answer.text
    segment, offset = answer.json()["ids"][0].split("-")
    found = http.get(f"{topic}/segments/{segment}/messages", params={"offset": offset}).json()["messages"][0]
    return found["reference"]["url"]


def test_ranges(http, topic):
    url = read_url(http, topic, uploaded(http, topic, sha256=SHA256))
    whole = http.get(url)
    assert (whole.status_code, whole.content) == (200, BYTES)
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["x-content-type-options"] == "nosniff"
    etag = whole.headers["etag"]
    for text, start, end in (("0-0", 0, 1), ("100-", 100, len(BYTES)), ("-5", len(BYTES) - 5, len(BYTES))):
        part = http.get(url, headers={"range": f"bytes={text}", "if-range": etag})
        assert (part.status_code, part.content) == (206, BYTES[start:end])
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{len(BYTES)}"
    assert http.get(url, headers={"range": "bytes=0-0", "if-range": '"other"'}).content == BYTES
    beyond = http.get(url, headers={"range": f"bytes={len(BYTES)}-"})
    assert problem_of(beyond) == (416, "offset-out-of-range")
    assert beyond.headers["content-range"] == f"bytes */{len(BYTES)}"
    head = http.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(BYTES)), b"")
    assert http.head(url, headers={"range": "bytes=0-9"}).headers["content-length"] == "10"
    assert problem_of(http.put(url, content=BYTES)) == (403, "forbidden")


def test_an_empty_one_is_read(http, topic):
    url = read_url(http, topic, uploaded(http, topic, b""))
    answer = http.get(url)
    assert (answer.status_code, answer.content) == (200, b"")


def test_who_stops_reading_holds_nothing_for_long(http, broker, topic):
    url = read_url(http, topic, uploaded(http, topic, BYTES * 8))
    process = psutil.Process(broker.process.pid)
    before = len(process.net_connections())
    for _ in range(20):
        with connected({"url": url}, "GET") as made:
            assert made.recv(1000).startswith(b"HTTP/1.1 200")
    end = time.monotonic() + WITHIN_S
    while len(process.net_connections()) > before:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert http.get(url, headers={"range": "bytes=-3"}).content == BYTES[-3:]


def test_what_is_read_does_not_outlive_its_topic(http, topic):
    url = read_url(http, topic, uploaded(http, topic))
    assert http.delete(topic).status_code == 204
    assert problem_of(http.get(url)) == (404, "payload-not-found")
    assert json.loads(http.get(url).content)["topic"]
