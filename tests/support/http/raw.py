"""Requests that no honest client sends: raw bytes on a socket, paths as they are."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.processes.broker_process import BrokerProcess


@contextmanager
def connection(broker: BrokerProcess) -> Iterator[socket.socket]:
    """A socket to the broker."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as sock:
        yield sock


def head(method: str, path: str, *lines: str) -> bytes:
    """The head of a request, its header lines as given."""
    text = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: localhost", *lines, ""))
    return text.encode("latin-1")


def answer_of(sock: socket.socket) -> httpx.Response:
    """The answer that comes, read to its stated end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(sock)
    start, _, content = data.partition(b"\r\n\r\n")
    status, *lines = start.decode("latin-1").split("\r\n")
    headers = httpx.Headers([tuple(line.split(": ", 1)) for line in lines])  # type: ignore[misc]
    while len(content) < int(headers["content-length"]):
        content += _some(sock)
    return httpx.Response(int(status.split()[1]), headers=headers, content=content)


def ask(broker: BrokerProcess, method: str, path: str, *lines: str, body: bytes = b"") -> httpx.Response:
    """The answer to a request whose path and header lines are sent as they are."""
    with connection(broker) as sock:
        sock.sendall(head(method, path, *lines, f"Content-Length: {len(body)}") + body)
        return answer_of(sock)


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    assert data, "the connection was closed without an answer"
    return data
