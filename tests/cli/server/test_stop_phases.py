"""The phases of a stop: each may hang, and the process ends in time nevertheless."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.leadership import Leadership
from seaweedq.broker.rpc.client import Peers
from seaweedq.cli.server import broker_process
from seaweedq.cli.server.broker_process import BrokerProcess
from seaweedq.cli.server.http_server import HttpServer
from seaweedq.cli.server.stop_signals import SIGNALS, StopDeadline, StopSignals
from seaweedq.coordination.membership import Membership
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.settings import Settings
from seaweedq.storage.local import LocalStore
from tests.support import privates
from tests.support.tiers import later

STOP_S, OVERTIME_S, MARGIN_S = 1.0, 0.2, 10.0


class Hang:
    """A step that does not end before the deadline is over; `began` tells that it was reached."""

    def __init__(self) -> None:
        self.began = False
        self._over: asyncio.Event | None = None

    def put_into(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        method = getattr(owner, name)

        @wraps(method)
        async def hang(*given: Any, **named: Any) -> Any:
            self.began, self._over, self._loop = True, asyncio.Event(), asyncio.get_running_loop()
            await self._over.wait()
            return await method(*given, **named)

        monkeypatch.setattr(owner, name, hang)

    def end(self) -> None:
        """Lets it go on, from another thread."""
        if self._over:
            self._loop.call_soon_threadsafe(self._over.set)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: Hang, overtime_s: float) -> tuple[float, bool]:
    """Runs a broker that gets SIGTERM as it greets. Returns the seconds of its stop, until it had ended or its deadline
    was over, and whether it was."""
    overdue: list[float] = []

    def over() -> None:
        overdue.append(time.monotonic())
        hang.end()

    began: list[float] = []

    def greet(*_: Any) -> None:
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(broker_process, "greet", greet)
    monkeypatch.setattr(broker_process, "OVERTIME_S", overtime_s)
    deadline = StopDeadline(over)
    stop = StopSignals(deadline, 0, STOP_S + overtime_s)
    stop.handle()
    BrokerProcess(Settings(data_dir=tmp_path, port=0, shutdown_s=STOP_S), stop, deadline).run()
    ended_s = overdue[0] if overdue else time.monotonic()
    if not overdue:
        deadline.close()
    return ended_s - began[0], bool(overdue)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Broker, "drain"),
        (Broker, "_close_journal"),
        later(HttpServer, "shutdown"),
        later(Broker, "_end_work"),
        later(Leadership, "stop"),
        later(Membership, "stop"),
        later(Peers, "close"),
        later(LocalStore, "close"),
        later(EmbeddedCoordination, "close"),
    ],
)
def test_what_hangs_for_ever_is_ended_by_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    hang = Hang()
    hang.put_into(monkeypatch, owner, name)
    took_s, is_overdue = stopped(tmp_path, monkeypatch, hang, OVERTIME_S)
    assert hang.began
    assert is_overdue
    assert STOP_S <= took_s < STOP_S + OVERTIME_S + MARGIN_S


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("owner", "name"), [(HttpServer, "shutdown"), later(Broker, "stop")])
def test_a_lost_life_has_the_deadline_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    hang = Hang()
    hang.put_into(monkeypatch, owner, name)
    over, greeted = threading.Event(), []

    def greet(settings: Settings, broker: Broker) -> None:
        greeted.append(broker)
        if len(greeted) == 1:
            privates.lose(broker)("a test has it")
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def pass_over() -> None:
        over.set()
        end_all()

    def end_all() -> None:  # the life after the first one hangs, too
        monkeypatch.undo()
        monkeypatch.setattr(broker_process, "greet", greet)
        hang.end()

    monkeypatch.setattr(broker_process, "greet", greet)
    monkeypatch.setattr(broker_process, "OVERTIME_S", OVERTIME_S)
    deadline = StopDeadline(pass_over)
    stop = StopSignals(deadline, 0, STOP_S + OVERTIME_S)
    stop.handle()
    without = threading.Timer(STOP_S + OVERTIME_S + MARGIN_S, end_all)
    without.start()
    BrokerProcess(Settings(data_dir=tmp_path, port=0, shutdown_s=STOP_S), stop, deadline).run()
    without.cancel()
    assert hang.began
    assert over.is_set()


@pytest.mark.usefixtures("handlers")
def test_flushes_that_hang_are_left_to_a_recovery_before_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hang = Hang()
    hang.put_into(monkeypatch, Broker, "_put_away")
    _, is_overdue = stopped(tmp_path, monkeypatch, hang, 2 * MARGIN_S)
    assert hang.began
    assert not is_overdue
    assert "could not flush all messages in time" in caplog.text
