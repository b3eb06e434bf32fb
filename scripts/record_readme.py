"""Records docs/images/readme.svg: a broker, and three terminals in which commands run that publish, count and watch.

What is drawn is what the commands printed, at the pace at which they did. One clock is read for all panes, and a frame
is one at which they agree on how many messages there are: between two frames one of them is behind, by as long as its
query and the pause after it take. It needs nothing but this package with its extras `server` and `sql`:
`python scripts/record_readme.py`.
"""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from terminal_svg import Frame, Lines, Pane, Screen, film

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "readme.svg"
TITLE = (
    "Three terminals: one publishes some thousand messages a second, one counts them with DuckDB, "
    "and one shows how the topic splits into four segments"
)
PUBLISH = """while sleep 1; do seq -f '{"sensor": "s%g"}' 1500; done | seaweedq publish readings"""
COUNT = 'seaweedq sql --watch --every-s 0.1 "SELECT count(*) AS messages FROM readings"'
WATCH = "seaweedq topic watch readings"
SCALING = "--target-messages-per-s 100 --max-segments 4 --cool-down-s 2"
CREATE = f"seaweedq topic create readings --key-field sensor {SCALING}"
SECONDS, BETWEEN_S = 24.0, 0.3
COUNTS = (r"acknowledged ([\d,]+)", r"messages\s+(\d+)\s*$", r"([\d.]+k) messages")  # of each pane


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, pane: Pane, environment: dict[str, str], folder: str) -> None:
        self.screen = pane.screen
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.fd, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", self.screen.rows, self.screen.columns, 0, 0))
        self.process = subprocess.Popen(
            ["bash", "-c", pane.command],
            env=environment,
            cwd=folder,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)

    def read(self) -> None:
        """Takes what the command has printed meanwhile."""
        self.screen.feed(self.decoder.decode(os.read(self.fd, 1 << 16)))

    def end(self) -> None:
        """Ends the command and all that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.fd)


def agree(shown: Sequence[Lines]) -> bool:
    """Whether all panes show the same number of messages; the last one shows thousands."""
    texts = ["\n".join("".join(cell for cell, _ in line) for line in lines) for lines in shown]
    found = [re.search(pattern, text) for pattern, text in zip(COUNTS, texts, strict=True)]
    acknowledged, counted, watched = (one[1].replace(",", "") if one else "" for one in found)
    return bool(acknowledged) and acknowledged == counted and f"{int(counted) / 1000:.1f}k" == watched


def record(panes: list[Pane], environment: dict[str, str], folder: str) -> list[Frame]:
    """Runs the commands of all panes, and returns what was to be seen."""
    terminals = [Terminal(pane, environment, folder) for pane in panes]
    begin, frames = time.monotonic(), list[Frame]()
    try:
        while (now := time.monotonic() - begin) < SECONDS:
            ready, _, _ = select.select([terminal.fd for terminal in terminals], [], [], 0.05)
            for terminal in terminals:
                if terminal.fd in ready:
                    terminal.read()
            shown = tuple(terminal.screen.lines() for terminal in terminals)
            if not frames or (agree(shown) and shown != frames[-1].shown and now - frames[-1].at_s > BETWEEN_S):
                frames.append(Frame(now, shown))
    finally:
        for terminal in terminals:
            terminal.end()
    return frames


def main() -> int:
    """Starts a broker, records, and writes the picture."""
    panes = [
        Pane(Screen(105, 1), PUBLISH, 0, 0),
        Pane(Screen(105, 3), COUNT, 0, 4),
        Pane(Screen(105, 16), WATCH, 0, 10),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEAWEEDQ_")} | {
        "TERM": "xterm-256color",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with tempfile.TemporaryDirectory() as folder:
        serve = ["seaweedq", "serve", "--port", "0", "--name", "laptop"]
        broker = subprocess.Popen(
            serve, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert broker.stdout is not None
        environment["SEAWEEDQ_URL"] = broker.stdout.readline().split(" at ")[1].split(",")[0]
        try:
            subprocess.run(["bash", "-c", CREATE], env=environment, cwd=folder, check=True)
            frames = record(panes, environment, folder)
        finally:
            broker.terminate()
            broker.wait()
    PICTURE.write_text(film(panes, frames, TITLE))
    print(f"{PICTURE}: {len(frames)} frames, {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
