"""Answers to curl end with a newline, what users have stored does not change."""

import hashlib

import httpx
import pytest

pytestmark = pytest.mark.process

CURL, OTHER = {"user-agent": "curl/8.5.0"}, {"user-agent": "python-httpx/0.28"}
NDJSON = {"content-type": "application/x-ndjson"}


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("PUT", "", {}),
        ("POST", "/messages", {"value": 1}),
        ("GET", "/segments/0/messages", None),
        ("POST", "/subscriptions/s/pull", {}),
        ("GET", "/segments/9", None),
        ("POST", "/messages", {"values": 1}),
    ],
)
def test_json_ends_with_one_newline(http: httpx.Client, topic: str, method: str, path: str, json: object) -> None:
    http.put(f"{topic}/subscriptions/s", json={"start": "earliest"})
    answer = http.request(method, topic + path, json=json, headers=CURL)
    assert answer.content.endswith(b"}\n")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.json()
    assert not http.request(method, topic + path, json=json, headers=OTHER).content.endswith(b"\n")


def test_a_payload_is_what_was_stored_even_if_it_is_json(http: httpx.Client, topic: str) -> None:
    content = b'{"stored": "as it came"}'
    asked = {"content_type": "application/json", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    upload = http.post(f"{topic}/uploads", json=asked, headers=CURL).json()
    put = httpx.put(upload["url"], content=content, headers=upload.get("headers", {}), timeout=30, trust_env=False)
    assert put.status_code in (200, 201)
    reference = {"reference": {"upload_id": upload["upload_id"]}}
    assert http.post(f"{topic}/messages", json=reference, headers=CURL).status_code == 200
    (message,) = http.get(f"{topic}/segments/0/messages", headers=CURL).json()["messages"]
    assert http.get(f"{topic}/segments/0/messages/0/payload", headers=CURL, follow_redirects=True).content == content
    assert httpx.get(message["reference"]["url"], headers=CURL, timeout=30, trust_env=False).content == content


def test_an_answer_without_a_body_stays_so(http: httpx.Client, topic: str) -> None:
    assert http.delete(topic, headers=CURL).content == b""
