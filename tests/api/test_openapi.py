"""The OpenAPI document against a real broker: complete, true, and good enough to make valid requests from."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import examples

pytestmark = pytest.mark.process

TOPIC, SUBSCRIPTION = "/v1/topics/{topic}", "/v1/topics/{topic}/subscriptions/{subscription}"
UPLOAD = f"{TOPIC}/uploads/{{upload}}"
# A local store takes no parts; a token stands in a URL, and in no description; a broker that serves rebuilds nothing.
NEVER_VALID = {
    f"POST {UPLOAD}/parts",
    f"PUT {UPLOAD}/content",
    f"GET {UPLOAD}/content",
    "POST /v1/cluster/accept-loss",
    "POST /v1/cluster/rebuild",
    f"GET {TOPIC}/schemas/{{schema}}",  # a typed topic alone has versions (tests/broker/topics/test_schema_versions)
}
ENDLESS = {
    f"GET {TOPIC}/stream",
    f"GET {SUBSCRIPTION}/stream",
}  # answers go on for as long as somebody listens (tests/api/streams)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 6  # of each operation: four times, and half as many again in `make test-all`


@pytest.fixture(scope="module")
def http(broker_processes: Callable[..., BrokerProcess]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker_processes().url, trust_env=False, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_everything_has_words_a_schema_and_an_example(document: dict[str, Any]) -> None:
    for route, operation in operations(document).items():
        assert operation["description"], route
        answers = {s: a for s, a in operation["responses"].items() if s.startswith("2") and s != "204"}
        contents = [c for a in answers.values() for c in a["content"].items()]
        contents += operation.get("requestBody", {"content": {}})["content"].items()
        for media, content in contents:
            assert content["schema"], route
            assert "example" in content or "json" not in media, route
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], route


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    names = set(re.findall(r"'#/components/schemas/(\w+)'", str(document)))
    assert names == set(document["components"]["schemas"])


def test_the_documentation_needs_no_other_host(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"""(?:src|href|url)\s*[=:]\s*["'](?:https?:)?//""", page.text)
    parts = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(parts) >= 3
    for part in parts:
        assert http.get(part).status_code == 200, part


def without_tokens(document: dict[str, Any]) -> dict[str, Any]:
    """The document for a broker that needs no tokens: those that are made up would be refused."""
    paths = {
        path: {method: {k: v for k, v in one.items() if k != "security"} for method, one in methods.items()}
        for path, methods in document["paths"].items()
    }
    return {**document, "paths": paths}


def uploaded(http: httpx.Client, content: bytes | None = None) -> dict[str, Any]:
    """An upload, with its bytes if they are given."""
    size = 5 if content is None else len(content)
    answer = http.post("/v1/topics/flights/uploads", json={"size": size})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    if content is not None:
        assert http.request(made["method"], made["url"], content=content, headers=made["headers"]).status_code == 201
    return made


def payload(http: httpx.Client, segment: int) -> int:
    """The offset of a message with a payload in that segment."""
    reference = {"upload_id": uploaded(http, b"12345")["upload_id"]}
    messages = [{"key": f"k{n}", "reference": reference} for n in range(100)]
    ids = http.post("/v1/topics/flights/messages", json={"messages": messages}).json()["ids"]
    return next(int(each.partition("-")[2]) for each in ids if each.startswith(f"{segment}-"))


def imported(http: httpx.Client) -> str:
    """An upload whose rows are messages."""
    upload = str(uploaded(http, b'{"value":1}\n')["upload_id"])
    asked = {"upload_id": upload, "format": "ndjson"}
    assert http.post("/v1/topics/flights/imports", json=asked).status_code == 200
    return upload


def begun_write(http: httpx.Client) -> str:
    """An upload for the write that `prepare` names."""
    content = b'{"value":1}\n'
    asked = {"size": len(content)}
    made = http.post("/v1/topics/flights/uploads", params={"write": "nightly/17"}, json=asked).json()
    assert http.request(made["method"], made["url"], content=content, headers=made["headers"]).status_code == 201
    return str(made["upload_id"])


def upload_of(http: httpx.Client, operation: str) -> str:
    """An upload as the operation needs it."""
    if "/writes" in operation:
        return begun_write(http)
    return imported(http) if "/imports" in operation else str(uploaded(http, b"12345")["upload_id"])


