"""A stand-in for `seaweedq serve --member i`: it greets, answers /readyz, and does what the file `orders-{i}` says.

It has no import of the project, so that it starts fast. What it does it appends to the file `events`, a line each.
"""

import argparse
import fcntl
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

POLL_S = 0.02


class Broker:
    """One run, from the lock of its home to the end."""

    def __init__(self, data_dir: Path, member: int, port: int) -> None:
        self.folder, self.member, self.port = data_dir, member, port
        self.stopped = False  # no Event: a handler that sets one as the main thread enters its lock waits for ever

    def event(self, what: str) -> None:
        """Note that something happened."""
        fd = os.open(self.folder / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.write(fd, f"{what} {self.member} {os.getpid()}\n".encode())
        os.close(fd)

    def orders(self) -> list[str]:
        """What it is told to do now."""
        path = self.folder / f"orders-{self.member}"
        return path.read_text().split() if path.exists() else []

    def run(self) -> int:
        """Until it is stopped, or ordered to end."""
        if (orders := self.orders()) and orders[0] == "end":
            print("seaweedq: such settings", file=sys.stderr)
            return int(orders[1])
        home = self.folder / "members" / str(self.member)
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o640)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(lock, f"{os.getpid():<20}".encode(), 0)
        signal.signal(signal.SIGTERM, self.terminate)
        threading.Thread(target=self.watch_parent, daemon=True).start()
        server = self.serve()
        self.event("start")
        self.greet(server)  # the parent goes on when it has read this
        wish: list[str] = []
        while not self.stopped:
            time.sleep(POLL_S)
            if (orders := self.orders()) != wish and orders[:1] == ["wish"]:
                wish = orders
                print(f"seaweedq wants {wish[1]} brokers, least used first: {' '.join(wish[2:])}", flush=True)
        while "linger" in self.orders():
            time.sleep(POLL_S)
        self.event("stop")
        return 3 if "mute" in self.orders() else 0

    def terminate(self, number: int, frame: object) -> None:
        """SIGTERM."""
        self.event("term")
        self.stopped = True

    def watch_parent(self) -> None:
        """The pipe to the parent."""
        os.read(0, 1)
        self.event("orphan")
        self.stopped = True

    def serve(self) -> ThreadingHTTPServer:
        """Answer /readyz in a thread."""
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(503 if "unready" in broker.orders() else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def greet(self, server: ThreadingHTTPServer) -> None:
        """Print where it is, as a broker does."""
        print("a log line", file=sys.stderr, flush=True)
        if "mute" in self.orders():
            return
        print(f"seaweedq broker.{os.getpid()} at http://127.0.0.1:{server.server_port}, store file:///s", flush=True)
        print("  curl something", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--brokers")
    parser.add_argument("--member", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--peer-port", type=int)
    parser.add_argument("--grpc-port", type=int)
    given = parser.parse_args()
    return Broker(given.data_dir, given.member, given.port).run()


if __name__ == "__main__":
    sys.exit(main())
