"""Requests that wish for another protocol: where it is not served they are taken as if they had not wished."""

import base64
import socket
import time

import pytest

from tests.support.http.raw import answer_of, connection, head
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

WISH = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
BODY = head("GET", "/v1/topics/smuggled")
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def _send(sock: socket.socket, path: str, *lines: str, pieces: tuple[bytes, ...]) -> None:
    first, *rest = pieces
    sock.sendall(head("POST", f"{path}/messages", *WISH, "Content-Type: application/octet-stream", *lines) + first)
    for piece in rest:
        time.sleep(0.05)  # so that it comes by itself
        sock.sendall(piece)


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        (f"Content-Length: {len(BODY)}", (BODY,)),
        (f"Content-Length: {len(BODY)}", (b"", BODY)),
        (f"Content-Length: {len(BODY)}", (BODY[:5], BODY[5:])),
        ("Transfer-Encoding: chunked", (CHUNKED,)),
        ("Transfer-Encoding: chunked", (b"", CHUNKED)),
    ],
)
def test_the_body_of_a_request_that_wishes_for_http_2_is_published(
    broker: BrokerProcess, octets: str, line: str, pieces: tuple[bytes, ...]
) -> None:
    """As Java's HttpClient sends its first request; the body must be neither lost nor taken for a request."""
    with connection(broker) as sock:
        for offset in range(3):
            _send(sock, octets, line, pieces=pieces)
            answer = answer_of(sock)
            assert answer.status_code == 200, answer.text
            sock.sendall(head("GET", f"{octets}/segments/0/messages?offset={offset}"))
            found = answer_of(sock).json()["messages"]
            assert [base64.b64decode(one["value_base64"]) for one in found] == [BODY]


def test_requests_behind_one_that_wishes_are_answered(broker: BrokerProcess) -> None:
    with connection(broker) as sock:
        sock.sendall(head("GET", "/healthz", *WISH) + head("GET", "/v1/topics/none"))
        data = b""
        while data.count(b"HTTP/1.1 ") < 2:
            data += sock.recv(65536)
        assert b"HTTP/1.1 404" in data


def test_a_connect_is_refused(broker: BrokerProcess) -> None:
    with connection(broker) as sock:
        sock.sendall(b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer_of(sock).status_code in (400, 405)


GOOD = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": "\u00e9\u00e9"},
        {"Sec-WebSocket-Key": None},
        {"Sec-WebSocket-Version": "8"},
        {"Sec-WebSocket-Version": None},
        {"Sec-WebSocket-Protocol": ",;="},
        {"Origin": "\u00e9"},
    ],
    ids=str,
)
def test_a_bad_handshake_gets_a_problem_and_one_line_in_the_log(
    broker: BrokerProcess, topic: str, wrong: dict[str, str | None]
) -> None:
    lines = [f"{name}: {value}" for name, value in {**GOOD, **wrong}.items() if value is not None]
    before = len(broker.log)
    for _ in range(20):
        with connection(broker) as sock:
            sock.sendall(head("GET", f"{topic}/stream", *lines))
            answer = answer_of(sock)
            assert answer.status_code in (400, 403), answer.text
            assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert broker.log[before:].count("\n") <= 3
