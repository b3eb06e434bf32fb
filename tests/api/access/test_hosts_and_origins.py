"""Which hosts and pages reach a broker: DNS that points here, pages of other sites, bodies without a type."""

from typing import Any

import httpx
import pytest

from seaweedq.access.actions import Action
from seaweedq.api.access.cors import SENT
from seaweedq.api.access.hosts_and_origins import CLIENT, HostRules, check_client
from seaweedq.errors import ForeignOrigin, WrongHost
from tests.support.http.asking import problem_of
from tests.support.http.raw import answer_of, ask, connection
from tests.support.processes.broker_process import BrokerProcess

ENV = {"SEAWEEDQ_ALLOWED_HOSTS": "queue.example.com, *.svc.test"}
RULES = HostRules("http://Broker-1.lan:8080", ("queue.example.com", "*.svc.test", "", " "))


def scope(method: str = "GET", path: str = "/v1/topics", kind: str = "http", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": kind, "method": method, "path": path, "headers": named}


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.0.0.1:8080",
            "10.1.2.3:1",
            "[::1]",
            "[::1]:8080",
            "[fd00::7]:80",
            "localhost",
            "LocalHost:9",
        ),
        *("localhost.:80", "broker-1.lan:8080", "BROKER-1.LAN", "broker-1.lan.", "queue.example.com"),
        *("queue.example.com:443", "a.svc.test", "a.b.SVC.test:1", ""),
    ],
)
def test_hosts_that_pass(host: str) -> None:
    for _ in range(2):
        RULES.check(scope(host=host))


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "svc.test",
            "xsvc.test",
        ),
        *("queue.example.com.evil", "a@127.0.0.1", "127.0.0.1/..", "127.0.0.1, evil", "x:y:z", "127.1", "2130706433"),
        *("[::1", "::1]", "localhost:99999", "localhost:x", "é", "*", ":80", "."),
    ],
)
def test_hosts_that_do_not(host: str) -> None:
    for _ in range(2):
        with pytest.raises(WrongHost, match="allowed_hosts") as refused:
            RULES.check(scope(host=host))
        assert refused.value.fields["setting"] == "allowed_hosts"


def test_no_host_passes_and_two_do_not() -> None:
    RULES.check(scope())
    twice = scope(host="localhost")
    twice["headers"] *= 2
    with pytest.raises(WrongHost):
        RULES.check(twice)


def test_a_star_takes_any_host_and_no_other_origin() -> None:
    rules = HostRules("", ["*"])
    rules.check(scope(host="evil.example"))
    rules.check(scope("POST", host="evil.example", origin="http://evil.example"))
    with pytest.raises(ForeignOrigin):
        rules.check(scope("POST", host="evil.example", origin="http://worse.example"))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("queue.example.com", "https://queue.example.com"),  # behind a proxy with TLS
        ("queue.example.com:443", "https://queue.example.com"),
        ("localhost", "http://localhost:80"),
        ("127.0.0.1", "https://app.svc.test:1234"),  # a name of allowed_hosts
    ],
)
def test_origins_that_pass(host: str, origin: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        RULES.check(scope(method, host=host, origin=origin, sec_fetch_site="cross-site"))


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://127.0.0.1:8081"},
    {"origin": "https://127.0.0.1:8081"},
    {"origin": "http://localhost:8080"},
    {"origin": "file://"},
    {"origin": "http://127.0.0.1:8080, http://evil.example"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "same-origin, cross-site"},
    {"sec_fetch_site": ""},
]
STREAM = "/v1/topics/t/subscriptions/s/stream"


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_foreign_pages_may_read_pages_and_follow_links_alone(headers: dict[str, str]) -> None:
    own = {"host": "127.0.0.1:8080", **headers}
    for method, path in (
        *(("GET", path) for path in ("/v1/topics", "/v1", "/v1/topics/t/segments/0/messages")),
        *((method, "/healthz") for method in ("POST", "DELETE", "PUT", "PATCH", "BREW")),
        ("POST", "/internal/status"),
        ("PUT", "/v1/topics/t/uploads/u/content"),
    ):
        with pytest.raises(ForeignOrigin):
            RULES.check(scope(method, path, **own))
    with pytest.raises(ForeignOrigin):
        RULES.check(scope("", "/", "websocket", **own))
    for path in ("/", "/docs", "/healthz", "/metrics", "/v2"):
        RULES.check(scope("GET", path, **own))


def test_signed_links_pass_and_others_do_not() -> None:
    for site in ("cross-site", "same-site"):
        for method in ("GET", "HEAD"):
            RULES.check(scope(method, "/v1/topics/t/uploads/u/content", host="127.0.0.1", sec_fetch_site=site))
            path = "/v1/topics/t/segments/0/messages/7/payload"
            with pytest.raises(ForeignOrigin):
                RULES.check(scope(method, path, host="127.0.0.1", sec_fetch_site=site))


def test_pages_of_the_broker_and_typed_addresses_pass() -> None:
    for site in ("same-origin", "none"):
        RULES.check(scope("POST", host="127.0.0.1", sec_fetch_site=site))
        RULES.check(scope("GET", STREAM, host="127.0.0.1", sec_fetch_site=site))


