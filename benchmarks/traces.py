"""Traces: the broker's CPU of a publish of one message without them, with them and a client that is not sampled, and
with one that is; the spans go to a collector in this process. Brokers with traces store a header with each message, so
messages of their own with such a header are beside them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from benchmarks import server
from benchmarks.access import single
from benchmarks.http import per_s, request, run
from benchmarks.result import Result

TURNS, COUNT, CONNECTIONS = 5, 2_000, 32
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
WAYS = {  # the broker, the flags of the request's context, and what each message has
    "off": ("off", "01", ""),
    "off, messages with a header": ("off", "01", f',"headers":{{"traceparent":"{CONTEXT}00"}}'),
    "on, not sampled": ("on", "00", ""),
    "on, sampled": ("on", "01", ""),
}


def measure(folder: Path) -> Iterator[Result]:
    """All of them in turns, over two brokers."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with (
        _collector() as url,
        server.broker(folder / "on", "--otel-endpoint", url) as on,
        server.broker(folder / "off") as off,
    ):
        brokers = {"on": on, "off": off}
        bodies = {way: _requests(flags, headers) for way, (_, flags, headers) in WAYS.items()}
        for turn in range(TURNS + 1):
            for way in list(WAYS) if turn % 2 else list(WAYS)[::-1]:
                broker = brokers[WAYS[way][0]]
                before = broker.cpu_s()
                run(broker.port, CONNECTIONS, lambda opened, way=way: per_s(opened, bodies[way]))
                if turn:  # the first one warms the brokers up
                    found[way].append((broker.cpu_s() - before) / COUNT * 1e6)
    for way, values in found.items():
        yield Result(
            name=f"traces, CPU of a publish, {way}",
            figure=min(values),
            unit="µs",
            limit=min(found["off"]) if way != "off" else None,
            limit_is="without traces, in turns",
            better="lower",
            note=f"one message, {CONNECTIONS} connections; best of {TURNS} turns, median {median(values):.0f}",
        )


def _requests(flags: str, headers: str) -> list[bytes]:
    path, more = "/v1/topics/bench/messages", [f"traceparent: {CONTEXT}{flags}"]
    bodies = [single(number)[:-1] + headers.encode() + b"}" for number in range(COUNT)]
    return [request(path, body, "application/json", more=more) for body in bodies]


@contextmanager
def _collector() -> Iterator[str]:
    """A server that takes what OTLP brings it."""

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    taker = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    thread = threading.Thread(target=taker.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{taker.server_port}"
    finally:
        taker.shutdown()
        thread.join()
        taker.server_close()
