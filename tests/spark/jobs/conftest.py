"""Jobs in the tests' session, and topics for them."""

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from seaweedq import Client
from seaweedq.cli.main import main
from tests.support.processes.broker_process import BrokerProcess

Printed = tuple[int, str, str]


@pytest.fixture
def command(spark: Any, capfd: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Runs `seaweedq spark` in the session: its exit code, stdout and stderr."""

    def run(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as ended:
            main(["spark", *map(str, arguments)])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of 30 messages with 11 keys."""
    name = f"t{crc32(request.node.nodeid.encode())}"
    with Client(broker.url) as client:
        client.create_topic(name, initial_segments=2)
        client.publish(name, [{"key": f"k{n % 11}", "value": n} for n in range(30)])
    return name
