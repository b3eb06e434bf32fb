"""The demo, short: what was acknowledged is in SQL after a kill. With flights, on a slice: four counts agree. No exit
path leaves a process behind."""

import os
import pty
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from seaweedq.cli.child_process import Broker, free_port
from seaweedq.cli.demo import Demo, Story
from seaweedq.cli.main import app
from seaweedq.errors import ClientError
from tests.support.cli.terminal import shown
from tests.support.tiers import soaked

pytestmark = pytest.mark.process

ROWS = 4000
GOES_S = 20


def _demo(folder, *arguments, **environment):
    command = [
        sys.executable,
        "-m",
        "seaweedq",
        "demo",
        "--flights",
        "--rows",
        str(ROWS),
        "--picture",
        str(folder / "a.png"),
        *arguments,
    ]
    environment = os.environ | environment | {"TMPDIR": str(folder)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _left_behind(folder):
    """The processes that stay: a fork of a killed broker that is about to become another program goes by itself."""
    end = time.monotonic() + GOES_S
    while found := [one.info for one in psutil.process_iter(["ppid", "status", "cmdline"]) if _is_of(one.info, folder)]:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return found


def _is_of(process, folder):
    return str(folder) in " ".join(process["cmdline"] or [])


def _until(stream, word):
    for line in stream:
        if line.startswith(word):
            return line
    raise AssertionError(f"no line begins with {word}")


def test_what_was_acknowledged_is_in_sql_after_a_kill(tmp_path: Path) -> None:
    screen = StringIO()
    with (
        Broker(tmp_path, free_port(), tmp_path / "log") as broker,
        Story(Console(file=screen, width=300), False) as story,
    ):
        paste = Demo(broker, story, random.Random(1), part_s=0.3).run()
        lines = screen.getvalue().splitlines()
        assert [line.split()[1] for line in lines] == ["broker", "split", "SIGKILL", "recovery", "publish", "SQL"]
        published, found = re.findall(r"[\d,]+(?= published| in SQL)", lines[-1])
        assert published == found
        assert int(found.replace(",", "")) > 0
        for line in paste[::2]:  # the second one watches until an interrupt
            words = shlex.split(line)
            assert CliRunner().invoke(app, words[1:]).exit_code == 0, line


class _Ready(BaseHTTPRequestHandler):
    """Answers each request with 200, as a broker that is ready does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


@contextmanager
def another_broker(port: int) -> Iterator[int]:
    """Listens on a port as another broker, and yields the port."""
    with HTTPServer(("127.0.0.1", port), _Ready) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        yield other.server_port
        other.shutdown()


def test_a_port_on_which_another_broker_listens_is_refused(tmp_path: Path) -> None:
    """That broker would take the orders, and be told of as the demo's own."""
    with another_broker(0) as port:
        ended = CliRunner().invoke(app, ["demo", "--port", str(port), "--data-dir", str(tmp_path / "data")])
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in str(ended.exception)
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_a_broker_that_took_the_port_after_the_kill_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path, port := free_port(), tmp_path / "log") as broker:
        broker.start()
        broker.kill()
        with another_broker(port), pytest.raises(ClientError, match=f"cannot listen on 127.0.0.1:{port}"):
            broker.start()


@pytest.mark.long
def test_at_a_terminal_it_draws_and_the_broker_runs_until_an_interrupt(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40", "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-m", "seaweedq", "demo"], stdin=end, stdout=end, stderr=end, env=env) as it:
        os.close(end)
        text, stopped = b"", False
        for text in shown(terminal):
            if b"--max 3" in text and not stopped:
                stopped = True
                time.sleep(1)  # it stays, whatever signals come that mean nothing
                assert it.poll() is None
                it.send_signal(signal.SIGINT)
        assert it.wait(60) == 0, text
    os.close(terminal)
    assert "▁".encode() in text
    assert not _left_behind(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("--rows", "20"), ("--picture", "a.png"), ("--no-spark",)])
def test_an_option_of_the_flights_without_them_is_refused(option: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(app, ["demo", *option])
    assert ended.exit_code == 2
    assert "--flights" in ended.stderr


@pytest.mark.long
def test_the_demo_with_flights_agrees_after_a_kill_and_cleans_up(tmp_path):
    process = _demo(tmp_path, "--exit", "--no-spark")
    out, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    lines = out.splitlines()
    for line in (f"published {ROWS}", f"pulled {ROWS}", f"duckdb {ROWS}"):
        assert line in lines
    assert [line for line in lines if line.startswith("SIGKILL")]
    assert [line for line in lines if line.startswith("restart")]
    assert (tmp_path / "a.png").exists()
    assert not _left_behind(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("CI") and not os.path.exists("/usr/bin/java"), reason="there is no Java here")
def test_spark_reads_the_same(tmp_path):
    process = _demo(tmp_path, "--exit")
    out, complaint = process.communicate(timeout=200)
    assert process.returncode == 0, complaint
    assert f"spark {ROWS}" in out.splitlines()
    assert complaint == ""
    assert not _left_behind(tmp_path)


@pytest.mark.long
def test_without_java_it_says_so_and_ends_with_duckdb(tmp_path):
    process = _demo(tmp_path, "--exit", PATH="/nowhere", JAVA_HOME="")
    out, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    assert "no Java" in out
    assert f"duckdb {ROWS}" in out.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, soaked(signal.SIGTERM)])
@pytest.mark.parametrize("moment", ["broker", "SIGKILL"])
def test_no_signal_leaves_a_broker_behind(tmp_path, number, moment):
    with _demo(tmp_path, "--exit", "--no-spark") as process:
        _until(process.stdout, moment)
        process.send_signal(number)
        said, complaint = process.communicate(timeout=60)
    assert process.returncode != 0, (said, complaint)
    assert not _left_behind(tmp_path)


@pytest.mark.long
def test_a_folder_with_flights_in_it_is_refused(tmp_path):
    with _demo(tmp_path, "--exit", "--no-spark", "--data-dir", str(tmp_path / "kept")) as first:
        first.communicate(timeout=120)
    with _demo(tmp_path, "--exit", "--no-spark", "--data-dir", str(tmp_path / "kept")) as second:
        _, complaint = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 1)
    assert "--data-dir" in complaint
    assert complaint.count("\n") == 1
    assert not _left_behind(tmp_path)
