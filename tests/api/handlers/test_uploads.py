"""Uploads over a local store: begun, put through the broker, seen, ended; and all that is refused on the way. The bytes
through a broker: streamed, cut off, stalled, refused early; and read in ranges.
"""

import hashlib
import json
import socket
import time
from contextlib import closing
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import psutil
import pytest

from tests.support.http.uploading import BYTES, SHA256, begin, problem_of, put, uploaded

pytestmark = pytest.mark.process

ENV = {"SEAWEEDQ_MAX_OPEN_UPLOADS": "20", "SEAWEEDQ_MAX_PAYLOAD_BYTES": str(8 * 1024 * 1024)}


def test_put_and_complete(http, broker, topic):
    upload = begin(http, topic, sha256=SHA256.upper(), content_type="video/mp4")
    assert upload["method"] == "PUT"
    assert upload["upload_id"] in upload["url"]
    place = f"{topic}/uploads/{upload['upload_id']}"
    assert problem_of(http.post(f"{place}/complete")) == (409, "upload-incomplete")
    answer = put(http, upload)
    assert (answer.status_code, answer.json()["sha256"]) == (201, SHA256)
    done = http.post(f"{place}/complete").json()
    assert (done["state"], done["size"], done["sha256"], done["content_type"]) == (
        "open",
        len(BYTES),
        SHA256,
        "video/mp4",
    )
    name = topic.rpartition("/")[2]
    (found,) = (broker.store / "_payloads" / name).glob("*/*")
    assert found.name == upload["upload_id"]
    assert found.read_bytes() == BYTES


def test_an_unknown_topic_is_created_by_an_upload_that_is_valid(http):
    path, asked = "/v1/topics/unknown-so-far", {"size": len(BYTES)}
    assert problem_of(http.post(f"{path}/uploads", json={"size": 2**40})) == (413, "payload-too-large")
    assert http.post(f"{path}/uploads", json={**asked, "content_type": "?"}).status_code == 422
    assert http.post(f"{path}/uploads", json={**asked, "multipart": True}).status_code == 422
    assert problem_of(http.get(path)) == (404, "topic-not-found")
    upload = uploaded(http, path)
    named = {"reference": {"upload_id": upload["upload_id"]}}
    assert http.post(f"{path}/messages", json=named).status_code == 200


def test_an_unknown_topic_stays_unknown_where_none_are_created(broker_process):
    broker = broker_process("--no-auto-create-topics")
    answer = httpx.post(f"{broker.url}/v1/topics/none/uploads", json={"size": 1}, trust_env=False)
    assert problem_of(answer) == (404, "topic-not-found")


def test_a_repeat_of_a_put_is_no_error_and_other_bytes_are(http, topic):
    upload = uploaded(http, topic)
    assert put(http, upload).status_code == 201
    assert problem_of(put(http, upload, BYTES[::-1])) == (409, "upload-conflict")
    assert http.get(f"{topic}/uploads/{upload['upload_id']}").json()["sha256"] == SHA256


def test_an_empty_payload(http, topic):
    upload = uploaded(http, topic, b"", sha256=hashlib.sha256(b"").hexdigest())
    assert http.post(f"{topic}/uploads/{upload['upload_id']}/complete").status_code == 200


@pytest.mark.parametrize("content", [BYTES[:-1], BYTES + b"x", b""])
def test_another_length_is_refused(http, broker, topic, content):
    upload = begin(http, topic)
    assert problem_of(put(http, upload, content)) == (422, "upload-mismatch")
    assert nothing_stored(broker, topic)


def test_another_digest_is_refused_and_nothing_stored(http, broker, topic):
    upload = begin(http, topic, sha256=SHA256)
    answer = put(http, upload, BYTES[::-1])
    assert problem_of(answer) == (422, "upload-mismatch")
    assert answer.json()["field"] == "sha256"
    assert nothing_stored(broker, topic)
    assert put(http, upload).status_code == 201


def test_a_body_without_a_length_is_refused(http, broker, topic):
    upload = begin(http, topic)
    assert problem_of(put(http, upload, iter([BYTES]))) == (422, "invalid-request")
    assert nothing_stored(broker, topic)


def other(url: str, **changed: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **changed})).geturl()


def test_a_token_is_for_one_method_payload_and_time(http, broker, topic):
    upload, neighbour = begin(http, topic), begin(http, topic)
    smaller = begin(http, topic, len(BYTES) - 1)
    url = upload["url"]
    forged = [
        url.replace(upload["upload_id"], neighbour["upload_id"]),
        url.replace(upload["upload_id"], smaller["upload_id"]),
        other(url, token="0" * 64),
        other(url, token=""),
        other(url, token="\N{SNOWMAN}"),
        other(url, expires="99999999999"),
        other(url, expires="1" * 400),
        other(url, expires="-1"),
        url.partition("?")[0],
    ]
    for each in forged:
        assert problem_of(http.put(each, content=BYTES)) == (403, "forbidden"), each
    assert problem_of(http.get(url)) == (403, "forbidden")
    assert problem_of(http.post(url)) == (405, "method-not-allowed")
    assert nothing_stored(broker, topic)
    assert put(http, upload).status_code == 201
    assert problem_of(http.get(url)) == (403, "forbidden")


