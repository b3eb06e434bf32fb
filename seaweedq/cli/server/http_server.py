"""The HTTP server of a broker, and its gRPC port: from binding its port to shutting down in order.

A shutdown after a signal has three steps. First, for `shutdown_delay_s`, `/readyz` answers 503 and each answer closes
its connection, so that load balancers and clients turn to other brokers; everything else works as before. Second, the
broker hands over its segments and subscriptions. Third, it closes the port, ends waiting requests, and completes the
others; gRPC clients get GOAWAY. Each further signal ends the present step. A lost lease skips all steps. Errors in a
step are logged, and the shutdown continues.

Each request that uvicorn cannot read causes a log line, and anyone can send such requests; `OnceInAWhile` limits these
lines."""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from seaweedq.api.app import Application
from seaweedq.api.connections.connections import ConnectionBounds
from seaweedq.api.connections.handshakes import Handshake
from seaweedq.api.connections.protocol import BoundedProtocol
from seaweedq.api.connections.web_sockets import socket_options
from seaweedq.broker.broker import Broker
from seaweedq.cli.server.credentials import Certificate
from seaweedq.cli.server.machine import connections_of, raise_limit
from seaweedq.cli.server.stop_signals import StopSignals
from seaweedq.extras import needs
from seaweedq.settings import Settings

if TYPE_CHECKING:
    from seaweedq.api.grpc.server import GrpcServer

EACH_S = 10.0


