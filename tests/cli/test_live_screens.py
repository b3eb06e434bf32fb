"""`seaweedq top` and `seaweedq sql --watch` in a terminal: they draw again and again on a screen of their own, and
leave the last picture behind when Ctrl-C ends them."""

import os
import pty
import signal
import subprocess
import sys
from io import StringIO
from typing import cast

import pytest
from rich.console import Console

from seaweedq import Client
from seaweedq.cli import sql
from seaweedq.cli.sql_database import Database
from tests.support import privates
from tests.support.cli.terminal import PATIENCE_S, shown
from tests.support.processes.broker_process import BrokerProcess

OWN_SCREEN, USUAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "drawn"),
    [
        (("top", "--every-s", "0.5"), b"live_screen"),
        (
            ("sql", "SELECT count(*) AS messages_there FROM live_screen", "--watch", "--every-s", "0.1"),
            b"messages_there",
        ),
    ],
)
def test_it_draws_again_until_ctrl_c_and_leaves_the_last_picture(
    command: tuple[str, ...], drawn: bytes, real_broker: BrokerProcess, real_client: Client
) -> None:
    real_client.publish("live_screen", [{"value": 1}])
    terminal, end = pty.openpty()
    given = [sys.executable, "-m", "seaweedq", *command, "--url", real_broker.url]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    with subprocess.Popen(given, stdin=end, stdout=end, stderr=end, env=env) as process:
        os.close(end)
        text, stopped = b"", False
        for text in shown(terminal):
            if text.count(drawn) > 2 and not stopped:
                stopped = True
                process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0, text
    os.close(terminal)
    before, _, after = text.partition(USUAL_SCREEN)
    assert before.index(OWN_SCREEN) < before.index(drawn)
    assert after.count(drawn) >= 1
    assert b"Traceback" not in text
    real_client.delete_topic("live_screen")


def test_a_watch_that_ends_before_its_first_look_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(sql, "drawing", lambda: Console(file=screen, force_terminal=True))
    monkeypatch.setattr(sql, "repeat", lambda *given: iter(()))
    privates.watch(sql)(cast(Database, None), "SELECT 1", 10, 1.0, wide=False)
    assert "SELECT" not in screen.getvalue()
