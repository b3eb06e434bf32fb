"""Tokens become required at three broker processes by a rolling restart under load, and brokers get a port of their own
and lose it: whoever has a token is served all the while, and of who has none nothing is stored once it is refused."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from seaweedq.access.tokens import draw
from seaweedq.clock import SystemIds
from tests.cluster.test_secret_changed import restart_all
from tests.support.processes.broker_process import BrokerProcess, free_ports
from tests.support.processes.together import BROKERS, TOPIC, Together, publishing

pytestmark = pytest.mark.process

GRANTS = [{"actions": ["cluster"]}, {"actions": ["create", "publish", "subscribe", "consume"], "topics": ["*"]}]
STRANGE = 10**9  # values from here on are of those who have no token


@contextmanager
def strangers(brokers: Together) -> Iterator[dict[int, int]]:
    """Publishes without a token while the block runs; yields the status of each value that was answered."""
    stopped, statuses = threading.Event(), dict[int, int]()

    def publish() -> None:
        with httpx.Client(timeout=40, trust_env=False) as http:
            value = STRANGE
            while not stopped.wait(0.02):
                value += 1
                url = f"{brokers.urls[value % BROKERS]}{TOPIC}/messages"
                try:
                    statuses[value] = http.post(url, json={"key": f"k{value}", "value": value}).status_code
                except httpx.TransportError:
                    continue  # it restarts

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield statuses
    finally:
        stopped.set()
        publisher.join()


@pytest.mark.timeout(600)
@pytest.mark.long
def test_tokens_become_required_under_load(broker_process: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    config, admin, peers = tmp_path / "settings.toml", draw(SystemIds()), free_ports(BROKERS)
    (tmp_path / "admin").write_text(admin)

    def write(**settings: str | int) -> None:
        common = {"admin_token_file": str(tmp_path / "admin"), "cluster_secret": "s" * 40, "lease_s": 5}
        config.write_text("".join(f"{name} = {value!r}\n" for name, value in (common | settings).items()))

    write(auth="none")
    options = ["--brokers", str(BROKERS), "--config", str(config)]
    brokers = Together(broker_process(*options, port=free_ports(BROKERS)))
    brokers.wait_ready()
    brokers.http.headers["authorization"] = f"Bearer {admin}"
    assert brokers.ask("PUT", 0, "/v1/principals/p", json={"grants": GRANTS}).status_code == 201
    issued = brokers.ask("POST", 0, "/v1/tokens", json={"principal": "p"}).json()
    brokers.http.headers["authorization"] = f"Bearer {issued['token']}"
    brokers.make()
    with publishing(brokers, 2 * BROKERS) as failed, strangers(brokers) as statuses:
        write(auth="required")
        restart_all(brokers)
        assert [httpx.get(f"{url}/v1/topics", timeout=30, trust_env=False).status_code for url in brokers.urls] == [
            401
        ] * BROKERS
        write(auth="required", peer_port=peers)
        restart_all(brokers)
        write(auth="required")
        restart_all(brokers)
    assert brokers.sent
    assert not [error for error in failed if "not-ready" not in error], "only a broker that stops may say so"
    assert set(statuses.values()) >= {200, 401}
    assert set(statuses.values()) <= {200, 401, 503}
    brokers.subscribe(0)
    seen: list[int] = []
    while found := brokers.pull(0, wait_s=1, max_messages=1000):
        seen += [message["value"] for message in found]
        brokers.ack(0, found)
    assert set(seen) >= set(range(brokers.sent)) | {value for value, status in statuses.items() if status == 200}
    assert not set(seen) & {value for value, status in statuses.items() if status == 401}
    brokers.process.terminate()
    brokers.http.close()
