"""A broker of the test's own loop behind a real port, and the signals that its process would get."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from seaweedq.broker.broker import Broker
from seaweedq.cli.server.credentials import certificate_of
from seaweedq.cli.server.http_server import HttpServer, grpc_port_of, listen, url_of
from seaweedq.cli.server.stop_signals import StopDeadline, StopSignals


class NoDeadline(StopDeadline):
    """A deadline that never comes, and its thread neither."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def begin(self, within_s: float) -> None:
        self.begun.append(within_s)


def stop_signals() -> StopSignals:
    """The signals of a process, which wake who waits in the loop that runs."""
    stop = StopSignals(NoDeadline(), 0, 0)
    stop.follow(asyncio.get_running_loop())
    return stop


class Served:
    """A broker that serves at `url` until `stop` is asked, or the life is lost; `ended` is the serving."""

    def __init__(self, broker: Broker, listener: socket.socket) -> None:
        self.broker = broker
        self.certificate = certificate_of(broker.process.settings)
        self.url = url_of("127.0.0.1", listener, "https" if self.certificate else "http")
        self.stop = stop_signals()
        self.peer_listener = listen(broker.process.settings, 0) if broker.process.peer_url else None
        grpc_port = grpc_port_of(broker.process.settings, self.certificate)
        self.server = HttpServer(broker, self.stop, self.certificate, self.peer_listener, grpc_port)
        self.ended = asyncio.create_task(self.server.run_until_stopped(listener))


@asynccontextmanager
async def served(broker: Broker) -> AsyncIterator[Served]:
    """The broker behind a free port of the loopback address; at the end it serves no more."""
    listener = listen(broker.process.settings.model_copy(update={"port": 0}))
    listener.listen(100)
    serving = Served(broker, listener)
    try:
        yield serving
    finally:
        while not serving.ended.done():
            serving.stop.ask()
            await asyncio.sleep(0.01)
        serving.ended.result()
