"""Output that nobody reads any more, as behind `head`, and output that has no room."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from seaweedq import Client
from seaweedq.client.core.calls import call
from seaweedq.errors import SeaweedqError
from tests.support.processes.broker_process import BrokerProcess, free_port

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def url(real_broker: BrokerProcess) -> str:
    with Client(real_broker.url) as client:
        client.create_topic("piped")
        client.publish("piped", {"value": 1})
    return real_broker.url


def run(url: str, arguments: list[str], stdout: int) -> tuple[int, str]:
    """The exit code, and what stderr says."""
    ended = subprocess.run(
        [sys.executable, "-m", "seaweedq", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | {"SEAWEEDQ_URL": url},
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["topic", "list"], 0),
        (["topic", "show", "piped"], 0),
        (["sql", "SELECT * FROM piped", "-o", "csv"], 0),
        (["pull", "piped", "--subscription", "piped", "--start", "earliest"], 0),
        (["doctor", "--url", "http://127.0.0.1:9"], 1),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_closed_pipe_ends_a_command_quietly(url: str, arguments: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(url, arguments, writer) == (code, "")
    finally:
        os.close(writer)


@pytest.mark.long
def test_a_broker_serves_though_nobody_reads_its_greeting(tmp_path: Path) -> None:
    """Also behind a pause that ended its lease: the second start prints the greeting again."""
    reader, writer = os.pipe()
    os.close(reader)
    port = free_port()
    command = [sys.executable, "-m", "seaweedq", "serve", "--port", str(port), "--data-dir", str(tmp_path)]
    with subprocess.Popen([*command, "--lease-s", "2"], stdout=writer, stderr=subprocess.PIPE, text=True) as broker:
        os.close(writer)
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                first = ready_as(client, other_than="")
                broker.send_signal(signal.SIGSTOP)
                time.sleep(3)
                broker.send_signal(signal.SIGCONT)
                second = ready_as(client, other_than=first)
                time.sleep(1.5)  # longer than until another life would begin
                assert ready_as(client, other_than="") == second
        finally:
            broker.terminate()
        errors = broker.communicate()[1]
    assert broker.returncode == 0, errors
    assert "Broken pipe" not in errors


def ready_as(client: Client, *, other_than: str) -> str:
    """The id of the broker that serves, once it is another one."""
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        with suppress(SeaweedqError):
            for broker in client.run(call("GET", "/v1/cluster"))["brokers"]:
                if broker["id"] != other_than:
                    return str(broker["id"])
        time.sleep(0.05)
    raise AssertionError(f"no broker but {other_than!r} in 20 s")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [["topic", "list"], ["sql", "SELECT * FROM piped", "-o", "csv"], ["help", "topics"]],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_output_without_room_is_an_error_of_one_line(url: str, arguments: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert run(url, arguments, full) == (1, "seaweedq: [Errno 28] No space left on device\n")
    finally:
        os.close(full)
