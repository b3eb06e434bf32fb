"""Which hosts and pages reach a broker: DNS that points here, pages of other sites, bodies without a type. Pages of
other origins: only listed ones may ask, and never with what a browser keeps. What is encoded in a name chooses no
other route.
"""

from pathlib import Path

import httpx
import pytest

from seaweedq.api.access.origins import CLIENT, SENT, CorsRules, HostRules, check_client, check_raw_path
from seaweedq.api.request import Request
from seaweedq.errors import ForeignOrigin, RouteNotFound, WrongHost
from seaweedq.settings import Settings
from tests.support.http.asking import problem_of
from tests.support.http.raw import answer_of, ask, connection
from tests.support.http.requests import matched, of_scope
from tests.support.http.with_tokens import EVERYTHING, access
from tests.support.processes.broker_process import BrokerProcess

ENV = {"SEAWEEDQ_ALLOWED_HOSTS": "queue.example.com, *.svc.test"}
RULES = HostRules("http://Broker-1.lan:8080", ("queue.example.com", "*.svc.test", "", " "))


def asked(method: str = "GET", path: str = "/v1/topics", kind: str = "http", **headers: str) -> Request:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return of_scope({"type": kind, "method": method, "path": path, "headers": named})


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
        RULES.check(asked(host=host))


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
            RULES.check(asked(host=host))
        assert refused.value.fields["setting"] == "allowed_hosts"


def test_no_host_passes_and_two_do_not() -> None:
    RULES.check(asked())
    twice = of_scope({"headers": 2 * [(b"host", b"localhost")]})
    with pytest.raises(WrongHost):
        RULES.check(twice)


def test_a_star_takes_any_host_and_no_other_origin() -> None:
    rules = HostRules("", ["*"])
    rules.check(asked(host="evil.example"))
    rules.check(asked("POST", host="evil.example", origin="http://evil.example"))
    with pytest.raises(ForeignOrigin):
        rules.check(asked("POST", host="evil.example", origin="http://worse.example"))


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
        RULES.check(asked(method, host=host, origin=origin, sec_fetch_site="cross-site"))


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
            RULES.check(asked(method, path, **own))
    with pytest.raises(ForeignOrigin):
        RULES.check(asked("", "/", "websocket", **own))
    for path in ("/", "/docs", "/healthz", "/metrics", "/v2"):
        RULES.check(asked("GET", path, **own))


def test_signed_links_pass_and_others_do_not() -> None:
    for site in ("cross-site", "same-site"):
        for method in ("GET", "HEAD"):
            RULES.check(asked(method, "/v1/topics/t/uploads/u/content", host="127.0.0.1", sec_fetch_site=site))
            path = "/v1/topics/t/segments/0/messages/7/payload"
            with pytest.raises(ForeignOrigin):
                RULES.check(asked(method, path, host="127.0.0.1", sec_fetch_site=site))


def test_pages_of_the_broker_and_typed_addresses_pass() -> None:
    for site in ("same-origin", "none"):
        RULES.check(asked("POST", host="127.0.0.1", sec_fetch_site=site))
        RULES.check(asked("GET", STREAM, host="127.0.0.1", sec_fetch_site=site))


SHOWS_NO_PAGE: list[dict[str, str]] = [
    {"seaweedq_client": "curl"},
    {"seaweedq_client": ""},
    {"authorization": "bearer  sq1_x"},
    {"origin": "http://queue.example.com"},
    {"origin": "https://app.svc.test", "sec_fetch_site": "same-site"},
]


@pytest.mark.parametrize("headers", SHOWS_NO_PAGE, ids=str)
def test_a_get_that_leases_shows_that_no_page_has_sent_it(headers: dict[str, str]) -> None:
    leasing = matched(asked("GET", STREAM, host="queue.example.com", **headers))
    RULES.check(leasing)
    check_client(leasing)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic x"}, {"referer": "http://queue.example.com/"}])
def test_a_get_that_leases_and_may_be_an_image_of_a_page_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ForeignOrigin, match="Seaweedq-Client") as refused:
        check_client(matched(asked("GET", STREAM, host="queue.example.com", **headers)))
    assert refused.value.fields == {"header": "Seaweedq-Client"}
    check_client(matched(asked("", STREAM, "websocket", host="queue.example.com", **headers)))
    pull = STREAM.replace("stream", "pull")
    check_client(matched(asked("POST", pull, host="queue.example.com", **headers)))  # both have an Origin
    check_client(matched(asked("GET", "/v1/topics/t/stream", host="queue.example.com", **headers)))


# Over HTTP.


@pytest.mark.process
def test_a_rebound_name_does_nothing(topic: str, http: httpx.Client) -> None:
    before = refusals(http, "host")
    for method, path in (("DELETE", topic), ("POST", f"{topic}/messages"), ("GET", "/healthz"), ("GET", "/docs")):
        answer = http.request(method, path, headers={"host": "evil.example:8080"})
        found = problem_of(answer, 421, "wrong-host", "evil.example:8080", "allowed_hosts")
        assert found["setting"] == "allowed_hosts"
    assert refusals(http, "host") == before + 4
    for host in ("queue.example.com", "b.svc.test:80", "localhost:1"):
        assert http.get(topic, headers={"host": host}).status_code == 200


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
def test_a_probe_without_a_host_passes(broker: BrokerProcess) -> None:
    with connection(broker) as sock:
        sock.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert answer_of(sock).status_code == 200


@pytest.mark.process
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


