"""`seaweedq serve --brokers 3`, for real: every broker takes what belongs to any, and none is missed when it dies."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.support.history.load import until
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


@pytest.mark.long
def test_brokers_start_with_the_load_and_one_recovers_all(broker_process):
    load = ["--capacity-messages-per-s", "50", "--lease-s", "2"]
    process = broker_process("--brokers", f"1..{BROKERS}", *load, port=free_ports(BROKERS))
    brokers = Together(process)
    brokers.make()
    while len(brokers.get(0, "/v1/cluster")["brokers"]) < BROKERS:
        publish(brokers, 0)
        time.sleep(0.1)
    brokers.wait_ready()
    until(lambda: len({segment["owner_url"] for segment in brokers.get(0, f"{TOPIC}/segments")["segments"]}) == BROKERS)
    publish(brokers, 1)
    publish(brokers, 2)
    pids = [brokers.pid(broker) for broker in range(BROKERS)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.start()
    until(lambda: brokers.ready(brokers.urls[0]))
    until(lambda: len(brokers.get(0, "/v1/cluster")["brokers"]) == 1)
    assert stored(brokers, 0) == [*range(brokers.sent)]
    process.terminate(within_s=30)
    brokers.http.close()


def test_a_parent_that_finds_a_port_taken_says_so_and_leaves_nobody_behind(tmp_path):
    first, data_dir = free_ports(BROKERS), tmp_path / "several"
    command = [sys.executable, "-m", "seaweedq", "serve", "--brokers", "2", "--data-dir", str(data_dir)]
    with socket.create_server(("127.0.0.1", first + 1)):
        done = subprocess.run([*command, "--port", str(first)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search(rf"^\[2\] seaweedq: cannot listen on 127.0.0.1:{first + 1}", done.stderr, re.MULTILINE)
    assert "broker 2 ended with 1 before it was ready" in done.stderr


def test_a_log_in_json_is_a_document_a_line_also_of_several_brokers(tmp_path):
    command = [sys.executable, "-m", "seaweedq", "serve", "--brokers", "2", "--log-format", "json", "--port"]
    place = [str(free_ports(BROKERS)), "--data-dir", str(tmp_path / "several")]
    with (tmp_path / "log").open("w+") as log, subprocess.Popen([*command, *place], stderr=log, stdout=-3) as parent:
        until(lambda: Path(log.name).read_text().count("is ready: 0 topics") == 2, within_s=60)
        parent.terminate()
        assert parent.wait(60) == 0
    lines = [json.loads(line) for line in Path(log.name).read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {line.get("number") for line in lines} == {None, 1, 2}  # of the parent, and of the brokers
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo is UTC