def test_abort(http, broker, topic):
    upload = uploaded(http, topic)
    place = f"{topic}/uploads/{upload['upload_id']}"
    assert http.delete(place).status_code == 204
    assert nothing_stored(broker, topic)
    assert http.delete(place).status_code == 204
    for answer in (http.get(place), http.post(f"{place}/complete"), put(http, upload)):
        assert problem_of(answer) == (404, "upload-not-found")
    assert nothing_stored(broker, topic)


def test_an_upload_is_of_one_topic_and_one_incarnation(http, broker, topic):
    upload = uploaded(http, topic)
    mine = f"uploads/{upload['upload_id']}"
    assert http.put("/v1/topics/other").status_code in (200, 201)
    assert problem_of(http.get(f"/v1/topics/other/{mine}")) == (404, "upload-not-found")
    assert http.delete(topic).status_code == 204
    assert nothing_stored(broker, topic)
    assert problem_of(put(http, upload)) == (404, "topic-not-found")
    assert http.put(topic).status_code == 201
    assert problem_of(http.get(f"{topic}/{mine}")) == (404, "upload-not-found")
    assert problem_of(put(http, upload)) == (404, "upload-not-found")
    assert nothing_stored(broker, topic)


@pytest.mark.parametrize("upload", ["x", "%2e%2e%2f%2e%2e", "20261121-0-" + "z" * 32, "a" * 1000, "%00", "a%2Fb"])
def test_ids_that_are_none(http, topic, upload):
    for answer in (http.get(f"{topic}/uploads/{upload}"), http.put(f"{topic}/uploads/{upload}/content", content=b"")):
        assert answer.status_code in (403, 404)
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"size": -1},
        {"size": 2**70},
        {"size": 1.5},
        {"size": "1"},
        {"size": 1, "sha256": "x"},
        {"size": 1, "sha256": "0" * 63},
        {"size": 1, "content_type": "text"},
        {"size": 1, "content_type": "text/plain\r\nx: y"},
        {"size": 1, "content_type": "text/plain; a=\N{SNOWMAN}"},
        {"size": 1, "uri": "file:///etc/passwd"},
        {"size": 1, "multipart": True},
    ],
)
def test_requests_that_are_not_valid(http, topic, body):
    answer = http.post(f"{topic}/uploads", json=body)
    assert problem_of(answer) == (422, "invalid-request")


def test_a_local_store_has_no_parts(http, topic):
    upload = begin(http, topic)
    place = f"{topic}/uploads/{upload['upload_id']}"
    assert problem_of(http.post(f"{place}/parts", json={"numbers": [1]})) == (409, "upload-conflict")


def test_the_largest_payload(http, topic):
    most = 8 * 1024 * 1024
    assert problem_of(http.post(f"{topic}/uploads", json={"size": most + 1})) == (413, "payload-too-large")
    assert http.patch(topic, json={"max_payload_bytes": 1000}).json()["max_payload_bytes"] == 1000
    answer = http.post(f"{topic}/uploads", json={"size": 1001})
    assert problem_of(answer) == (413, "payload-too-large")
    assert answer.json()["limit_bytes"] == 1000
    begin(http, topic, 1000)
    assert http.patch(topic, json={"max_payload_bytes": None}).json()["max_payload_bytes"] is None
    begin(http, topic, most)


def test_open_uploads_are_limited(http, topic):
    begun = [begin(http, topic) for _ in range(20)]
    answer = http.post(f"{topic}/uploads", json={"size": 1})
    assert problem_of(answer) == (429, "too-many-uploads")
    assert answer.json()["limit"] == 20
    assert http.delete(f"{topic}/uploads/{begun[0]['upload_id']}").status_code == 204
    begin(http, topic)


def nothing_stored(broker, topic) -> bool:
    left = list((broker.store / "_tmp").glob("*"))
    return not left and not list((broker.store / "_payloads" / topic.rpartition("/")[2]).glob("*/*"))


STREAM_ENV = {"SEAWEEDQ_REQUEST_TIMEOUT_S": "2"}
FORKS = False  # its memory is looked at
MIB = 1024 * 1024
LARGE = 256 * MIB
WITHIN_S = 10.0


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
            time.sleep(0.4)
        assert status_of(made) == 201
    assert time.monotonic() - began > 2


def test_an_answer_that_is_no_comes_before_the_body(http, topic):
    """As curl asks: only a 100 makes it send."""
    upload = begin(http, topic)
    upload["url"] = upload["url"][:-1] + ("0" if upload["url"][-1] != "0" else "1")
    with connected(upload, "PUT", f"content-length: {len(BYTES)}", "expect: 100-continue") as made:
        assert status_of(made) == 403
        made.settimeout(5)
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
