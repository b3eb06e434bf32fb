"""Hostile bodies, names and headers over HTTP: always the right problem, and a broker that stays well."""

import json
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.support.http.asking import ARROW, NDJSON, arrow_stream, fetch, problem_of
from tests.support.http.raw import ask
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

SUBSCRIPTION = {"json": {"start": "earliest"}}
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "n", "required": True, "type": "long"}]}


@pytest.fixture
def routes(http: httpx.Client, topic: str) -> list[tuple[str, str]]:
    """Every route that takes JSON."""
    http.put(f"{topic}/subscriptions/s", **SUBSCRIPTION)  # type: ignore[arg-type]
    return [
        ("PUT", "/v1/topics/hostile"),
        ("PUT", topic),
        ("PATCH", topic),
        ("PUT", f"{topic}/subscriptions/s"),
        ("PUT", f"{topic}/subscriptions/new"),
        ("POST", f"{topic}/subscriptions/s/pull"),
        ("POST", f"{topic}/subscriptions/s/ack"),
        ("POST", f"{topic}/messages"),
    ]


def refused(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    kinds = {400: "unreadable-body", 413: "request-too-large", 415: "unsupported-content-type"}
    found: dict[str, Any] = answer.json()
    assert answer.status_code in statuses, (answer.status_code, found)
    slug = kinds.get(answer.status_code) or found["type"].removeprefix("/problems/")
    assert slug in (*kinds.values(), "invalid-request", "invalid-messages", "message-too-large")
    problem_of(answer, answer.status_code, slug)
    assert len(found["detail"]) > 10
    return found


BROKEN = [
    b"{",
    b"[",
    b'"',
    b"nul",
    b'{"value":1,}',
    b"{'value':1}",
    b'{"value":01}',
    b'{"value":.5}',
    b"{} {}",
    b"\x00",
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b'{"value":"\x01"}',
    b'{"value":"\xff"}',
    b'{"value":"\xed\xa0\x80"}',
    b'{"value":"\\ud800"}',
    b'{"value":"\\ud800\\u0041"}',
    b'{"value":"\\u12"}',
    b'{"value":NaN}',
    b'{"value":-Infinity}',
    b'{"value":1e400}',
    b'{"value":1' + b"0" * 2000 + b"}",
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: str(body[:20]))
def test_broken_json(http: httpx.Client, routes: list[tuple[str, str]], body: bytes) -> None:
    for method, path in routes:
        answer = http.request(method, path, content=body, headers={"content-type": "application/json"})
        refused(answer, 400, 422)
    lines = http.post(routes[-1][1], content=body + b"\n", headers={"content-type": NDJSON})
    refused(lines, 400, 422)
    assert http.get("/v1/topics/hostile").status_code == 404


DEEP = [(opens, closes, depth) for opens, closes in ((b"[", b"]"), (b'{"a":', b"}")) for depth in (129, 990, 90_000)]


@pytest.mark.parametrize(("opens", "closes", "depth"), DEEP, ids=str)
def test_depth_bombs(
    http: httpx.Client, routes: list[tuple[str, str]], opens: bytes, closes: bytes, depth: int
) -> None:
    bomb = opens * depth + b"1" + closes * depth
    wraps = [b"%b", b'{"value":%b}', b'{"messages":[{"value":%b}]}', b'{"format":"typed","schema":%b}']
    wraps += [
        b'{"scaling":%b}',
        b'{"start":%b}',
        b'{"ids":[%b]}',
        b'{"max_messages":%b}',
        b'{"flush":{"max_bytes":%b}}',
    ]
    for method, path in routes:
        for wrap in wraps:
            answer = http.request(method, path, content=wrap % bomb, headers={"content-type": "application/json"})
            refused(answer, 400, 422)
    for query, line in (("", b'{"value":%b}'), ("?bare=true", b"%b")):
        answer = http.post(routes[-1][1] + query, content=line % bomb + b"\n1\n", headers={"content-type": NDJSON})
        refused(answer, 400, 422)
    content = arrow_stream(pa.table({"value": ["1", bomb.decode()]}))
    answer = http.post(routes[-1][1], content=content, headers={"content-type": ARROW})
    assert refused(answer, 422)["errors"][0]["index"] == 1


def test_the_greatest_depth_is_taken(http: httpx.Client, topic: str) -> None:
    text = "[" * 128 + "]" * 128
    for body in (f'{{"value":{text}}}', f'{{"messages":[{{"value":{text}}}]}}'):
        answer = http.post(f"{topic}/messages", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
    assert fetch(http, topic)["messages"][0]["value"] == json.loads(text)


@pytest.mark.parametrize("text", ["YQ", "YQ=", "Y Q=", "****", "YQ==YQ==", "YW\n=", "é", 7, None, ["YQ=="]])
def test_bad_base64(http: httpx.Client, text: Any) -> None:
    path = "/v1/topics/base64"
    http.put(path, json={"format": "bytes"})
    for body in ({"value_base64": text}, {"messages": [{"value_base64": text}]}):
        found = refused(http.post(f"{path}/messages", json=body), 422)
        assert found["errors"][0]["index"] == 0
    assert fetch(http, path)["next_offset"] == 0


BAD_NAMES = [
    "..",
    ".",
    "%2e%2e",
    "%2E",
    ".hidden",
    "a=b",
    "a%3Db",
    "_x",
    "-x",
    "%00",
    "a%00",
    "a%0a",
    "a%20b",
    "%20",
    "a" * 128,
    "%D9%A1",
    "a%D9%A1",
    "%C3%A9",
    "%ff%fe",
    "a%5Cb",
    "~",
    "a:b",
    "*",
    "%25",
]
NAMED = [
    ("PUT", "/v1/topics/{}"),
    ("GET", "/v1/topics/{}"),
    ("PATCH", "/v1/topics/{}"),
    ("DELETE", "/v1/topics/{}"),
    ("POST", "/v1/topics/{}/flush"),
    ("GET", "/v1/topics/{}/segments"),
    ("GET", "/v1/topics/{}/segments/0/messages"),
    ("POST", "/v1/topics/{}/messages"),
    ("GET", "/v1/topics/{}/subscriptions"),
    ("PUT", "/v1/topics/{}/subscriptions/s"),
    ("POST", "/v1/topics/{}/subscriptions/s/pull"),
    ("POST", "/v1/topics/{}/subscriptions/s/ack"),
    ("PUT", "/v1/topics/there/subscriptions/{}"),
    ("GET", "/v1/topics/there/subscriptions/{}"),
    ("DELETE", "/v1/topics/there/subscriptions/{}"),
    ("POST", "/v1/topics/there/subscriptions/{}/pull"),
    ("POST", "/v1/topics/there/subscriptions/{}/ack"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(http: httpx.Client, broker: BrokerProcess, name: str) -> None:
    http.put("/v1/topics/there")
    for method, path in NAMED:
        body = b'{"value":1}' if path.endswith("/messages") else b'{"ids":[]}' if path.endswith("/ack") else b""
        answer = ask(broker, method, path.format(name), "Content-Type: application/json", body=body)
        problem_of(answer, 422, "invalid-name", "127")
    number = ask(broker, "GET", f"/v1/topics/there/segments/{name}/messages")
    problem_of(number, 422, "invalid-request", "segment")
    producer = ask(broker, "POST", "/v1/topics/there/messages", f"Producer-Id: {name}", "Producer-Sequence: 0")
    problem_of(producer, 422, "invalid-name", "producer")
    assert http.get("/v1/topics/there").json()["messages"] == 0
    assert [f.name for f in (broker.store / "topics").iterdir() if not f.name[0].isalnum()] == []


@pytest.mark.parametrize(
    "path", ["//", "/v1", "/v1/topics/", "/v1/topics/a%2Fb", "/v1/topics/..%2f..%2fx/messages", "/x?y"]
)
def test_paths_that_lead_nowhere(broker: BrokerProcess, path: str) -> None:
    for method in ("GET", "POST", "PUT"):
        problem_of(ask(broker, method, path), 404, "not-found", method)


def test_wrong_methods_say_what_is_allowed(http: httpx.Client) -> None:
    paths: dict[str, dict[str, Any]] = http.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        allowed = sorted(method.upper() for method in operations)
        for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE"} - set(allowed):
            answer = http.request(method, path.replace("{segment}", "0").replace("{", "").replace("}", ""))
            found = problem_of(answer, 405, "method-not-allowed", method, *allowed)
            assert found["allowed"] == answer.headers["allow"].split(", ") == allowed


@pytest.mark.parametrize(
    "sequence", ["1e3", "1.0", "-1", "+1", "1_0", "0x1", "", "\xb2", "9" * 19, "9" * 400, "1, 2", "NaN", "١"]
)
def test_bad_sequences(topic: str, broker: BrokerProcess, http: httpx.Client, sequence: str) -> None:
    line = f"Producer-Sequence: {sequence}".encode().decode("latin-1")
    answer = ask(broker, "POST", f"{topic}/messages", "Producer-Id: p", line, body=b'{"value":1}')
    problem_of(answer, 422, "invalid-request", "Producer-Sequence", 2**62)
    assert fetch(http, topic)["next_offset"] == 0


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["Producer-Sequence: 0"], "must be sent together"),
        (["Producer-Id: p"], "must be sent together"),
        (["Producer-Id: p", "Producer-Sequence: 0", "Producer-Sequence: 0"], "0, 0"),
        (["Producer-Id: p", "Producer-Id: q", "Producer-Sequence: 0"], "p, q"),
        (["Producer-Id:", "Producer-Sequence: 0"], "producer"),
    ],
)
def test_headers_that_are_missing_or_twice(
    topic: str, broker: BrokerProcess, http: httpx.Client, lines: list[str], says: str
) -> None:
    answer = ask(broker, "POST", f"{topic}/messages", "Content-Type: application/json", *lines, body=b'{"value":1}')
    problem_of(answer, 422, answer.json()["type"].removeprefix("/problems/"), says)
    assert fetch(http, topic)["next_offset"] == 0


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "multipart/form-data", "application/json, text/plain", ""]
)
def test_unknown_content_types(routes: list[tuple[str, str]], broker: BrokerProcess, kind: str) -> None:
    for method, path in routes:
        answer = ask(broker, method, path, f"Content-Type: {kind}", body=b'{"value":1}')
        found = problem_of(answer, 415, "unsupported-content-type", kind)
        assert "application/json" in found["supported"]


