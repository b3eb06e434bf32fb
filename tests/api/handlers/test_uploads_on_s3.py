"""Uploads over S3: put by presigned requests, whole and in parts, and looked at before a message names them.

moto checks neither signatures nor digests nor sizes: what is refused here is what the broker itself finds.
"""

import hashlib
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.http.uploading import BYTES, SHA256, begin, problem_of
from tests.support.tiers import later

pytestmark = [pytest.mark.process, pytest.mark.service]

MIB = 1024 * 1024
PART = 5 * MIB
LARGE = BYTES * 11


@pytest.fixture(scope="module", params=["moto_server", later("moto_as_seaweedfs_server")])
def broker(broker_processes, request):
    """A broker over a place of its own."""
    server = request.getfixturevalue(request.param)
    env = {**server.env, "SEAWEEDQ_MULTIPART_BYTES": str(PART)}
    return broker_processes("--store", f"s3://{server.place()}/q", env=env)


@pytest.fixture(scope="module")
def store():
    """A client of the store, which knows nothing but what a request says."""
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def send(store, how, content=BYTES) -> httpx.Response:
    headers = {**how["headers"], "Content-Length": str(len(content))}
    return store.request(how["method"], how["url"], content=content, headers=headers)


def place_of(topic, upload) -> str:
    return f"{topic}/uploads/{upload['upload_id']}"


def publish(http, topic, upload) -> httpx.Response:
    return http.post(f"{topic}/messages", json={"reference": {"upload_id": upload["upload_id"]}})


def reference_of(http, topic, answer) -> dict:
    segment, offset = answer.json()["ids"][0].split("-")
    page = http.get(f"{topic}/segments/{segment}/messages", params={"offset": offset}).json()
    return page["messages"][0]["reference"]


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_put_publish_and_read(http, store, broker, topic, sha256):
    upload = begin(http, topic, sha256=sha256, content_type="text/plain")
    assert urlsplit(upload["url"]).netloc != urlsplit(broker.url).netloc
    assert problem_of(publish(http, topic, upload)) == (409, "upload-incomplete")
    assert send(store, upload).status_code == 200
    answer = publish(http, topic, upload)
    assert answer.status_code == 200, answer.text
    found = reference_of(http, topic, answer)
    assert (found["size"], found["sha256"], found["content_type"]) == (len(BYTES), SHA256, "text/plain")
    assert found["uri"].startswith("s3://")
    assert store.get(found["url"]).content == BYTES
    assert store.get(found["url"], headers={"range": "bytes=0-9"}).content == BYTES[:10]


@pytest.mark.parametrize(("content", "field"), [(BYTES[:-1], "size"), (BYTES[::-1], "sha256")])
def test_other_bytes_are_not_published(http, store, topic, content, field):
    upload = begin(http, topic, sha256=SHA256)
    send(store, upload, content)
    for _ in range(2):
        answer = publish(http, topic, upload)
        assert problem_of(answer) == (422, "upload-mismatch")
        assert answer.json()["field"] == field
        assert problem_of(http.post(f"{place_of(topic, upload)}/complete")) == (422, "upload-mismatch")
    assert http.get(topic).json()["messages"] == 0


def test_parts(http, store, topic):
    upload = begin(http, topic, len(LARGE), sha256=hashlib.sha256(LARGE).hexdigest())
    assert (upload["part_bytes"], upload["parts"]) == (PART, 3)
    assert "url" not in upload
    place = place_of(topic, upload)
    assert problem_of(publish(http, topic, upload)) == (409, "upload-incomplete")
    urls = http.post(f"{place}/parts", json={"numbers": [3, 1, 2]}).json()["parts"]
    assert [each["number"] for each in urls] == [3, 1, 2]
    for each in urls[:2]:
        start = (each["number"] - 1) * PART
        assert send(store, each, LARGE[start : start + PART]).status_code == 200
    missing = http.post(f"{place}/complete")
    assert problem_of(missing) == (409, "upload-incomplete")
    assert missing.json()["missing"] == [2]
    there = http.get(place).json()
    assert there["parts"] == [{"number": 1, "size": PART}, {"number": 3, "size": len(LARGE) - 2 * PART}]
    assert send(store, urls[2], LARGE[PART : 2 * PART]).status_code == 200
    for _ in range(2):
        done = http.post(f"{place}/complete")
        assert done.status_code == 200, done.text
    answer = publish(http, topic, upload)
    assert answer.status_code == 200, answer.text
    assert store.get(reference_of(http, topic, answer)["url"]).content == LARGE
    assert http.get(place).json()["state"] == "published"
    assert problem_of(http.post(f"{place}/parts", json={"numbers": [1]})) == (409, "upload-conflict")


@pytest.mark.parametrize("numbers", [[], [0], [4], [1] * 101, ["1"], [10_001]])
def test_parts_that_there_are_not(http, topic, numbers):
    upload = begin(http, topic, len(LARGE))
    answer = http.post(f"{place_of(topic, upload)}/parts", json={"numbers": numbers})
    assert problem_of(answer) == (422, "invalid-request")


def test_a_part_of_another_size_is_missing(http, store, topic):
    upload = begin(http, topic, len(LARGE))
    place = place_of(topic, upload)
    for each in http.post(f"{place}/parts", json={"numbers": [1, 2, 3]}).json()["parts"]:
        start = (each["number"] - 1) * PART
        send(store, each, LARGE[start : start + PART + (each["number"] == 1)])
    assert http.post(f"{place}/complete").json()["missing"] == [1]


def test_an_abort_takes_the_parts(http, store, topic):
    upload = begin(http, topic, len(LARGE))
    place = place_of(topic, upload)
    (url,) = http.post(f"{place}/parts", json={"numbers": [1]}).json()["parts"]
    assert send(store, url, LARGE[:PART]).status_code == 200
    assert http.delete(place).status_code == 204
    assert send(store, url, LARGE[:PART]).status_code >= 400
    assert problem_of(http.post(f"{place}/complete")) == (404, "upload-not-found")


def test_what_was_published_is_not_overwritten(http, store, topic):
    """moto keeps If-None-Match, as the start of a broker has seen to it."""
    upload = begin(http, topic)
    assert send(store, upload).status_code == 200
    answer = publish(http, topic, upload)
    assert send(store, upload, BYTES[::-1]).status_code == 412
    assert store.get(reference_of(http, topic, answer)["url"]).content == BYTES
    assert problem_of(http.delete(place_of(topic, upload))) == (409, "upload-conflict")


def test_a_deleted_topic_takes_its_payloads(http, store, topic):
    upload = begin(http, topic)
    send(store, upload)
    url = reference_of(http, topic, publish(http, topic, upload))["url"]
    assert store.get(url).status_code == 200
    assert http.delete(topic).status_code == 204
    assert store.get(url).status_code == 404


def test_no_broker_takes_the_bytes(http, topic):
    upload = begin(http, topic)
    answer = http.put(f"{place_of(topic, upload)}/content?expires=9999999999&token=0", content=BYTES)
    assert problem_of(answer) == (403, "forbidden")
