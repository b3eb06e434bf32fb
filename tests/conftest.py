"""What all test folders share: brokers in processes of their own, whose logs are shown when a test fails."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess
from etcd_service import etcd_server, etcd_servers  # noqa: F401
from s3_service import minio_server, moto_server, seaweedfs_server  # noqa: F401

from seaweedq import Client

LOG_TAIL = 200  # lines
_running: list[BrokerProcess] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its brokers printed."""
    report = yield
    if report.failed:
        for broker in _running:
            tail = broker.log.splitlines()[-LOG_TAIL:]
            report.sections.append((f"log of {broker.url} on {broker.data_dir}", "\n".join(tail)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, each reason once: what this machine lacks should not go unnoticed."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(str(found[2]).removeprefix("Skipped: ") for found in skipped if isinstance(found, tuple))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


def _brokers(folder_of: Callable[[], Path]) -> Iterator[Callable[..., BrokerProcess]]:
    made: list[BrokerProcess] = []

    def make(*arguments: str, data_dir: Path | None = None, start: bool = True, **more: Any) -> BrokerProcess:
        broker = BrokerProcess(data_dir or folder_of() / f"broker-{len(made)}", *arguments, **more)
        made.append(broker)
        _running.append(broker)
        if start:
            broker.start()
        return broker

    yield make
    for broker in made:
        broker.kill()
        _running.remove(broker)


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers: `broker_process(*arguments, data_dir=, env=, port=, start=True)`. They are gone after the test."""
    yield from _brokers(lambda: tmp_path)


@pytest.fixture(scope="session")
def broker_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., BrokerProcess]]:
    """As `broker_process`, for fixtures of a session or a module: they are gone after the session."""
    yield from _brokers(lambda: tmp_path_factory.mktemp("brokers"))


@pytest.fixture
def broker(broker_process: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker on a fresh folder, ready."""
    return broker_process()


@pytest.fixture(scope="session")
def real_broker(broker_processes: Callable[..., BrokerProcess]) -> BrokerProcess:
    """One broker that the tests of the client and of the command line share."""
    return broker_processes()


@pytest.fixture
def real_client(real_broker: BrokerProcess) -> Iterator[Client]:
    """A client of the shared broker."""
    with Client(real_broker.url) as client:
        yield client