def test_content_types_are_read_as_http_has_it(topic: str, broker: BrokerProcess) -> None:
    for kind in ("APPLICATION/JSON", "application/json; charset=utf-8", " application/json ;x=y"):
        assert ask(broker, "POST", f"{topic}/messages", f"Content-Type: {kind}", body=b'{"value":1}').status_code == 200


ARROWS = {
    "integers": {"value": pa.array([1, 2])},
    "nulls": {"value": pa.array(["1", None])},
    "not JSON": {"value": pa.array(["1", "{"])},
    "NaN": {"value": pa.array(["1", "NaN"])},
    "surrogates": {"value": pa.array(["1", '"\\ud800"'])},
    "not UTF-8": {"value": pa.array([b"1", b'"\xff"']).view(pa.binary())},
    "no value": {"_key": pa.array(["1", "2"])},
    "other columns": {"value": pa.array(["1", "2"]), "extra": pa.array([1, 2])},
    "references": {"value": pa.array(["1", "2"]), "_reference": pa.array([1, 2])},
    "text timestamps": {"value": pa.array(["1", "2"]), "_timestamp": pa.array(["2020", "2021"])},
    "far timestamps": {"value": pa.array(["1"]), "_timestamp": pa.array([2**62], pa.timestamp("us", "UTC"))},
    "no rows": {"value": pa.array([], pa.string())},
}


