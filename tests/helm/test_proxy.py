"""deploy/haproxy.cfg: the one address before the brokers of docker-compose.yml serves from ready brokers alone."""

import http.client
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.processes.broker_process import free_port

CONFIG = (ROOT / "deploy" / "haproxy.cfg").read_text()
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
BROKERS = ("broker-1", "broker-2", "broker-3")
START_S = 20.0


def ask(port: int) -> tuple[int, str]:
    """Asks for a page: the status, and the broker that answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/v1/cluster")
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture
def ready() -> set[str]:
    """The brokers whose /readyz answers 200. All others answer every request, too."""
    return {"broker-1", "broker-3"}


@pytest.fixture
def proxy(ready: set[str], serve: Callable[..., int], tmp_path: Path) -> Iterator[int]:
    """The port of HAProxy with the project's configuration, before three stand-ins of brokers."""
    program = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin") or shutil.which("haproxy")
    if program is None:
        pytest.skip("no haproxy on this machine: its configuration is not tried")
    config, port = CONFIG, free_port()

    def answers(name: str) -> Callable[[str], tuple[int, bytes]]:
        return lambda path: (503 if path == "/readyz" and name not in ready else 200, name.encode())

    for name in BROKERS:
        config = config.replace(f" {name}:8080", f" 127.0.0.1:{serve(answers(name))}")
    (tmp_path / "haproxy.cfg").write_text(config.replace("bind :8080", f"bind 127.0.0.1:{port}"))
    with subprocess.Popen([program, "-db", "-f", str(tmp_path / "haproxy.cfg")]) as process:
        try:
            until = time.monotonic() + START_S
            while not answered(port):
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            yield port
        finally:
            process.kill()


def answered(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        ask(port)
    except OSError:
        return False
    return True


def takers(port: int) -> set[tuple[int, str]]:
    """Who answers ten requests, and how."""
    return {ask(port) for _ in range(10)}


def until(port: int, wanted: set[tuple[int, str]], within_s: float) -> None:
    """Asks until these alone answer. Every request succeeds meanwhile."""
    end = time.monotonic() + within_s
    while (seen := takers(port)) != wanted:
        assert {status for status, _ in seen} == {200}
        assert time.monotonic() < end, seen
        time.sleep(0.1)


@pytest.mark.process
def test_requests_go_to_ready_brokers_alone(proxy: int, ready: set[str]) -> None:
    until(proxy, {(200, "broker-1"), (200, "broker-3")}, START_S)
    ready.remove("broker-1")
    delay_s = float(SERVICES["broker-1"]["environment"]["SEAWEEDQ_SHUTDOWN_DELAY_S"])
    until(proxy, {(200, "broker-3")}, delay_s + START_S)  # a busy machine; test_it_looks_away compares the times
    ready.add("broker-2")
    until(proxy, {(200, "broker-2"), (200, "broker-3")}, START_S)


def test_it_looks_away_before_a_broker_stops() -> None:
    (inter_s, fall), (timeout_s,) = (
        [float(found) for found in re.findall(pattern, CONFIG)[0]]
        for pattern in (r"check inter (\d+)s fall (\d+)", r"timeout check (\d)s")
    )
    for name in BROKERS:
        assert float(SERVICES[name]["environment"]["SEAWEEDQ_SHUTDOWN_DELAY_S"]) > fall * inter_s + timeout_s


def test_it_knows_the_brokers_of_the_compose_file_and_no_other() -> None:
    assert re.findall(r"^    server (\S+) (\S+)$", CONFIG, re.MULTILINE) == [(name, f"{name}:8080") for name in BROKERS]
    mounted, _, _ = SERVICES["brokers"]["volumes"][0].partition(":")
    assert (ROOT / mounted).read_text() == CONFIG
    assert "bind :8080" in CONFIG
    assert SERVICES["brokers"]["ports"] == ["127.0.0.1:8080:8080"]
