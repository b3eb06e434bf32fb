"""A TCP relay between a client and a server that a test can cut, or turn into a black hole."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tests.support.processes.broker_process import free_port
from tests.support.processes.tcp_proxy import listen_no_more


class Relay:
    """Listens on `endpoint`, hands bytes on to `target`; `swallow` takes them and hands nothing on any more."""

    def __init__(self, target: str) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.connections = 0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Relay":
        host, port = self.endpoint.split(":")
        self._server = await asyncio.start_server(self._accept, host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await listen_no_more(self._server)
        self.cut()
        for _ in range(3):  # what is aborted is closed in a later turn of the loop
            await asyncio.sleep(0)

    def swallow(self) -> None:
        """Be a black hole, for connections that are there and for new ones."""
        self._open.clear()

    def hold_answers(self) -> None:
        """What is asked still arrives; what is answered does not."""
        self._answers.clear()

    def cut(self) -> None:
        """Reset all connections; new ones are served."""
        for task in self._tasks:
            task.cancel()
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()
        self._open.set()
        self._answers.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        self._spawn(self._connected(reader, writer))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.split(":")
        try:
            to_reader, to_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self.writers.add(to_writer)
        self._spawn(self._pump(to_reader, writer, self._answers))
        self._spawn(self._pump(reader, to_writer, self._open))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._open.wait()
                await way.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