class OnceInAWhile(logging.Filter):
    """Lets a log line with this text pass once per EACH_S, and adds how many lines were suppressed."""

    def __init__(self, text: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._text = text
        self._now = now
        self._passed_s = float("-inf")
        self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a log line may pass."""
        if record.msg != self._text:
            return True
        now_s = self._now()
        if now_s - self._passed_s < EACH_S:
            self._held_back += 1
            return False
        if self._held_back:
            record.msg = f"{self._text} {self._held_back} more since the last such line."
        self._passed_s, self._held_back = now_s, 0
        return True


DRAIN_S = 3
LOST_S = 1  # a broker without its lease may answer hardly anybody, and is missed
ACCEPT_S = 0.005
LAST_S = 0.05  # in which clients that are connected are served as before
logger = logging.getLogger("seaweedq")


def listen(settings: Settings, port: int | None = None) -> socket.socket:
    """Binds a port, by default the port for clients. This is the first step, so that a port in use is noticed before
    the broker takes a lease. Raises OSError."""
    port = settings.port if port is None else port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, port))
    except OSError as error:
        listener.close()
        other = "; stop the process that uses this port, or choose another port" if error.errno == EADDRINUSE else ""
        raise OSError(f"cannot listen on {settings.host}:{port}: {error.strerror or error}{other}") from None
    listener.set_inheritable(False)
    return listener


def url_of(host: str, listener: socket.socket, scheme: str = "http") -> str:
    """Returns the URL at which this machine reaches a listener."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def grpc_port_of(settings: Settings, certificate: Certificate | None) -> "GrpcServer | None":
    """Binds the gRPC port, if the settings ask for it. Raises OSError, MissingExtra."""
    if not settings.grpc_port:
        return None
    with needs("grpc", "grpc_port"):
        from seaweedq.api.grpc.server import GrpcServer
    return GrpcServer(settings, listen(settings, settings.grpc_port), certificate.h2_context if certificate else None)


class HttpServer(uvicorn.Server):
    """A uvicorn server with the broker's own shutdown. The process handles signals, not uvicorn. The port for brokers
    (`peer_listener`) and the one for gRPC are served for as long as the port for clients."""

    def __init__(
        self,
        broker: Broker,
        stop: StopSignals,
        certificate: Certificate | None = None,
        peer_listener: socket.socket | None = None,
        grpc: "GrpcServer | None" = None,
    ) -> None:
        settings, application = broker.process.settings, Application(broker)
        connections = application.connections
        files = raise_limit() // (4 if grpc else 1)  # a connection to gRPC has three more (api/grpc/relay)
        connections.most, connections.reserve = connections_of(settings.max_connections, files)
        connections.most_per_address = settings.max_connections_per_address or max(1, connections.most // 4)
        application.forwarded.most = connections.most_per_address
        self._bounds = bounds = ConnectionBounds(
            settings.head_timeout_s,
            settings.answer_timeout_s,
            application.unread,
            connections,
            application.refusals,
            application.bodies,
            settings.request_timeout_s,
            application.addresses,
        )
        if certificate:
            broker.callers.certificates.ca = certificate.client_ca
        protocol: Callable[..., asyncio.Protocol] = partial(BoundedProtocol, bounds=bounds)
        of_clients = _with_tls(protocol, certificate.context, bounds) if certificate else protocol
        super().__init__(_config(application, of_clients, settings))
        self._broker = broker
        self._stop = stop
        self._certificate = certificate
        self._peer_listener = peer_listener
        self._application, self.grpc = application, grpc
        if peer_listener:
            of_peers = _with_tls(protocol, broker.keyring.tls.server, bounds, "peer")
            self._peer_config = _config(application.at_peer_port, of_peers, settings)
        self._heard = 1  # signals: the first one begins the end of the serving

    async def run_until_stopped(self, listener: socket.socket) -> None:
        """Serves until a signal arrives, or the broker loses its lease."""
        tasks = [asyncio.create_task(self._end(listener), name="end of the serving")]
        if self._certificate:
            tasks.append(asyncio.create_task(self._certificate.follow(), name="renewal of the certificate"))
        try:
            await self.serve(sockets=[listener])
            if self.grpc:
                await self.grpc.stop()
        finally:
            for task in tasks:
                task.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves both ports, with the same rules for connections and for shutting down."""
        await super().startup(sockets)
        if self.grpc:
            await self.grpc.start(self._broker, self._application, self._bounds)
        if self._peer_listener:
            config, loop = self._peer_config, asyncio.get_running_loop()
            config.load()
            speak: Any = config.http_protocol_class
            state = {"server_state": self.server_state, "app_state": self.lifespan.state}
            begin = partial(speak, config=config, **state)
            self.servers.append(await loop.create_server(begin, sock=self._peer_listener, backlog=config.backlog))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing with signals: uvicorn would raise them again, and the process would end without flushing."""
        yield

    async def _end(self, listener: socket.socket) -> None:
        lost = self._broker.lost
        try:
            await _first(self._stop.wait(self._heard), lost.wait())
            if not lost.is_set():
                await self._leave(listener)
        except Exception:
            logger.exception("the hand-over to other brokers failed with an unexpected error; stopping without it")
        finally:
            self._broker.begin_stop()
            if self.grpc:
                self.grpc.begin_stop(LOST_S if lost.is_set() else DRAIN_S)
            if lost.is_set():
                self.config.timeout_graceful_shutdown = LOST_S
            self.should_exit = True

    async def _leave(self, listener: socket.socket) -> None:
        """Runs the shutdown: waits, hands over, and answers connected clients."""
        settings = self._broker.process.settings
        self._broker.leave()
        if settings.shutdown_delay_s:
            logger.info("the broker stops in %g s; until then /readyz answers 503", settings.shutdown_delay_s)
        await self._cut_short(asyncio.sleep(settings.shutdown_delay_s))
        await self._cut_short(self._broker.drain())
        for one in filter(None, (listener, self._peer_listener)):
            one.listen(0)  # who waits to be accepted when a listener closes would be cut off
        await self._cut_short(asyncio.sleep(ACCEPT_S))
        for server in self.servers:  # at once: a client whose connection finds no place now tries again after a second
            server.close()
        await self._cut_short(asyncio.sleep(LAST_S))

    async def _cut_short(self, step: Coroutine[Any, Any, None]) -> None:
        """Runs a step of the shutdown, until it is done, another signal ends this step, or the broker loses its
        lease."""
        await _first(step, self._stop.wait(self._heard + 1), self._broker.lost.wait())
        self._heard = min(self._heard + 1, self._stop.count)


def _config(application: Any, protocol: Callable[..., asyncio.Protocol], settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        interface="asgi3",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=DRAIN_S,
        timeout_keep_alive=75,
        http=protocol,  # type: ignore[arg-type]
        **socket_options(settings.answer_timeout_s),
        server_header=False,
        proxy_headers=False,
    )


def _with_tls(
    speak: Callable[..., asyncio.Protocol],
    context: Callable[[], ssl.SSLContext],
    bounds: ConnectionBounds,
    refusals_of: str = "tls",
) -> Callable[..., asyncio.Protocol]:
    """Returns a factory for the protocol that runs a connection's TLS handshake before `speak` takes over."""

    def begin(**named: Any) -> Handshake:
        return Handshake(partial(speak, **named), context, bounds, refusals_of)

    return begin


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Waits until the first of several works has ended, and cancels the others. Raises the error of a failed work; a
    cancelled work is not an error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        if not task.cancelled():
            task.result()