def prepare(http: httpx.Client, operation: str) -> dict[str, Any]:
    """The topic and the subscription that the examples speak of, with a few messages: path parameters to reach them."""
    http.put("/v1/topics/flights", json={})
    http.patch("/v1/topics/flights", json={"max_payload_bytes": None})  # some example may have set 1
    http.put("/v1/topics/flights/subscriptions/billing", json={"start": "earliest"})
    http.post("/v1/topics/flights/messages", json={"messages": [{"value": n} for n in range(20)]})
    unlimited = {"limits": {"requests": None, "messages": None, "bytes_in": None, "bytes_out": None}}
    while (answer := http.patch("/v1/topics/flights", json=unlimited)).status_code == 429:
        time.sleep(answer.json()["retry_after_s"])  # a topic's limits are drawn, too
    open_ones = open_segments(http)
    if len(open_ones) == 1:  # to be merged it needs a neighbour
        http.post(f"/v1/topics/flights/segments/{open_ones[0]}/split")
        open_ones = open_segments(http)
    return {
        "topic": "flights",
        "subscription": "billing",
        "segment": open_ones[0],
        "neighbour": open_ones[1],
        "offset": payload(http, open_ones[0]) if operation.endswith("/payload") else 0,
        "principal": "importer",
        "token": token_of(http, "importer"),
        "denial": http.post("/v1/denials", json={"kind": "sub", "value": "alice"}).json()["id"],
        "upload": upload_of(http, operation),
        "writer": "nightly",
        "number": 17,
    }


def token_of(http: httpx.Client, principal: str) -> str:
    """The id of a new token."""
    http.put(f"/v1/principals/{principal}", json={})
    return str(http.post("/v1/tokens", json={"principal": principal}).json()["id"])


def open_segments(http: httpx.Client) -> list[int]:
    """The open ones by their ranges."""
    segments = http.get("/v1/topics/flights/segments").json()["segments"]
    return [s["id"] for s in sorted(segments, key=lambda s: s["low"]) if s["state"] == "open"]


def body_of(operation: str, there: dict[str, Any]) -> Any:
    """The body where a description is not enough to name what is there."""
    bodies = {
        "merge": {"with": there["neighbour"]},
        "move": {"to": "broker"},
        "{number}": {"uploads": [there["upload"]], "format": "ndjson"},
        "imports": {"upload_id": there["upload"], "format": "ndjson"},
        "tokens": {"principal": there["principal"]},
        "{principal}": {"grants": [{"actions": ["read"], "topics": ["flights"]}]},
    }
    return bodies.get(operation.rpartition("/")[2])


def impatient(case: Case) -> Case:
    """The same case without long waits and large topics."""
    for place in (case.query, case.body):
        if isinstance(place, dict):
            for name, most in (("wait_s", 0.02), ("initial_segments", 4)):
                if isinstance(place.get(name), int | float) and place[name] > most:
                    place[name] = most
    return case


def run(
    session: requests.Session, base: str, operation: Any, mode: GenerationMode, path: Any, body: Any
) -> Counter[int]:
    """Send what is made of an operation's description, and check each answer: the statuses seen."""
    seen: Counter[int] = Counter()

    @settings(
        max_examples=examples(EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode, path_parameters=path))
    def each(case: Case) -> None:
        if body:
            case.body = body
        answer = impatient(case).call_and_validate(base, session, checks=CHECKS)
        seen[answer.status_code] += 1

    with suppress(Unsatisfiable):  # there is nothing to be wrong in
        each()
    return seen


@pytest.mark.long
def test_answers_are_as_documented_whatever_is_sent(http: httpx.Client, document: dict[str, Any]) -> None:
    base = str(http.base_url)
    with requests.Session() as session:
        session.trust_env = False
        for found in schemathesis.openapi.from_dict(without_tokens(document)).get_all_operations():
            operation = found.ok()
            if operation.label in ENDLESS:
                continue
            seen: dict[GenerationMode, Counter[int]] = {}
            for mode in GenerationMode:
                there = prepare(http, operation.path)
                body = body_of(operation.path, there) if mode is GenerationMode.POSITIVE else None
                path = {name: value for name, value in there.items() if f"{{{name}}}" in operation.path}
                seen[mode] = run(session, base, operation, mode, path, body)
                seen[mode] += run(session, base, operation, mode, None, None)
            valid = seen[GenerationMode.POSITIVE]
            found_valid = any(200 <= status < 300 for status in valid)
            assert found_valid or operation.label in NEVER_VALID, f"{operation.label}: nothing valid, {valid}"
    assert http.get("/readyz").status_code == 200


def test_requests_take_texts_with_units_and_answers_have_numbers(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    age = schemas["RetentionRequest"]["properties"]["max_age_s"]["anyOf"]
    assert [one["type"] for one in age] == ["number", "null", "string"]
    assert re.search(age[2]["pattern"], "1h30m")
    assert re.search(schemas["RetentionRequest"]["properties"]["max_bytes"]["anyOf"][-1]["pattern"], "10GB")
    assert schemas["SubscriptionRequest"]["properties"]["backoff_s"]["items"]["anyOf"][-1]["type"] == "string"
    assert schemas["Envelope"]["properties"]["expires_in_s"]["anyOf"][1]["type"] == "string"
    assert schemas["PullRequest"]["properties"]["wait_s"]["anyOf"][0]["type"] == "number"
    assert "string" not in str(schemas["RetentionAnswer"])
    assert all(
        one["type"] == "integer"
        for one in schemas["ScalingRequest"]["properties"]["target_messages_per_s"]["anyOf"][:1]
    )
    assert "string" not in str(schemas["ScalingRequest"]["properties"]["target_messages_per_s"])
