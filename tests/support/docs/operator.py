"""One who goes through the drill of docs/operate/drill.md, with a terminal for etcd, one for the broker, and one for
all else. A command begins once the one before has ended in its terminal; an etcd is ended for the next one.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.docs.page import SERVE, Block, Page
from tests.support.docs.printed import complaint
from tests.support.processes.broker_process import BrokerProcess, free_port
from tests.support.processes.etcd_service import QUICK, binary

ETCD = "etcd --data-dir"
ENDS_S, PRINTED_S, POLL_S = 30.0, 30.0, 0.1
LATER = {"SEAWEEDQ_LEASE_S": "2"}  # each rebuild waits for leases


class Operator(Page):
    """One who follows the page; `s3` is the environment by which its buckets are found."""

    def __init__(self, folder: Path, broker: BrokerProcess, s3: Mapping[str, str]) -> None:
        super().__init__(folder, broker)
        endpoint, peer = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.process |= {
            **s3,
            **LATER,
            "PATH": f"{binary('etcd').parent}:{self.process['PATH']}",
            "SEAWEEDQ_COORDINATION": f"etcd://{endpoint}",
            "SEAWEEDQ_CLUSTER_SECRET": "a-secret-for-the-drill-alone",
            "SEAWEEDQ_S3_ADDRESSING": "path",
            "ETCDCTL_ENDPOINTS": endpoint,
            "ETCD_LISTEN_CLIENT_URLS": f"http://{endpoint}",
            "ETCD_ADVERTISE_CLIENT_URLS": f"http://{endpoint}",
            "ETCD_LISTEN_PEER_URLS": peer,
            "ETCD_INITIAL_ADVERTISE_PEER_URLS": peer,
            "ETCD_INITIAL_CLUSTER": f"default={peer}",
            "ETCD_HEARTBEAT_INTERVAL": QUICK[1],
            "ETCD_ELECTION_TIMEOUT": QUICK[3],
        }

    def type(self, terminal: str, text: str) -> None:
        """Runs a command in a terminal, once that is free. Another etcd has the place of the one before."""
        if before := self._running.get(terminal):
            if terminal == ETCD:
                before.terminate()
            before.wait(ENDS_S)
        with self._log(terminal).open("wb") as log:
            self._running[terminal] = subprocess.Popen(
                ["bash", "-euc", f"exec {text}"], cwd=self.folder, env=self.process, stdout=log, stderr=log
            )

    def follow(self, block: Block) -> None:
        """Does what a block says, and compares what is printed with what the page shows, if it shows anything."""
        terminal = next((name for name in (ETCD, SERVE) if block.text.startswith(name)), None)
        if terminal is None:
            printed = self.run(block)
            end_s = 0.0
        else:
            self.type(terminal, block.text.strip())
            printed, end_s = "", time.monotonic() + PRINTED_S
        while block.shown and (told := complaint(block.shown, printed)):
            assert time.monotonic() < end_s, f"{block.text}\n{told}"
            time.sleep(POLL_S)
            printed = self._log(terminal).read_text() if terminal else printed

    def _log(self, terminal: str) -> Path:
        return self.folder / f"{terminal.split()[0]}.log"

    def end(self) -> None:
        """Ends what the terminals run."""
        for running in self._running.values():
            running.kill()
            running.wait()


@contextmanager
def operating(folder: Path, broker: BrokerProcess, s3: Mapping[str, str]) -> Iterator[Operator]:
    """An operator in a folder, whose broker has the port of this one, which is not started."""
    operator = Operator(folder, broker, s3)
    try:
        yield operator
    finally:
        operator.end()
