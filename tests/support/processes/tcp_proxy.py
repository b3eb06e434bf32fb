"""A TCP proxy in front of one server, on a loop in a thread of its own: it cuts the link, slows it, heals it.

It knows nothing of what it carries. What is held while a link is cut is delivered when it heals, as TCP would.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from tests.support.processes.broker_process import free_port

T = TypeVar("T")
Way = Literal["to", "from"]  # as seen from the client: to the server, from the server
Cut = Literal["refuse", "both", "to", "from"]
WAYS: tuple[Way, Way] = ("to", "from")
CHUNK = 65_536
HELD = 64  # pieces that a link holds
CALL_S = 30.0


class LoopThread:
    """An event loop in a daemon thread, for all proxies of a run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self.thread.start()

    @property
    def id(self) -> int:
        """The kernel's number of the thread."""
        assert self.thread.native_id
        return self.thread.native_id

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it there, and wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_S)

    def close(self) -> None:
        """Cancel all that still runs there, and end the thread."""
        self.run(self._cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CALL_S)
        self.loop.close()

    async def _cancel(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for transport in [*self.loop._transports.values()]:  # type: ignore[attr-defined]
            transport.abort()  # also one that was accepted after its proxy had stopped
        for _ in range(3):  # they are closed in a later turn of the loop
            await asyncio.sleep(0)


async def listen_no_more(server: asyncio.Server) -> None:
    """Close it, when what it has accepted has begun: asyncio lets go of the socket of a connection that was accepted in
    the turn of the close, and says so in whatever test runs when it is collected."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(2):
        await asyncio.sleep(0)
    server.close()


class Proxy:
    """The link to `target`, listening at `port` of 127.0.0.1. What it carries is the subclass's: `serve`."""

    def __init__(self, thread: LoopThread, target: str) -> None:
        parts = urlsplit(target if "://" in target else f"//{target}")
        assert parts.hostname
        assert parts.port
        self.target = (parts.hostname, parts.port)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.delay_s = 0.0
        self.thread = thread
        self._gates = {way: asyncio.Event() for way in WAYS}
        self._server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    def start(self) -> Self:
        """Listen, with all ways open."""
        self.thread.run(self._heal())
        return self

    def stop(self) -> None:
        """Listen no more, and end all connections."""
        self.thread.run(self._refuse())

    def cut(self, how: Cut) -> None:
        """Refuse all connections, or let them stand and carry nothing in one way or in both."""
        self.thread.run(self._cut(how))

    def delay(self, seconds: float) -> None:
        """From now on each piece is held so long."""
        self.delay_s = seconds

    def heal(self) -> None:
        """As at the start; what was held is delivered."""
        self.delay_s = 0.0
        self.thread.run(self._heal())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection. OSError and EOF end it."""
        raise NotImplementedError

    async def passage(self, way: Way, arrived_s: float | None = None) -> None:
        """Wait until this way carries something that arrived at that time of the loop, by default now."""
        if self.delay_s:
            now_s = asyncio.get_running_loop().time()
            await asyncio.sleep((now_s if arrived_s is None else arrived_s) + self.delay_s - now_s)
        await self._gates[way].wait()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server, which a refusal ends too."""
        reader, writer = await asyncio.open_connection(*self.target, limit=CHUNK * 16)
        self.writers.add(writer)
        return reader, writer

    def end(self, writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
        """End a connection at once, in order or by a reset."""
        self.writers.discard(writer)
        if reset:
            linger = struct.pack("ii", 1, 0)
            with suppress(OSError):  # it has just ended by itself
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def _heal(self) -> None:
        for gate in self._gates.values():
            gate.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, limit=CHUNK * 16)

    async def _cut(self, how: Cut) -> None:
        if how == "refuse":
            await self._refuse()
        for way in WAYS:
            if how in (way, "both"):
                self._gates[way].clear()

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await listen_no_more(server)
        for writer in [*self.writers]:
            self.end(writer, reset=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # whoever cancels it is done with it
        finally:
            self.end(writer)


class TcpProxy(Proxy):
    """Carries bytes."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways until both have ended."""
        there_reader, there_writer = await self.connect()
        try:
            await asyncio.gather(self._pump(reader, there_writer, "to"), self._pump(there_reader, writer, "from"))
        finally:
            self.end(there_writer)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Way) -> None:
        """A delay holds each piece from its arrival, so that what comes together is late together."""
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD)

        async def read() -> None:
            clock, data = asyncio.get_running_loop(), b"-"
            try:
                while data:
                    data = await source.read(CHUNK)
                    await arrived.put((clock.time(), data))
            except OSError:
                await arrived.put((clock.time(), b""))
                raise

        reading = asyncio.create_task(read())
        try:
            while (piece := await arrived.get())[1]:
                await self.passage(way, piece[0])
                sink.write(piece[1])
                await sink.drain()
            await reading
            sink.write_eof()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
