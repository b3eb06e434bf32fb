"""`seaweedq cluster rebuild`: it waits for the broker, and says what was done, or would be."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from seaweedq.cli.cluster import app, rebuild_lines

ANSWER = {
    "generation": 2,
    "source": "snapshot",
    "state_generation": 1,
    "state_number": 7,
    "state_revision": 90,
    "keys": 1412,
    "journals": ["a.1"],
    "left_out": [],
    "hindering": {},
    "damaged": [],
    "unverified": [],
    "topics": [],
    "may_be_lost": ["links"],
}
TOPIC = {
    "topic": "t",
    "segments_ended": 1,
    "segments_begun": 2,
    "segments_closed": 0,
    "uploads_kept": 0,
    "imports_moved": 0,
    "damage": [],
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "state: snapshot, generation 1, number 7, revision 90"),
        ({"source": "nothing"}, "state: nothing: everything comes from the store"),
        ({}, "journal of a.1: will be replayed"),
        ({"hindering": {"b.2": "no lock"}}, "journal of b.2: CANNOT BE READ: no lock"),
        ({"damaged": ["x"]}, "backup x: damaged, not used"),
        ({"unverified": ["x"]}, "backup x: made with another secret, so it grants no permissions"),
        ({"topics": [TOPIC]}, "topic t: 1 segments sealed since, 2 segments created since"),
        ({"topics": [{**TOPIC, "segments_ended": 0, "segments_begun": 0, "damage": ["no file"]}]}, "topic t: no file"),
        ({}, "may be lost: links"),
    ],
)
def test_lines(changes: dict[str, object], line: str) -> None:
    assert line in rebuild_lines({**ANSWER, **changes})


def test_the_last_line_says_what_was_done() -> None:
    assert rebuild_lines(ANSWER)[-1] == "rebuilt: coordination has generation 2, and 1,412 keys"
    planned = rebuild_lines({**ANSWER, "generation": 0})
    assert planned[-1] == "nothing was changed; a rebuild would write 1,412 keys"


WAITS = 503, {"type": "/problems/restored", "title": "Restored", "status": 503, "detail": "coordination was lost"}
READY = 200, {"status": "ok"}


@contextmanager
def broker(*script: tuple[str, tuple[int, dict[str, object]]]) -> Iterator[tuple[str, list[str]]]:
    """Answers requests as the script says, one after the other: the URL, and the requests that came."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, body = script[len(came)][1]
            came.append(f"{self.command} {self.path}")
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json" if status == 200 else "application/problem+json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


POST, LOOK = "POST /v1/cluster/rebuild", "GET /readyz"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (((POST, (200, ANSWER)), (LOOK, WAITS), (LOOK, WAITS), (LOOK, READY)), []),
        (((POST, WAITS), (LOOK, READY), (LOOK, WAITS), (POST, (200, ANSWER)), (LOOK, READY)), []),
        (((POST, (200, {**ANSWER, "generation": 0})),), ["--dry-run"]),
    ],
    ids=["until the broker is ready", "first until all brokers wait", "not for a plan"],
)
def test_the_command_waits(script: tuple[tuple[str, tuple[int, dict[str, object]]], ...], options: list[str]) -> None:
    with broker(*script) as (url, came):
        done = CliRunner().invoke(app, ["rebuild", "--url", url, *options])
    assert done.exit_code == 0, done.output
    assert came == [wanted for wanted, _ in script]