SHOWS_NO_PAGE: list[dict[str, str]] = [
    {"seaweedq_client": "curl"},
    {"seaweedq_client": ""},
    {"authorization": "bearer  sq1_x"},
    {"origin": "http://queue.example.com"},
    {"origin": "https://app.svc.test", "sec_fetch_site": "same-site"},
]


@pytest.mark.parametrize("headers", SHOWS_NO_PAGE, ids=str)
def test_a_get_that_leases_shows_that_no_page_has_sent_it(headers: dict[str, str]) -> None:
    asked = scope("GET", STREAM, host="queue.example.com", **headers)
    RULES.check(asked)
    check_client(asked, Action.CONSUME)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic x"}, {"referer": "http://queue.example.com/"}])
def test_a_get_that_leases_and_may_be_an_image_of_a_page_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ForeignOrigin, match="Seaweedq-Client") as refused:
        check_client(scope("GET", STREAM, host="queue.example.com", **headers), Action.CONSUME)
    assert refused.value.fields == {"header": "Seaweedq-Client"}
    check_client(scope("", STREAM, "websocket", host="queue.example.com", **headers), Action.CONSUME)
    check_client(scope("POST", STREAM, host="queue.example.com", **headers), Action.CONSUME)  # both have an Origin
    check_client(scope("GET", "/v1/topics/t/stream", host="queue.example.com", **headers), Action.READ)


# Over HTTP.


def test_a_rebound_name_does_nothing(topic: str, http: httpx.Client) -> None:
    before = refusals(http, "host")
    for method, path in (("DELETE", topic), ("POST", f"{topic}/messages"), ("GET", "/healthz"), ("GET", "/docs")):
        answer = http.request(method, path, headers={"host": "evil.example:8080"})
        found = problem_of(answer, 421, "wrong-host", "evil.example:8080", "allowed_hosts")
        assert found["setting"] == "allowed_hosts"
    assert refusals(http, "host") == before + 4
    for host in ("queue.example.com", "b.svc.test:80", "localhost:1"):
        assert http.get(topic, headers={"host": host}).status_code == 200


def test_a_foreign_page_does_nothing(topic: str, http: httpx.Client) -> None:
    http.put(f"{topic}/subscriptions/s", json={})
    before = refusals(http, "origin")
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "same-site"}):
        for method, path in (
            *(("POST", f"{topic}/{path}") for path in ("messages", "subscriptions/s/pull", "segments/0/split")),
            *(("DELETE", topic), ("GET", topic), ("POST", "/internal/status")),
        ):
            problem_of(http.request(method, path, headers=headers), 403, "foreign-origin")
        assert http.get("/docs", headers=headers).status_code == 200
    assert refusals(http, "origin") == before + 12
    assert http.get(topic, headers={"origin": str(http.base_url)}).status_code == 200


def test_the_page_of_another_port_leases_nothing(topic: str, http: httpx.Client) -> None:
    """As an image of it would, and as one to a name without TLS."""
    http.put(f"{topic}/subscriptions/s", json={"start": "earliest"})
    http.post(f"{topic}/messages", json={"value": 1})
    for headers in ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, {"host": "queue.example.com"}):
        problem_of(http.get(f"{topic}/subscriptions/s/stream", headers=headers), 403, "foreign-origin")
    assert http.get(f"{topic}/subscriptions/s").json()["lag_total"]["in_flight"] == 0
    with http.stream("GET", f"{topic}/subscriptions/s/stream", headers={CLIENT: "test"}) as answer:
        assert answer.status_code == 200
        assert any(line.startswith("data:") for line in answer.iter_lines())
    assert CLIENT in SENT


def test_a_probe_without_a_host_passes(broker: BrokerProcess) -> None:
    with connection(broker) as sock:
        sock.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert answer_of(sock).status_code == 200


def test_a_body_needs_a_content_type(topic: str, octets: str, http: httpx.Client, broker: BrokerProcess) -> None:
    http.put(f"{topic}/subscriptions/s", json={})
    body = b'{"max_messages": 1}'
    for path in ("subscriptions/s/pull", "subscriptions/s/ack", "segments/0/split", "messages", "uploads"):
        problem_of(ask(broker, "POST", f"{topic}/{path}", body=body), 415, "missing-content-type")
    problem_of(ask(broker, "PUT", topic, body=body), 415, "missing-content-type")
    problem_of(ask(broker, "POST", f"{octets}/messages", body=body), 415, "missing-content-type")
    chunked = http.post(f"{octets}/messages", content=iter([b"a", b"b"]))
    problem_of(chunked, 415, "missing-content-type")
    assert ask(broker, "POST", f"{topic}/subscriptions/s/pull").status_code == 200
    assert refusals(http, "content_type") >= 8


def refusals(http: httpx.Client, reason: str) -> float:
    """How many requests were refused for that reason."""
    start = f'seaweedq_refusals_total{{reason="{reason}"}} '
    return next(float(line.split()[1]) for line in http.get("/metrics").text.splitlines() if line.startswith(start))
