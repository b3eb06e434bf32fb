"""When a signal ends a wait: also when it comes in the moment before the wait begins."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import typer

from seaweedq.cli import pull
from seaweedq.cli.shared.process import Interrupts

LONG_S = 20.0


def _one_then_wait(waits: threading.Event) -> Iterator[int]:
    yield 1
    reader, writer = os.pipe()
    waits.set()
    try:
        select.select([reader], [], [], LONG_S)  # nothing ever comes
    finally:
        os.close(reader)
        os.close(writer)
    yield 2


def _signal_to_this_thread(number: int, waits: threading.Event) -> None:
    waits.wait(LONG_S)
    time.sleep(0.2)  # until it waits in the call
    signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_interrupts_no_call_ends_the_wait_all_the_same(number):
    # A signal taken by another thread interrupts the main thread's call as little as one that came just before it.
    waits = threading.Event()
    other = threading.Thread(target=_signal_to_this_thread, args=(number, waits))
    began = time.monotonic()
    with Interrupts() as interrupts:
        other.start()
        seen = list(interrupts.until_stopped(_one_then_wait(waits)))
    other.join()
    assert seen == [1]
    assert time.monotonic() - began < LONG_S / 2


BLOCKED = """
import signal, sys, threading, time
from seaweedq.cli.child_process import ending_on_signals

def signal_to_this_thread():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))

with ending_on_signals():
    threading.Thread(target=signal_to_this_thread).start()
    threading.Event().wait()
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_interrupts_no_call_ends_a_command_all_the_same(number):
    """`bench` waited for its threads, for ever, in one of some hundred runs."""
    assert subprocess.run([sys.executable, "-c", BLOCKED, str(int(number))], timeout=60).returncode == 128 + number


IN_A_DESTRUCTOR = """
import os, signal, sys, time
from seaweedq.cli.child_process import ending_on_signals

class Signalled:
    def __del__(self):
        signal.raise_signal(int(sys.argv[1]))

with ending_on_signals():
    try:
        Signalled()
        time.sleep(20)
    finally:
        time.sleep(0.5)  # the beats do not interrupt the end
        print("ended")
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_during_a_destructor_or_an_import_ends_a_command(number: int) -> None:
    """The interpreter ignores an exception there: one of some hundred demos went on after SIGTERM."""
    command = [sys.executable, "-c", IN_A_DESTRUCTOR, str(int(number))]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (128 + number, "ended\n"), ended.stderr


SLOW_END = """
import time
from seaweedq.cli.child_process import ending_on_signals

class Slow:
    def __del__(self):
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            pass

with ending_on_signals():
    kept = Slow()
kept.itself = kept
"""


@pytest.mark.process
def test_an_end_that_takes_long_is_no_death_by_a_signal():
    assert subprocess.run([sys.executable, "-c", SLOW_END], timeout=60).returncode == 0


def test_a_signal_outside_of_the_wait_ends_the_loop_and_interrupts_nothing():
    with Interrupts() as interrupts:
        seen = []
        for message in interrupts.until_stopped(iter(range(5))):
            signal.raise_signal(signal.SIGINT)
            seen.append(message)
    assert seen == [0]


def test_the_handlers_and_the_timer_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with Interrupts():
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_pull_that_a_signal_ends_before_it_is_done_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code was 0, as of one that had pulled all."""

    def interrupted(*_: object) -> Iterator[None]:
        signal.raise_signal(signal.SIGINT)
        yield

    client = nullcontext(SimpleNamespace(subscription=lambda *_: {}, subscribe=interrupted))
    monkeypatch.setattr(pull, "connect", lambda url, outage: client)
    with pytest.raises(typer.Exit) as ended:
        pull.pull("t", "s", start="latest")
    assert ended.value.exit_code == 130
    pull.pull("t", "s", start="latest", follow=True)  # which nothing else ends


FULL_PIPE = """
import os, sys
from seaweedq.cli.shared import process

process.PATIENCE_S = float(sys.argv[1])
with process.Interrupts() as interrupts:
    for _ in interrupts.until_stopped(iter([1, 2])):
        os.write(2, b"x")
        print("y" * 1_000_000, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(("signals", "patience_s"), [(1, 1.0), (2, 600.0)])
def test_a_full_pipe_ends_with_a_second_signal_or_some_time_later(signals: int, patience_s: float) -> None:
    """Nobody reads it. Neither Ctrl-C nor SIGTERM ended the process."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", FULL_PIPE, str(patience_s)]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as writes:
        os.close(writer)
        try:
            assert writes.stderr is not None
            assert writes.stderr.read(1) == b"x"
            for _ in range(signals):
                time.sleep(0.3)
                writes.send_signal(signal.SIGTERM)
            assert writes.wait(60) == 128 + signal.SIGTERM
        finally:
            writes.kill()
            os.close(reader)