ORIGIN, FOREIGN_PAGE = "https://app.example.com", "https://evil.example"
ASKS = {"access-control-request-method": "PUT", "access-control-request-headers": "authorization, content-type"}


def never_with_credentials(answer: httpx.Response) -> bool:
    named = answer.headers.get("access-control-allow-origin")
    return named != "*" and "access-control-allow-credentials" not in answer.headers


@pytest.mark.brokers
async def test_a_listed_origin_may_ask_with_a_token_and_a_foreign_one_may_not(tmp_path: Path) -> None:
    async with access(tmp_path, cors_origins=f"{ORIGIN}, http://localhost:3000") as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        for path in ("/v1/topics/t", "/v1/topics/none/messages", "/nothing"):
            preflight = await http("OPTIONS", path, headers={"origin": ORIGIN, **ASKS})
            assert preflight.status_code == 204
            assert preflight.headers["access-control-allow-origin"] == ORIGIN
            assert "PUT" in preflight.headers["access-control-allow-methods"]
            assert "Authorization" in preflight.headers["access-control-allow-headers"]
            assert never_with_credentials(preflight)
            refused = await http("OPTIONS", path, headers={"origin": FOREIGN_PAGE, **ASKS})
            assert refused.status_code in (403, 404)
            assert "access-control-allow-origin" not in refused.headers
        made = await http("PUT", "/v1/topics/t", token, headers={"origin": ORIGIN, "sec-fetch-site": "cross-site"})
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, ORIGIN)
        assert never_with_credentials(made)
        unknown = await http("GET", "/v1/topics/t", headers={"origin": ORIGIN})
        assert (unknown.status_code, unknown.headers["access-control-allow-origin"]) == (401, ORIGIN)
        foreign = await http("GET", "/v1/topics/t", token, headers={"origin": FOREIGN_PAGE})
        assert foreign.status_code == 403
        assert "access-control-allow-origin" not in foreign.headers
        assert [one.headers["vary"] for one in (made, foreign)] == ["Origin"] * 2, "caches keep them apart"


@pytest.mark.brokers
async def test_a_page_may_read_the_headers_by_which_it_goes_on(tmp_path: Path) -> None:
    async with access(tmp_path, cors_origins=ORIGIN) as http:
        headers = {"origin": ORIGIN, "accept": "application/vnd.apache.arrow.stream"}
        await http("PUT", "/v1/topics/t", http.admin)
        page = await http("GET", "/v1/topics/t/segments/0/messages", http.admin, headers=headers)
        assert page.headers["next-offset"] == "0"
        shown = page.headers["access-control-expose-headers"].lower().split(", ")
        assert {"next-offset", "sealed", "successors", "lease"} <= {*shown}


@pytest.mark.brokers
async def test_by_default_no_origin_may(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        preflight = await http("OPTIONS", "/v1/topics/t", headers={"origin": ORIGIN, **ASKS})
        assert preflight.status_code == 403
        assert "access-control-allow-origin" not in preflight.headers
        assert "vary" not in (await http("GET", "/v1/topics", http.admin)).headers


def test_origins_are_exact() -> None:
    rules = CorsRules(["https://App.example.com/ "])
    assert rules.allow(b"https://app.example.com")
    for other in (b"http://app.example.com", b"https://app.example.com:8443", b"https://app.example.com.evil", b"null"):
        assert not rules.allow(other)
    assert not CorsRules([""]).allow(b"")
    for wrong in ("*", "app.example.com", "https://*.example.com", "https://app.example.com/path"):
        with pytest.raises(ValueError, match="cors_origins"):
            Settings(cors_origins=wrong)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/v1/topics/a%2Fsubscriptions%2Fb", "/v1/topics/a/subscriptions/b"),
        (b"/v1/topics/a/subscriptions/..%2f..%2Fb", "/v1/topics/a/subscriptions/../../b"),
        (b"/%69nternal/topic", "/internal/topic"),
        (b"/%2Finternal", "//internal"),
    ],
)
def test_an_encoded_slash_or_internal_path_is_no_route(raw: bytes, path: str) -> None:
    with pytest.raises(RouteNotFound):
        check_raw_path(of_scope({"path": path, "raw_path": raw}))


@pytest.mark.parametrize("raw", [b"/v1/topics/a", b"/v1/topics/%C3%BC", b"/internal/topic", b"/v1/topics/a%20b", b""])
def test_other_paths_pass(raw: bytes) -> None:
    path = {b"/v1/topics/%C3%BC": "/v1/topics/\u00fc", b"/v1/topics/a%20b": "/v1/topics/a b"}.get(raw, raw.decode())
    check_raw_path(of_scope({"path": path, "raw_path": raw}))
    check_raw_path(of_scope({"path": path}))


@pytest.mark.process
def test_a_name_with_a_slash_is_not_the_name_of_something_else(real_broker, real_client) -> None:  # type: ignore[no-untyped-def]
    real_client.create_topic("raw-path")
    list(real_client.subscribe("raw-path", "kept", start="earliest", idle_timeout_s=0.1))
    for name in ("raw-path%2Fsubscriptions%2Fkept", "raw-path%2fsubscriptions%2Fkept"):
        answer = httpx.delete(f"{real_broker.url}/v1/topics/{name}", timeout=30, trust_env=False)
        assert (answer.status_code, "names in a path cannot contain a slash" in answer.json()["detail"]) == (404, True)
    assert [one["name"] for one in real_client.subscriptions("raw-path")] == ["kept"]
