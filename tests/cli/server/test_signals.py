"""Signals to a broker's process: none is lost, whatever the process does at that moment, and the end has a deadline."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from seaweedq.cli.server import broker_process
from seaweedq.cli.server.broker_process import BrokerProcess
from seaweedq.cli.server.stop_signals import SIGNALS, StopDeadline, StopSignals
from seaweedq.errors import Unavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import FolderLock
from seaweedq.settings import Settings
from tests.support.brokers.serving import NoDeadline
from tests.support.paths import ROOT
from tests.support.tiers import later

WITHIN_S = 20.0


class CountingLoop(asyncio.SelectorEventLoop):
    """Calls `at[n]` before its nth turn."""

    turns = 0
    at: ClassVar[dict[int, Callable[[], None]]]

    def _run_once(self) -> None:
        type(self).turns += 1
        if act := self.at.get(self.turns):
            act()
        super()._run_once()  # type: ignore[misc]


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = StopSignals(NoDeadline(), 0, 0)
    stop.handle()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def loop_kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The loop of the lives."""

    class Loop(CountingLoop):
        pass

    Loop.at = {}

    monkeypatch.setattr(broker_process, "uvicorn_loop", lambda: asyncio.Runner(loop_factory=Loop))
    return Loop


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def run(tmp_path: Path, stop: StopSignals, **more: Any) -> BrokerProcess:
    """Runs a broker in this thread to its end; fails if a signal does not end it."""
    process = BrokerProcess(Settings(data_dir=tmp_path, port=0, **more), stop, NoDeadline())
    swallowed: list[int] = []

    def give_up() -> None:
        swallowed.append(stop.count)
        stop.ask()

    timer = threading.Timer(WITHIN_S, give_up)
    timer.start()
    process.run()
    timer.cancel()
    assert not swallowed
    return process


@pytest.mark.parametrize("share", [0.4, 0.95, 1.02, *(later(n / 25) for n in range(28))])
def test_a_signal_in_any_step_of_a_life_ends_it(
    tmp_path: Path, stop: StopSignals, loop_kind: Any, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a start are counted in a life before, which ends as soon as it serves."""
    greeted: list[int] = []

    def greet(*_: Any) -> None:
        greeted.append(loop_kind.turns)
        terminate()

    with monkeypatch.context() as patch:
        patch.setattr(broker_process, "greet", greet)
        assert run(tmp_path, stop).was_ready
    again = StopSignals(NoDeadline(), 0, 0)
    again.handle()
    loop_kind.turns = 0
    loop_kind.at = {max(1, int(greeted[0] * share)): terminate}
    run(tmp_path, again)
    assert again.count == 1
    lock = FolderLock(tmp_path, Disk())
    lock.acquire()  # it was given back
    lock.release()


@pytest.mark.parametrize("line", ["is ready", "stopped before it was ready"])
def test_a_signal_at_a_line_of_the_log_ends_the_process(
    tmp_path: Path, stop: StopSignals, caplog: pytest.LogCaptureFixture, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one comes when nothing of the start is left but to tell of it."""

    class Terminating(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if line in record.getMessage():
                terminate()

    caplog.set_level(logging.INFO)
    logger, handler = logging.getLogger("seaweedq"), Terminating()
    logger.addHandler(handler)
    try:
        if line != "is ready":
            stop.ask()
        run(tmp_path, stop)
    finally:
        logger.removeHandler(handler)
    assert stop.count == (1 if line == "is ready" else 2)


def test_a_signal_between_two_lives_ends_the_process(
    tmp_path: Path, stop: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives: list[str] = []

    monkeypatch.setattr(broker_process, "AGAIN_S", 0.3)

    class Failing(BrokerProcess):
        async def live(self) -> bool:
            lives.append("lived")
            self.was_ready = True
            if len(lives) == 2:
                threading.Timer(0.1, terminate).start()
            raise Unavailable("not now") if len(lives) == 1 else RuntimeError("a defect")

    Failing(Settings(data_dir=tmp_path), stop, NoDeadline()).run()
    assert len(lives) == 2


def test_a_signal_ends_the_wait_for_the_folder_of_a_predecessor(tmp_path: Path, stop: StopSignals) -> None:
    settings: dict[str, Any] = {"brokers": 2, "member": 1, "shutdown_s": 600}
    held = FolderLock(Settings(data_dir=tmp_path, **settings).home, Disk())
    held.acquire()
    threading.Timer(0.2, terminate).start()
    assert not run(tmp_path, stop, **settings).was_ready
    held.release()


def test_the_first_signal_begins_the_deadline_the_second_ends_the_delay() -> None:
    deadline = NoDeadline()
    stop = StopSignals(deadline, 5, 14)
    for _ in range(3):
        stop.ask()
    assert deadline.begun == [19, 14, 14]


def test_a_deadline_is_the_earliest_one_unless_it_is_taken_back() -> None:
    over = threading.Event()
    deadline = StopDeadline(over.set)
    deadline.begin(600)
    deadline.begin(0.01)
    assert over.wait(WITHIN_S)
    over.clear()
    deadline = StopDeadline(over.set)
    deadline.begin(5)
    deadline.clear()
    deadline.begin(600)
    deadline.close()
    assert not over.is_set()


@pytest.mark.process
def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """The interpreter waits at its exit for the threads of every pool, without an end."""
    program = """
import os, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from seaweedq.cli.server.stop_signals import StopDeadline, log_hanging
from seaweedq.cli.server.stop_signals import StopSignals

def overdue():
    log_hanging()
    os._exit(1)

stop = StopSignals(StopDeadline(overdue), 0, 0.2)
stop.handle()
ThreadPoolExecutor(1).submit(threading.Event().wait)
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "the broker did not stop in time" in ended.stderr
    assert "in wait" in ended.stderr  # what hangs


# Terminates itself at the first import that takes long, and tells whether it goes on.
TERMINATED_EARLY = """
import os, runpy, signal, sys

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == "seaweedq.cli.main":
            os.kill(os.getpid(), signal.SIGTERM)
            sys.exit(f"process {os.getpid()} goes on")

sys.meta_path.insert(0, AtImport())
runpy.run_module("seaweedq", run_name="__main__")
"""


def terminated_early(*before: str) -> tuple[int, str]:
    command = [*before, sys.executable, "-c", TERMINATED_EARLY]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.process
def test_a_signal_during_the_imports_ends_process_1_of_a_container_too() -> None:
    """The kernel drops signals to process 1 that it does not handle."""
    unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets the tests make no namespace of processes (unshare --pid)")
    assert terminated_early(*unshare) == (128 + signal.SIGTERM, "")


@pytest.mark.process
def test_a_signal_during_the_imports_ends_any_other_process_as_ever() -> None:
    assert terminated_early() == (-signal.SIGTERM, "")


def test_the_command_is_the_program_that_handles_signals_first() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"seaweedq": "seaweedq.__main__:main"}
