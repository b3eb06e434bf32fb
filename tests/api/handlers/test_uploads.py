"""Uploads over a local store: begun, put through the broker, seen, ended; and all that is refused on the way."""

import hashlib
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
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
    answer = httpx.post(f"{broker.url}/v1/topics/none/uploads", json={"size": 1}, timeout=30, trust_env=False)
    assert problem_of(answer) == (404, "topic-not-found")


def test_an_upload_for_a_write_is_for_nothing_else(http, topic):
    begun = http.post(f"{topic}/uploads", params={"write": "nightly/17"}, json={"size": len(BYTES)})
    assert begun.status_code == 201
    assert put(http, begun.json()).status_code == 201
    upload = begun.json()["upload_id"]
    assert http.get(f"{topic}/uploads/{upload}").json()["write"] == "nightly/17"
    for path, named in (
        ("messages", {"reference": {"upload_id": upload}}),
        ("imports", {"upload_id": upload, "format": "ndjson"}),
    ):
        assert problem_of(http.post(f"{topic}/{path}", json=named)) == (409, "upload-conflict")
    write = {"uploads": [upload], "format": "ndjson"}
    assert problem_of(http.put(f"{topic}/writes/nightly/18", json=write)) == (409, "upload-conflict")
    assert http.delete(f"{topic}/uploads/{upload}").status_code == 204
    assert problem_of(http.put(f"{topic}/writes/nightly/17", json=write)) == (404, "upload-not-found")
    assert problem_of(http.get(f"{topic}/writes/nightly")) == (404, "write-not-found"), "no number is used up"
    refused = http.post(f"{topic}/uploads", params={"write": "nightly"}, json={"size": 1})
    assert problem_of(refused) == (422, "invalid-request")
    assert "write" not in http.get(f"{topic}/uploads/{uploaded(http, topic)['upload_id']}").json()


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
