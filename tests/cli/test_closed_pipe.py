"""Output that nobody reads any more, as behind `head`, and output that has no room."""

import os
import subprocess
import sys

import pytest

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess

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
