"""The welcome of `seaweedq serve`, and the live line below it, which neither logs nor Ctrl-C garble."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seaweedq import Client
from seaweedq.cli.server.live_line import ERASE, Figures, LiveLine, text_of
from tests.support.cli.terminal import PATIENCE_S, shown

LINE = re.compile(r"in [\d,]+/s · out [\d,]+/s · [\d,]+ topics? · [\d,]+ behind")


class Screen(io.StringIO):
    """A terminal's stream, and what a person sees of it."""

    def fileno(self) -> int:
        raise OSError

    def seen(self) -> list[str]:
        return seen(self.getvalue())


def seen(text: str) -> list[str]:
    """The lines of a terminal that was given a text."""
    lines = [""]
    for piece in re.findall(r"\r\n|\r\x1b\[2K|\n|\x1b\[\d*m|[^\r\n\x1b]+|.", re.sub("\r\n", "\n", text), re.DOTALL):
        if piece == "\n":
            lines.append("")
        elif piece == ERASE:
            lines[-1] = ""
        elif not piece.startswith("\x1b["):
            lines[-1] += piece
    return lines


def drawn(screen: Screen, line: LiveLine, text: str) -> None:
    """Shows a line, and waits until it is drawn."""
    line.show(text)
    until_s = time.monotonic() + PATIENCE_S
    while text not in screen.seen()[-1]:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_the_line_has_rates_between_two_looks() -> None:
    before, now = Figures(1_000, 500, 1, 500), Figures(3_400, 1_700, 1, 1_700)
    assert text_of(before, now, 2.0) == "in 1,200/s · out 600/s · 1 topic · 1,700 behind"


def test_what_is_printed_goes_above_the_line() -> None:
    screen = Screen()
    line = LiveLine(screen)
    out, log = line.above(screen), line.above(screen)
    print("welcome", file=out)
    drawn(screen, line, "in 1/s")
    log.write("a log line\n")
    assert screen.seen() == ["welcome", "a log line", "in 1/s"]
    line.end()
    print("good bye", file=out)
    assert screen.seen() == ["welcome", "a log line", "good bye", ""]


def test_a_text_without_its_end_is_not_drawn_over() -> None:
    screen = Screen()
    line = LiveLine(screen)
    out = line.above(screen)
    drawn(screen, line, "in 1/s")
    out.write("half")
    line.show("in 2/s")
    time.sleep(0.05)
    assert screen.seen() == ["half"]
    out.write(" a line\n")
    assert screen.seen() == ["half a line", "in 2/s"]


# Makes stdin the controlling terminal, from which Ctrl-C comes.
ENTER = """import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "seaweedq", *sys.argv[1:]])"""


def texts(terminal: int) -> Iterator[str]:
    return (text.decode(errors="replace") for text in shown(terminal))


@pytest.mark.process
def test_at_a_terminal_the_line_follows_and_ctrl_c_leaves_whole_lines(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-c", ENTER, "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=env, start_new_session=True)
    os.close(end)
    published = stopped = False
    text = ""
    for text in texts(terminal):
        if not published and LINE.search(text):
            published = True
            url = re.search(r"at (http://\S+),", text)
            assert url
            with Client(url[1]) as client:
                client.create_topic("lively")
                client.create_subscription("lively", "late", start="earliest")
                client.publish("lively", [{"value": n} for n in range(100)])
                assert len(list(client.subscribe("lively", "late", idle_timeout_s=0.1))) == 100
        if not stopped and "100 behind" in text:
            stopped = True
            os.write(terminal, b"\x03")
    assert process.wait(PATIENCE_S) == 0, text
    os.close(terminal)
    assert "1 topic · 100 behind" in text
    rates = {(a, b) for a, b in re.findall(r"in ([\d,]+)/s · out ([\d,]+)/s", text)}
    assert rates - {("0", "0")}
    lines = seen(text)
    assert not LINE.search("\n".join(lines)), "the line goes as the broker stops"
    labels = [line.split()[0] for line in lines if line.startswith("  ")]
    assert labels == ["console", "publish", "query"]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:|seaweedq broker\.|  |$|\^C$", line) for line in lines), lines


@pytest.mark.long
@pytest.mark.process
def test_without_a_terminal_there_are_plain_lines_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "seaweedq", "serve", "--port", "0", "--log-level", "error", "--data-dir"]
    with subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline().decode()
        labelled = [process.stdout.readline().decode() for _ in range(3)]
        time.sleep(1.2)
        process.terminate()
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert re.fullmatch(r"seaweedq \S+ at http://127\.0\.0\.1:\d+, store file://\S+\n", first)
    assert [line.split()[0] for line in labelled] == ["console", "publish", "query"]
    assert (rest, errors, "\x1b" in "".join(labelled)) == (b"", b"", False)
