"""`topic split`, `merge`, `roll`, `move`, `watch` and `history` against a real broker."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli import main
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.command import seaweedq

Run = Callable[..., str]


@pytest.fixture
def run(real_broker: BrokerProcess) -> Run:
    def command(*arguments: str, code: int = 0, columns: int = 100) -> str:
        done = seaweedq(*arguments_of(real_broker, *arguments), env={"COLUMNS": str(columns)})
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return command


def arguments_of(broker: BrokerProcess, name: str, *rest: str) -> list[str]:
    return ["topic", name, "--url", broker.url, *rest]


def command_of(broker: BrokerProcess, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "seaweedq", *arguments_of(broker, *arguments)]


def make(client: Client, topic: str) -> None:
    """A topic of 300 messages with keys."""
    client.create_topic(topic, key_field="k")
    client.publish(topic, [{"value": {"k": f"k{n}"}} for n in range(300)])


@pytest.mark.process
def test_what_came_about_is_said(run: Run, real_client: Client) -> None:
    make(real_client, "hand")
    (broker,) = {segment["owner"] for segment in real_client.segments("hand")}
    third = (2**31 - 1) // 3
    assert run("split", "hand", "0", "--parts", "3").splitlines() == [
        "split of 0 is done: their keys now belong to",
        f"  segment 1: keys 0 to {third}, on {broker}",
        f"  segment 2: keys {third} to {2 * third}, on {broker}",
        f"  segment 3: keys {2 * third} to 2147483647, on {broker}",
        "the balancer merges idle segments after 600 s; to keep 3: seaweedq topic set hand --min-segments 3",
    ]
    assert run("merge", "hand", "2", "1").splitlines() == [
        "merge of 1, 2 is done: their keys now belong to",
        f"  segment 4: keys 0 to {2 * third}, on {broker}",
    ]
    at = run("split", "hand", "4", "--at", "5", "--at", "700")
    assert re.findall(r"segment (\d+): keys (\d+) to (\d+)", at) == [
        ("5", "0", "5"),
        ("6", "5", "700"),
        ("7", "700", str(2 * third)),
    ]
    assert "segment 8: keys 0 to 5" in run("roll", "hand", "5")
    assert run("split", "hand", "7").count("\n  segment") == 2
    assert run("move", "hand", "3", "--to", "broker") == f"segment 3 is owned by {broker}\n"
    messages = sum(segment["end_offset"] for segment in real_client.segments("hand"))
    assert messages == 300


@pytest.mark.process
def test_what_could_not_be_is_one_line(run: Run, real_client: Client) -> None:
    make(real_client, "not")
    run("split", "not", "0")
    assert run("split", "not", "0", code=1) == "seaweedq: segment 0 was replaced by the segments [1, 2]\n"
    assert "no segment 9" in run("roll", "not", "9", code=1)
    assert "different" in run("merge", "not", "1", "1", code=1)
    assert "no broker 'b7' is running" in run("move", "not", "1", "--to", "b7", code=1)
    assert "topic 'nowhere' does not exist" in run("roll", "nowhere", "0", code=1)
    for wrong in (["--parts", "1"], ["--at", "0"], ["--parts", "2", "--at", "7"]):
        assert "; see seaweedq topic split --help" in run("split", "not", "1", *wrong, code=2)
    assert "url must be a URL" in run("roll", "not", "1", "--url", "ftp://x", code=2)


@pytest.mark.process
def test_one_picture_of_the_segments(run: Run, real_client: Client) -> None:
    make(real_client, "seen")
    run("split", "seen", "0", "--parts", "4")
    lines = run("watch", "seen", "--once", columns=80).splitlines()
    assert re.match(r"seen  \d\d:\d\d:\d\d UTC  4 open · 1 sealed · 1 broker · 300 messages, 0/s", lines[0])
    assert lines[2].split() == ["1", "2", "3", "4"]
    assert max(map(len, lines)) <= 80
    assert lines[-1].endswith("  split 0 → 1, 2, 3, 4")
    assert "topic 'unseen' does not exist" in run("watch", "unseen", "--once", code=1)


@pytest.mark.process
def test_without_a_terminal_changes_are_lines(run: Run, real_broker: BrokerProcess, real_client: Client) -> None:
    make(real_client, "lines")
    command = command_of(real_broker, "watch", "lines")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        lines_until(watching.stdout, "owner")
        lines_until(watching.stdout, "broker.")
        assert watching.stdout.readline() == "\n"
        run("split", "lines", "0")
        run("merge", "lines", "1", "2")
        said = lines_until(watching.stdout, "merge")
        run("roll", "lines", "3")
        said += lines_until(watching.stdout, "roll")
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=60)
    assert re.sub(r"\d\d:\d\d:\d\d", "T", said) == "T  split 0 → 1, 2\nT  merge 1, 2 → 3\nT  roll 3 → 4\n"
    assert (complaint, watching.returncode) == ("", 0)


def lines_until(stream: IO[str], word: str) -> str:
    """What comes, up to the line that has the word."""
    said = ""
    while word not in said:
        line = stream.readline()
        assert line, said
        said += line
    return said


@pytest.mark.process
@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_a_terminal_shows_it_live_until_an_interrupt(
    run: Run, real_broker: BrokerProcess, real_client: Client, how: str
) -> None:
    make(real_client, f"live-{how}")
    child, terminal = pty.fork()
    if child == 0:
        command = command_of(real_broker, "watch", f"live-{how}")
        os.execve(command[0], command, {**os.environ, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "30"})
    shown = until(terminal, b"segment")
    run("split", f"live-{how}", "0")
    shown += until(terminal, "split 0 → 1, 2".encode())
    if how == "ctrl-c":
        os.write(terminal, b"\x03")
    else:
        os.kill(child, signal.SIGTERM)
    shown += until(terminal, b"")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"Traceback" not in shown
    live, _, last = shown.partition(b"\x1b[?1049l")  # the other screen ends, and the last picture stays
    assert live.count(b"\x1b[?1049h") == 1
    assert "split 0 → 1, 2" in last.decode()


def until(terminal: int, wanted: bytes, within_s: float = 30) -> bytes:
    """What a terminal shows until it has shown that, or, of nothing, until its end."""
    shown, end = b"", time.monotonic() + within_s
    while not wanted or wanted not in shown:
        assert time.monotonic() < end, shown.decode(errors="replace")
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65_536)
            except OSError:  # how Linux says that the other side is closed
                return shown
            if not data:
                return shown
            shown += data
    return shown


@pytest.mark.process
def test_the_history_as_a_table_and_as_a_picture(run: Run, real_client: Client, tmp_path: Path) -> None:
    make(real_client, "past")
    run("split", "past", "0")
    run("merge", "past", "1", "2")
    rows = [line.split() for line in run("history", "past").splitlines()]
    assert rows[0][:4] == ["segment", "keys", "from", "to"]
    assert [row[0] for row in rows[1:-1]] == ["0", "1", "2", "3"]
    assert rows[1][6:9] == ["1", "2", "300"]
    assert rows[2][6:8] == ["0", "3"]
    wide = run("history", "past", columns=140).splitlines()[0].split()
    assert wide[-5:] == ["last", "hour", "highest", "hot", "key"]
    assert "4 segments, 1 open, 1 split, 1 merge; drawn into" in run(
        "history", "past", "--plot", str(tmp_path / "a.png")
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "must end in one of" in run("history", "past", "--plot", str(tmp_path / "a.txt"), code=2)
    assert "does not exist" in run("history", "past", "--plot", str(tmp_path / "no" / "a.png"), code=2)
    assert "topic 'never' does not exist" in run("history", "never", code=1)


@pytest.mark.parametrize("name", ["split", "merge", "roll", "move", "watch", "history"])
def test_every_command_has_examples(name: str) -> None:
    shown = CliRunner().invoke(main.app, ["topic", name, "--help"]).stdout
    assert f"seaweedq topic {name} flights" in " ".join(shown.split())
