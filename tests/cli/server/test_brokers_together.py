"""`seaweedq serve --brokers 3`, for real: every broker takes what belongs to any, and none is missed when it dies."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.support.cli.stand_in_fleet import gone, until
from tests.support.processes.broker_process import free_ports

pytestmark = pytest.mark.process

BROKERS = 3
LEASE_S = 2
KEYS = 24


class Together:
    """The brokers of one parent, as a client sees them."""

    def __init__(self, process) -> None:
        self.process = process
        self.urls = [f"http://127.0.0.1:{process.port + number}" for number in range(BROKERS)]
        self.http = httpx.Client(timeout=30, trust_env=False)
        self.sent: list[str] = []

    def wait_ready(self) -> None:
        """Until every one can take work."""
        until(lambda: all(map(self.ready, self.urls)))

    def ready(self, url: str) -> bool:
        """Whether this one can."""
        try:
            return self.http.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def pid(self, member: int) -> int:
        """A broker's process."""
        return int((self.process.data_dir / "members" / str(member) / "lock").read_text())

    def publish(self, broker: int) -> None:
        """A message for each key; fails unless all are taken at once."""
        values = [f"{len(self.sent) + n}" for n in range(KEYS)]
        messages = [{"key": f"k{n}", "value": value} for n, value in enumerate(values)]
        answer = self.http.post(f"{self.urls[broker - 1]}/v1/topics/t/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text
        self.sent += values

    def stored(self, broker: int) -> list[str]:
        """All messages, as one broker answers them."""
        topic = f"{self.urls[broker - 1]}/v1/topics/t"
        segments = self.http.get(f"{topic}/segments").json()["segments"]
        pages = [
            self.http.get(f"{topic}/segments/{each['id']}/messages", params={"offset": 0, "limit": 10_000})
            for each in segments
        ]
        assert {page.status_code for page in pages} == {200}
        return [message["value"] for page in pages for message in page.json()["messages"]]

    def owners(self) -> set[str]:
        """The URLs of those who own the topic's segments."""
        return {s["owner_url"] for s in self.http.get(f"{self.urls[0]}/v1/topics/t/segments").json()["segments"]}


@pytest.fixture
def together(broker_process):
    process = broker_process("--brokers", str(BROKERS), "--lease-s", str(LEASE_S), port=free_ports(BROKERS))
    brokers = Together(process)
    brokers.wait_ready()
    made = brokers.http.put(f"{brokers.urls[0]}/v1/topics/t", json={"initial_segments": 2 * BROKERS})
    assert made.status_code == 201
    yield brokers
    pids = [brokers.pid(member) for member in range(1, BROKERS + 1)]
    process.kill()
    until(lambda: all(map(gone, pids)))
    brokers.http.close()


def test_nothing_is_lost_when_one_is_killed(together):
    for broker in (1, 2, 3):
        together.publish(broker)
    assert together.owners() == set(together.urls)
    killed = together.pid(2)
    os.kill(killed, signal.SIGKILL)
    for broker in (1, 3):
        together.publish(broker)
    together.wait_ready()
    assert together.pid(2) != killed
    assert "whose process has ended" in together.process.log  # the parent has ended its lease
    together.publish(2)
    for broker in (1, 2, 3):
        assert sorted(together.stored(broker)) == sorted(together.sent)
    together.process.terminate(within_s=30)


def test_all_stop_and_start_again_with_everything(together):
    together.publish(1)
    together.process.terminate(within_s=30)
    together.process.start()
    together.wait_ready()
    together.publish(3)
    assert sorted(together.stored(2)) == sorted(together.sent)


@pytest.mark.long
def test_if_the_parent_is_killed_all_stop_and_the_next_has_everything(together):
    together.publish(2)
    old = [together.pid(member) for member in (1, 2, 3)]
    together.process.kill()
    together.process.start(wait=False)
    together.wait_ready()
    assert all(map(gone, old))
    together.publish(1)
    assert sorted(together.stored(3)) == sorted(together.sent)


@pytest.mark.long
def test_a_rolling_restart_is_no_interruption(together):
    seen_up, over = [], threading.Event()

    def look() -> None:
        with httpx.Client(timeout=5, trust_env=False) as http:
            while not over.wait(0.05):
                seen_up.append(sum(ready(http, url) for url in together.urls))

    def ready(http: httpx.Client, url: str) -> bool:
        try:
            return http.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    watcher = threading.Thread(target=look)
    watcher.start()
    together.process.process.send_signal(signal.SIGHUP)
    began = time.monotonic()
    while "restart: done" not in together.process.log:
        assert time.monotonic() - began < 90
        restarted = re.findall(r"restart: stopping broker (\d)", together.process.log)
        together.publish(1 if restarted and restarted[-1] != "1" else 3 if restarted else 2)
    over.set()
    watcher.join()
    assert min(seen_up) == BROKERS - 1
    assert sorted(together.stored(1)) == sorted(together.sent)


def test_a_parent_that_finds_a_port_taken_says_so_and_leaves_nobody_behind(tmp_path):
    first, data_dir = free_ports(BROKERS), tmp_path / "several"
    command = [sys.executable, "-m", "seaweedq", "serve", "--brokers", "2", "--data-dir", str(data_dir)]
    with socket.create_server(("127.0.0.1", first + 1)):
        done = subprocess.run([*command, "--port", str(first)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search(rf"^\[2\] seaweedq: cannot listen on 127.0.0.1:{first + 1}", done.stderr, re.MULTILINE)
    assert "broker 2 ended with 1 before it was ready" in done.stderr