@pytest.mark.parametrize("case", ARROWS)
def test_hostile_arrow_columns(http: httpx.Client, topic: str, case: str) -> None:
    content = arrow_stream(pa.table(ARROWS[case]))
    refused(http.post(f"{topic}/messages", content=content, headers={"content-type": ARROW}), 422)
    assert fetch(http, topic)["next_offset"] == 0


def test_damaged_arrow_streams(http: httpx.Client, topic: str) -> None:
    whole = arrow_stream(pa.table({"value": [f'"{n}"' for n in range(100)]}))
    bodies = [b"", b"\0", b"\xff" * 100, b"ARROW1\0\0" + whole, whole[:100], whole[: len(whole) // 2], whole[8:]]
    bodies += [whole[:at] + b"\xff\xff\xff\x7f" + whole[at + 4 :] for at in range(0, 400, 20)]
    for body in bodies:
        answer = http.post(f"{topic}/messages", content=body, headers={"content-type": ARROW})
        if answer.status_code != 200:  # a flipped bit may be nowhere that matters
            refused(answer, 400, 413, 422)
    refused(http.post(f"{topic}/messages", content=bodies[2], headers={"content-type": ARROW}), 400)


@pytest.mark.parametrize("query", ["dry_run=true&dry_run=false", "dry_run=true&x=1&dry_run=true", "x=1&y=&x=2"])
def test_a_parameter_that_is_repeated(http: httpx.Client, topic: str, query: str) -> None:
    """The last one counted here, and the first one may count elsewhere."""
    kept = http.get(topic).json()["retention"]
    for method, path in (
        ("PATCH", topic),
        ("GET", f"{topic}/segments/0/messages"),
        ("GET", f"{topic}/stream"),
        ("POST", f"{topic}/messages"),
        ("GET", "/v1/topics"),
    ):
        answer = http.request(method, f"{path}?{query}", json={"retention": {"max_age_s": 60}})
        problem_of(answer, 422, "invalid-request", query.partition("=")[0])
    assert http.get(topic).json()["retention"] == kept


def test_very_many_parameters(http: httpx.Client, topic: str) -> None:
    query = "&".join(f"a{n}=1" for n in range(1000))
    problem_of(http.get(f"/v1/topics?{query}"), 400, "unreadable-body")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b"no json", 400, "unreadable-body"),
        (b'{"topic":"t"}', 422, "invalid-request"),
        (b"[]", 422, "invalid-request"),
        (b'{"a":"%b"}' % bytes(17 << 20), 413, "request-too-large"),
    ],
)
def test_requests_without_fields_have_none(http: httpx.Client, topic: str, body: bytes, status: int, slug: str) -> None:
    """Every route that takes a POST and states no body."""
    paths: dict[str, Any] = http.get("/openapi.json").json()["paths"]
    without = [path for path, one in paths.items() if "post" in one and "requestBody" not in one["post"]]
    assert len(without) >= 3
    for path in without:
        url = path.format(topic=topic.rpartition("/")[2], segment=0, upload="u-0123")
        answer = http.post(url, content=body, headers={"content-type": "application/json"})
        problem_of(answer, status, slug)
    assert http.post(f"{topic}/flush").status_code == 200
    assert http.post(f"{topic}/flush", json={}).status_code == 200
