"""`seaweedq publish` beside brokers that fall silent, and people who have waited long enough."""

import io
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from seaweedq.cli import publish
from seaweedq.cli.main import main
from seaweedq.cli.publish import Publication, watched
from seaweedq.client.core.delivery import Outcome
from seaweedq.client.core.wire import Published
from seaweedq.client.sync.producer import Delivery, Receipt
from tests.support.processes.broker_process import BrokerProcess

PATIENCE_S = 40.0


class Silent:
    """A producer whose brokers answer once they are told to: a real one would be silent for seconds."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self._delivery = Delivery()

    def send(self, value: object) -> Receipt:
        return Receipt(self._delivery, 0)

    def flush(self) -> None:
        self.acknowledged = 1
        self._delivery.complete(Outcome(Published(1, [])))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "SILENT_S", 0.05)
    monkeypatch.setattr(publish, "EVERY_S", 0.01)


def _said(capsys: pytest.CaptureFixture[str], text: str) -> Iterator[str]:
    said, end_s = "", time.monotonic() + PATIENCE_S
    while text not in said:
        assert time.monotonic() < end_s, said
        time.sleep(0.01)
        said += capsys.readouterr().err
    yield said


@pytest.mark.usefixtures("impatient")
def test_silence_is_told_once_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    producer = Silent()
    sent = Publication(producer, "stdin", skip_invalid=False)  # type: ignore[arg-type]
    shown: list[int] = []
    with watched(sent, shown.append):
        sent.send(1, lambda: {"value": 1})
        (said,) = _said(capsys, "no broker has accepted a message for")
        assert "trying until" in said
        time.sleep(0.2)
        assert capsys.readouterr().err == ""
        sent.flush()
        assert next(_said(capsys, "brokers accept messages again"))
    assert shown[-1] == 1


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_says_how_many_were_taken(real_broker: BrokerProcess, number: signal.Signals) -> None:
    """Of messages whose answer has come: at a busy time the signal may be before it, which is then told, too."""
    for attempt in range(5):
        taken, unknown = _interrupted(real_broker, f"interrupted-{number}-{attempt}", number)
        assert taken + unknown == 3
        if taken == 3:
            return
    raise AssertionError("no answer was ever taken")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_answer_ends_it(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S)
        url, pipe = f"http://127.0.0.1:{silent.getsockname()[1]}", subprocess.PIPE
        command = [sys.executable, "-m", "seaweedq", "publish", "t", "--url", url]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            asking, _ = silent.accept()
            with asking:
                assert asking.recv(1)
                process.send_signal(number)
                assert process.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert process.returncode == 128 + number


def _interrupted(broker: BrokerProcess, topic: str, number: signal.Signals) -> tuple[int, int]:
    command = [sys.executable, "-m", "seaweedq", "publish", topic, "--url", broker.url]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        process.stdin.write("1\n2\n3\n")
        process.stdin.flush()
        end_s = time.monotonic() + PATIENCE_S
        while _messages(broker, topic) < 3:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (128 + number, "")
    told = re.fullmatch(rf"published (\d) messages to {topic}; the outcome of (\d) more is unknown\n", out)
    assert told, out
    return int(told[1]), int(told[2])


def _messages(broker: BrokerProcess, topic: str) -> int:
    import httpx

    answer = httpx.get(f"{broker.url}/v1/topics/{topic}", timeout=30, trust_env=False)
    return int(answer.json().get("messages", 0))


class Interrupted(io.BytesIO):
    """A stdin of one line, at whose end somebody presses Ctrl-C, once a broker has the line."""

    def __init__(self, asked: threading.Event) -> None:
        super().__init__(b"1\n")
        self._asked = asked

    def __next__(self) -> bytes:
        if line := self.readline():
            return line
        assert self._asked.wait(PATIENCE_S)
        raise KeyboardInterrupt


def test_ctrl_c_waits_for_no_broker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked, answer = threading.Event(), threading.Event()
    with _broker_that_hangs(asked, answer) as url:
        late = threading.Timer(PATIENCE_S / 2, answer.set)
        late.start()
        began_s = time.monotonic()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Interrupted(asked)))
        with pytest.raises(SystemExit) as ended:
            main(["publish", "hanging", "--url", url])
        took_s = time.monotonic() - began_s
        late.cancel()
        answer.set()
    assert took_s < PATIENCE_S / 4
    assert ended.value.code == 130
    assert capsys.readouterr().out == "published 0 messages to hanging; the outcome of 1 more is unknown\n"


@contextmanager
def _broker_that_hangs(asked: threading.Event, answer: threading.Event) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"type": "/problems/topic-not-found", "status": 404}'
            self.send_response(404)
            self.send_header("content-type", "application/problem+json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.set()
            answer.wait()
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
