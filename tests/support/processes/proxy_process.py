"""TCP proxies in a process of their own, which hears over its standard input what to do, and ends with it.

They are the network between others. In the process of twenty clients they waited for those clients' turns: with the
processors busy, for seconds, in which nobody's lease was renewed. A network does not wait for processors either, so the
process goes before all others, where it may.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Self

from tests.support.processes.tcp_proxy import Cut, LoopThread, TcpProxy

FIRST = -15  # niceness
TICK_S = 0.05
END_S = 30.0


class ProxyProcess:
    """The process, from here. `link` makes a proxy in it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._turn = threading.Lock()
        self._count = 0

    def link(self, target: str) -> "Link":
        """A proxy in front of `target`, which listens once it is started."""
        with self._turn:
            number, self._count = self._count, self._count + 1
        return Link(self, number, self.tell(number, "new", target))

    def tell(self, number: int, what: str, *arguments: Any) -> Any:
        """Have it done, and get the answer. Fails where the process does."""
        assert self._process.stdin
        assert self._process.stdout
        with self._turn:
            print(json.dumps([number, what, *arguments]), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        assert answer, "the process of the proxies has ended"
        return json.loads(answer)

    def late_s(self) -> float:
        """By how much its loop was late at worst, since it was asked last."""
        return float(self.tell(0, "late"))

    def close(self) -> None:
        """End it, and all connections."""
        self._process.communicate(timeout=END_S)


class Link:
    """One of its proxies, as Proxy."""

    def __init__(self, process: ProxyProcess, number: int, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process = process
        self._number = number

    def start(self) -> Self:
        """As Proxy.start."""
        self._process.tell(self._number, "start")
        return self

    def stop(self) -> None:
        """As Proxy.stop."""
        self._process.tell(self._number, "stop")

    def cut(self, how: Cut) -> None:
        """As Proxy.cut."""
        self._process.tell(self._number, "cut", how)

    def delay(self, seconds: float) -> None:
        """As Proxy.delay."""
        self._process.tell(self._number, "delay", seconds)

    def heal(self) -> None:
        """As Proxy.heal."""
        self._process.tell(self._number, "heal")


class Lateness:
    """Measures how late a loop is."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    async def measure(self) -> None:
        """Until it is cancelled."""
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._worst_s = max(self._worst_s, time.monotonic() - due_s)

    def take(self) -> float:
        """The worst since the last call."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s


def main() -> None:
    """Serve."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    thread, lateness, proxies = LoopThread(), Lateness(), dict[int, TcpProxy]()
    asyncio.run_coroutine_threadsafe(lateness.measure(), thread.loop)
    for line in sys.stdin:
        number, what, *arguments = json.loads(line)
        if what == "new":
            proxies[number] = TcpProxy(thread, *arguments)
            answer: Any = proxies[number].port
        elif what == "late":
            answer = lateness.take()
        else:
            getattr(proxies[number], what)(*arguments)
            answer = None
        print(json.dumps(answer), flush=True)
    thread.close()


if __name__ == "__main__":
    main()
