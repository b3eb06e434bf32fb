"""`seaweedq serve --brokers 3`, for real: every broker takes what belongs to any, and none is missed when it dies."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.support.processes.broker_process import free_ports
from tests.support.processes.together import BROKERS, TOPIC, Together, gone

pytestmark = pytest.mark.process

KEYS = 24


def publish(brokers: Together, broker: int) -> None:
    """A message for each key; fails unless all are taken at once."""
    brokers.publish(broker, KEYS)


def stored(brokers: Together, broker: int) -> list[int]:
    """All messages, as one broker answers them."""
    pages = [
        brokers.get(broker, f"{TOPIC}/segments/{each['id']}/messages?offset=0&limit=10000")
        for each in brokers.get(broker, f"{TOPIC}/segments")["segments"]
    ]
    return sorted(message["value"] for page in pages for message in page["messages"])


def test_nothing_is_lost_when_one_is_killed(together):
    for broker in range(BROKERS):
        publish(together, broker)
    assert {segment["owner_url"] for segment in together.get(0, f"{TOPIC}/segments")["segments"]} == set(together.urls)
    killed = together.pid(1)
    together.signal(1)
    for broker in (0, 2):
        publish(together, broker)
    together.wait_ready()
    assert together.pid(1) != killed
    assert "because the broker's process has ended" in together.process.log  # the parent has ended its lease
    publish(together, 1)
    for broker in range(BROKERS):
        assert stored(together, broker) == [*range(together.sent)]
    together.process.terminate(within_s=30)


@pytest.mark.long
def test_all_stop_and_start_again_with_everything(together):
    publish(together, 0)
    together.process.terminate(within_s=30)
    together.process.start()
    together.wait_ready()
    publish(together, 2)
    assert stored(together, 1) == [*range(together.sent)]


@pytest.mark.long
def test_if_the_parent_is_killed_all_stop_and_the_next_has_everything(together):
    publish(together, 1)
    old = [together.pid(broker) for broker in range(BROKERS)]
    together.process.kill()
    together.process.start(wait=False)
    together.wait_ready()
    assert all(map(gone, old))
    publish(together, 0)
    assert stored(together, 2) == [*range(together.sent)]


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
        publish(together, 0 if restarted and restarted[-1] != "1" else 2 if restarted else 1)
    over.set()
    watcher.join()
    assert min(seen_up) == BROKERS - 1
    assert stored(together, 0) == [*range(together.sent)]


def test_a_parent_that_finds_a_port_taken_says_so_and_leaves_nobody_behind(tmp_path):
    first, data_dir = free_ports(BROKERS), tmp_path / "several"
    command = [sys.executable, "-m", "seaweedq", "serve", "--brokers", "2", "--data-dir", str(data_dir)]
    with socket.create_server(("127.0.0.1", first + 1)):
        done = subprocess.run([*command, "--port", str(first)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search(rf"^\[2\] seaweedq: cannot listen on 127.0.0.1:{first + 1}", done.stderr, re.MULTILINE)
    assert "broker 2 ended with 1 before it was ready" in done.stderr
