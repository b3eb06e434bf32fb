"""A parent of stand-in brokers, in a process of its own (fixture `fleet`): signals to it, and what came of them."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WITHIN_S = 30.0
POLL_S = 0.02
STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in_broker.py"))]


def until(what: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait for something; fails if it does not happen."""
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(POLL_S)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except FileNotFoundError:
        return True


class Fleet:
    """`brokers` stand-ins and their parent on the folder `data_dir`; its grace is `grace_s`, after `delay_s`. With
    `pause_s` each pause before a restart is so long."""

    def __init__(
        self,
        data_dir: Path,
        brokers: int | str = 3,
        grace_s: float = 20.0,
        delay_s: float = 0.0,
        pause_s: float = 0.0,
    ) -> None:
        self.data_dir, self.brokers = data_dir, brokers
        self.grace_s, self.delay_s, self.pause_s = grace_s, delay_s, pause_s
        self.log = data_dir.with_name("parent.log")
        data_dir.mkdir(exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """How the parent is started."""
        given = (self.data_dir, self.brokers, self.grace_s, self.delay_s, self.pause_s)
        return [sys.executable, __file__, *map(str, given)]

    def start(self, *, wait: bool = True, terminal: str = "") -> None:
        """Start the parent, on a terminal if need be; wait until all brokers have started."""
        before = len(self.events("start"))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command(), terminal],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=bool(terminal),
            )
        if wait:
            self.until_started(before + int(str(self.brokers).partition("..")[0]))

    def until_started(self, number: int) -> None:
        """Wait until so many stand-ins have started, in all."""
        until(lambda: len(self.events("start")) == number)
        until(lambda: self.text.count("] seaweedq broker.") >= number)

    @property
    def pid(self) -> int:
        """The parent's."""
        assert self.process is not None
        return self.process.pid

    @property
    def text(self) -> str:
        """What the parent has printed."""
        return self.log.read_text()

    @property
    def urls(self) -> dict[int, str]:
        """Each broker's latest URL."""
        lines = [line for line in self.text.splitlines() if "] seaweedq broker." in line]
        return {int(line[1]): line.split(" at ")[1].split(",")[0] for line in lines}

    def send(self, number: int) -> None:
        """Send the parent a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for the parent's end: its exit code."""
        assert self.process is not None
        return self.process.wait(WITHIN_S)

    def order(self, member: int, what: str) -> None:
        """Tell a stand-in what to do."""
        draft = self.data_dir / "orders.new"
        draft.write_text(what)
        draft.rename(self.data_dir / f"orders-{member}")

    def events(self, *kinds: str) -> list[tuple[str, int]]:
        """What happened so far, to which member."""
        return [(kind, member) for kind, member, _ in self._rows() if kind in kinds or not kinds]

    def member_pid(self, member: int) -> int:
        """A member's newest process."""
        return [pid for kind, number, pid in self._rows() if (kind, number) == ("start", member)][-1]

    def pids(self) -> set[int]:
        """All processes that ever were."""
        return {pid for _, _, pid in self._rows()}

    def _rows(self) -> list[tuple[str, int, int]]:
        path = self.data_dir / "events"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(kind, int(member), int(pid)) for kind, member, pid in rows]

    def kill(self) -> None:
        """Leave nothing behind."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids():
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def main() -> int:
    from seaweedq.cli.server import member_process, supervise
    from seaweedq.cli.shared.common import complain
    from seaweedq.errors import SeaweedqError
    from seaweedq.settings import BrokerRange, Settings

    logging.basicConfig(level="INFO", format="%(levelname)s %(message)s", stream=sys.stderr)
    data_dir, brokers, grace_s, delay_s, pause_s, terminal = sys.argv[1:]
    if terminal:  # the first one that a session's leader opens becomes its own
        os.open(terminal, os.O_RDWR)
    supervise.MARGIN_S = float(grace_s) - 1
    if float(pause_s):
        member_process.pause_s = lambda quick: float(pause_s) if quick else 0.0
    settings = Settings(
        data_dir=Path(data_dir),
        brokers=BrokerRange.parse(brokers),
        port=0,
        shutdown_s=1,
        shutdown_delay_s=float(delay_s),
    )
    try:
        return supervise.supervise(settings, STAND_IN)
    except SeaweedqError as error:
        complain(str(error))
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup hand it on ignored
    sys.exit(main())
