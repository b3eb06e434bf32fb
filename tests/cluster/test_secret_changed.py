"""The secret of three broker processes is changed under load by two rolling restarts, with `peer_port` and without."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess, free_ports
from tests.support.processes.together import BROKERS, Together, publishing, until
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

OLD, NEW = "o" * 40, "n" * 40
DONE = "restart: done"
AMISS = ("(secret,", "(shown,", "(mac,", "does not prove", "the TLS handshake failed", "refuses connections")


def restart_all(brokers: Together) -> None:
    """A rolling restart, to its end. Each broker reads the file of the secret again."""
    ended = brokers.process.log.count(DONE)
    assert brokers.process.process
    os.kill(brokers.process.process.pid, signal.SIGHUP)
    until(lambda: brokers.process.log.count(DONE) > ended, within_s=180)
    brokers.wait_ready()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("apart", [later(False), soaked(True)], ids=["one port", "ports for brokers"])
def test_the_secret_is_changed_under_load(
    broker_process: Callable[..., BrokerProcess], tmp_path: Path, apart: bool
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(OLD)
    options = ["--brokers", str(BROKERS), "--lease-s", "5", "--cluster-secret-file", str(secret)]
    if apart:
        options += ["--peer-port", str(free_ports(BROKERS))]
    brokers = Together(broker_process(*options, port=free_ports(BROKERS)))
    brokers.wait_ready()
    brokers.make()
    with publishing(brokers, 2 * BROKERS) as failed:  # to segments of all brokers
        for text in (f"{NEW},{OLD}", NEW):
            secret.write_text(text)
            restart_all(brokers)
    assert brokers.sent
    assert not [error for error in failed if "not-ready" not in error], "only a broker that stops may say so"
    assert not [line for line in brokers.process.log.splitlines() if any(said in line for said in AMISS)]
    if apart:
        answers = [brokers.ask("POST", n, "/internal/status").status_code for n in range(BROKERS)]
        assert answers == [404] * BROKERS
    brokers.subscribe(0)
    seen: set[int] = set()
    while found := brokers.pull(0, wait_s=1, max_messages=1000):
        seen |= {message["value"] for message in found}
        brokers.ack(0, found)
    assert seen >= set(range(brokers.sent))
    brokers.process.terminate()
    brokers.http.close()
