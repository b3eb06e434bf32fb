"""Pulls that wait, at the broker that dispatches their subscription and at another one: memory, CPU while nothing
comes, and what a publish costs that one of them gets."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.http import Connection, Connections, request, run
from benchmarks.result import Result

WAITING = 5_000
PUBLISHES = 100
IDLE_S = 4.0
LEAST_S = 12.0  # of the wait that must be left for the measurement
MIB = 1024 * 1024
TOPIC = "/v1/topics/waiting"
SUBSCRIPTION = f"{TOPIC}/subscriptions/s"
PULL = request(f"{SUBSCRIPTION}/pull", b'{"max_messages":1,"wait_s":30}', "application/json")
PUBLISH = request(f"{TOPIC}/messages", b'{"value":1}', "application/json")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Brokers:
    """Two brokers of one parent, by port and process id."""

    ports: list[int]
    pids: list[int]

    def cpu_s(self) -> float:
        """User and system seconds of both so far."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _TICKS

    def pid_of(self, port: int) -> int:
        """The process that listens on a port."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        inodes = {f"socket:[{one[9]}]" for one in map(str.split, lines) if one[1].endswith(f":{port:04X}")}
        return next(pid for pid in self.pids if any(os.readlink(fd) in inodes for fd in _open_files(pid)))

    def memory_bytes(self) -> int:
        """Resident memory of the larger one."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids]
        return max(pages) * os.sysconf("SC_PAGE_SIZE")


def _open_files(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


def measure(folder: Path) -> Iterator[Result]:
    """Nobody waits, and then many do: at the dispatcher, and at the other broker."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for where in ("here", "another broker"):
        with together(folder / where) as brokers:
            yield from _measured(brokers, where)


def _measured(brokers: Brokers, where: str) -> Iterator[Result]:
    dispatching: int = run(brokers.ports[0], 1, lambda opened: dispatcher(opened[0], brokers.ports))
    other = next(port for port in brokers.ports if port != dispatching)
    alone_s: float = run(dispatching, 1, lambda opened: _alone(opened[0], brokers))
    port = dispatching if where == "here" else other
    idle, publish_s, memory_bytes = run(port, WAITING, lambda opened: _waiting(opened, dispatching, brokers))
    note = f"{WAITING:,} pulls wait in one subscription; CPU is that of two brokers"
    name = f"waiting at {where}" if where != "here" else "waiting"
    yield Result(name=f"{name}, memory", figure=memory_bytes / MIB, unit="MiB", target=400, better="lower", note=note)
    yield Result(name=f"{name}, idle", figure=100 * idle, unit="% of a core", target=2, better="lower", note=note)
    yield Result(
        name=f"{name}, publish",
        figure=1000 * (publish_s - alone_s),
        unit="ms of CPU more",
        limit=1000 * alone_s,
        limit_is="CPU for a publish while nobody waits",
        target=5,
        better="lower",
        note=f"{note}; each publish feeds one, whose answer is included",
    )


async def dispatcher(connection: Connection, ports: Sequence[int]) -> int:
    """Makes the topic and the subscription, and finds the port of its dispatcher."""
    await connection.ask_json("PUT", TOPIC, {})
    await connection.ask_json("PUT", SUBSCRIPTION, {"start": "latest", "mode": "shared"})
    await connection.ask_json("POST", f"{SUBSCRIPTION}/pull", {})
    for port in ports:
        asked = await Connection.to(port)
        if b'subscription="s"' in await asked.ask(request("/metrics", b"", "text/plain", "GET")):
            return port
    raise RuntimeError("no broker dispatches")


async def _alone(connection: Connection, brokers: Brokers) -> float:
    await _publish(connection, PUBLISHES)
    begun = brokers.cpu_s()
    await _publish(connection, PUBLISHES)
    used_s = brokers.cpu_s() - begun
    while (await connection.ask_json("POST", f"{SUBSCRIPTION}/pull", {"max_messages": 1000}))["messages"]:
        pass
    return used_s / PUBLISHES


async def _waiting(opened: Connections, dispatching: int, brokers: Brokers) -> tuple[float, float, int]:
    begun_s = time.monotonic()
    waiting = [asyncio.create_task(connection.ask(PULL)) for connection in opened]
    try:
        await _settle(brokers)
        for one in waiting:
            assert not one.done(), one.exception() or one.result()
        assert time.monotonic() - begun_s < 30 - LEAST_S, "the machine is too slow: waits would end meanwhile"
        return await _measured_beside(waiting, dispatching, brokers)
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _measured_beside(
    waiting: list["asyncio.Task[bytes]"], dispatching: int, brokers: Brokers
) -> tuple[float, float, int]:
    cpu_s, since_s = brokers.cpu_s(), time.monotonic()
    await asyncio.sleep(IDLE_S)
    idle = (brokers.cpu_s() - cpu_s) / (time.monotonic() - since_s)
    memory_bytes = brokers.memory_bytes()
    publisher = await Connection.to(dispatching)  # not before: a connection that asks nothing is closed
    cpu_s = brokers.cpu_s()
    await _publish(publisher, PUBLISHES)
    while sum(one.done() for one in waiting) < PUBLISHES:
        await asyncio.sleep(0.01)
    publish_s = (brokers.cpu_s() - cpu_s) / PUBLISHES
    assert sum(one.done() for one in waiting) == PUBLISHES
    return idle, publish_s, memory_bytes


async def _publish(connection: Connection, count: int) -> None:
    for _ in range(count):
        await connection.ask(PUBLISH)


async def _settle(brokers: Brokers) -> None:
    """Until the brokers do nothing any more: all pulls wait."""
    last_s = -1.0
    while (now_s := brokers.cpu_s()) - last_s > 0.05:
        last_s = now_s
        await asyncio.sleep(1)


@contextmanager
def together(folder: Path) -> Iterator[Brokers]:
    """Two brokers of one parent."""
    options = ["--data-dir", str(folder), "--port", "0", "--brokers", "2", "--log-level", "error"]
    options += ["--max-connections", str(2 * WAITING)]  # three quarters of them may wait
    process = subprocess.Popen([sys.executable, "-m", "seaweedq", "serve", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    ports: list[int] = []
    try:
        for line in process.stdout:
            urls = [word.rstrip(",") for word in line.split() if word.startswith("http://") and " at http" in line]
            ports += [urlsplit(url).port or 0 for url in urls]
            if len(ports) == 2:
                break
        else:
            raise RuntimeError("two brokers did not start")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Brokers(ports, [int(pid) for pid in children])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
