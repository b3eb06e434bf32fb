"""Several brokers on one machine: the program is replaced under their parent, and SIGHUP restarts one after another."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from seaweedq.levels import HIGHEST, VERSION
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess, free_ports
from tests.support.processes.together import BROKERS, Together, gone, publishing, until
from tests.support.upgrade.trees import tree_with_one_level_more

pytestmark = pytest.mark.process

DONE = "restart: done"  # until then the parent takes no other SIGHUP


def replace_by(installed: Path, tree: Path) -> None:
    """Another version at the same place, as an installer puts it there."""
    new = installed.with_name("new")
    new.symlink_to(tree)
    new.replace(installed)


def versions(brokers: Together) -> list[str]:
    """Those of the brokers."""
    told = [brokers.get(n, "/v1/cluster")["brokers"] for n in range(BROKERS)]
    assert all(len(one) == BROKERS for one in told)
    return sorted(one["version"] for one in told[0])


def restart_all(brokers: Together) -> None:
    """A rolling restart, to its end."""
    before = [brokers.pid(n) for n in range(BROKERS)]
    ended = brokers.process.log.count(DONE)
    assert brokers.process.process
    os.kill(brokers.process.process.pid, signal.SIGHUP)
    until(lambda: brokers.process.log.count(DONE) > ended, within_s=90)
    assert all(map(gone, before))
    brokers.wait_ready()


@pytest.mark.long
def test_to_the_next_version_and_back(broker_process: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    later = tree_with_one_level_more(tmp_path / "after")
    process = broker_process("--brokers", str(BROKERS), "--lease-s", "2", port=free_ports(BROKERS), start=False)
    process.tree = tmp_path / "installed"
    process.tree.symlink_to(ROOT)
    process.start()
    brokers = Together(process)
    brokers.wait_ready()
    brokers.make()
    with publishing(brokers, 3) as failed:
        replace_by(process.tree, later)
        restart_all(brokers)
        assert versions(brokers) == [f"9.{VERSION}"] * BROKERS
        assert brokers.get(0, "/v1/cluster")["level"] == HIGHEST
        replace_by(process.tree, ROOT)
        restart_all(brokers)
    assert versions(brokers) == [VERSION] * BROKERS
    brokers.subscribe(0)
    seen: list[int] = []
    while found := brokers.pull(0, wait_s=1, max_messages=1000):
        seen += [message["value"] for message in found]
        brokers.ack(0, found)
    assert set(range(brokers.sent)) <= set(seen)
    print(f"{brokers.sent} messages, {len(failed)} answers were errors: {failed[:3]}")
    assert not [error for error in failed if "not-ready" not in error], "only a broker that stops may say so"
    process.terminate()
    brokers.http.close()
