"""The process of one broker. It runs the broker again and again, until a signal, or an error that would recur. Each run
is a *life*.

Each life has its own event loop, so nothing of it is left when the next life begins. A life ends with a signal, with
the loss of its lease, or with an unexpected error. After a signal, no other life follows. A broker that never became
ready ends with the error. A broker that was ready starts again, because the fault may pass: a full disk, coordination
that does not answer, a defect. If a life does not end in time (`StopDeadline`), its process ends; without a signal, the
process executes the same program again as the next life."""

import asyncio
import gc
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from seaweedq.broker.broker import Broker, ProcessContext
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.broker.imports.reader_process import ReaderProcess
from seaweedq.broker.rebuild import COMMAND
from seaweedq.broker.rpc.client import Peers
from seaweedq.cli.server.backends import cores, open_cache, open_coordination, open_store
from seaweedq.cli.server.credentials import certificate_of, cluster_secret, draw_admin_token, trust_of
from seaweedq.cli.server.http_server import HttpServer, grpc_port_of, listen, url_of
from seaweedq.cli.server.journals import journal_setup, new_holdings
from seaweedq.cli.server.live_line import LiveLine, shown_live
from seaweedq.cli.server.machine import check_folders, keep_others_out
from seaweedq.cli.server.member_process import wish_line
from seaweedq.cli.server.stop_signals import StopDeadline, Stopped, StopSignals, log_hanging
from seaweedq.clock import CpuClock, SystemClock, SystemIds
from seaweedq.concurrency.pools import Pools
from seaweedq.errors import Fenced, SeaweedqError, Unavailable
from seaweedq.extras import needs
from seaweedq.import_worker import COMMAND as IMPORT_WORKER
from seaweedq.settings import Settings
from seaweedq.storage.instrumented import InstrumentedStore

if TYPE_CHECKING:
    from seaweedq.cli.server.tracing import ProcessTraces


def listen_for_peers(settings: Settings) -> socket.socket | None:
    """Binds the port for other brokers, if the settings ask for it. Raises OSError."""
    return listen(settings, settings.peer_port) if settings.peer_port else None


def peer_url_of(settings: Settings, listener: socket.socket | None) -> str:
    """Returns the URL at which other brokers reach the listener; empty without a listener."""
    if listener is None or settings.advertise_peer_url:
        return settings.advertise_peer_url
    advertised = urlsplit(settings.advertise_url).hostname
    return url_of(advertised or settings.host, listener, "https")


def grpc_url_of(settings: Settings) -> str:
    """Returns the URL at which clients reach the gRPC port; empty without one."""
    if not settings.grpc_port:
        return ""
    host = urlsplit(settings.advertise_url).hostname or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(
        settings.host, settings.host
    )
    scheme = "grpcs" if settings.tls_cert_file else "grpc"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.grpc_port}"


def traces_of(settings: Settings) -> "ProcessTraces | None":
    """Returns the spans of this process, if the settings ask for them. Raises MissingExtra."""
    if not settings.otel_endpoint:
        return None
    with needs("otel", "otel_endpoint"):
        from seaweedq.cli.server.tracing import ProcessTraces
    return ProcessTraces(settings)


OVERTIME_S = 4.0  # beyond shutdown_s, before a stop that hangs is ended
AGAIN_S = 1.0
WISH_S = 5.0
logger = logging.getLogger("seaweedq")


class BrokerProcess:
    """The lives of one broker."""

    def __init__(
        self, settings: Settings, stop: StopSignals, deadline: StopDeadline, line: LiveLine | None = None
    ) -> None:
        self._line = line
        self._settings = settings
        self._stop = stop
        self._deadline = deadline
        self.was_ready = False
        self._revoked = OwnRevocations(SystemClock())
        self._holdings = new_holdings(settings, SystemIds())
        self._certificate = certificate_of(settings)
        self._trust = trust_of(settings, self._certificate)
        self._pools: list[Pools] = []  # of all lives, as long as calls hang there
        self._traces = traces_of(settings)

    def run(self) -> None:
        """Runs lives until a signal. Raises the error of a failed first start, and errors that every start would
        raise."""
        while self._run_life() and not self._stop.asked:
            self._deadline.clear()
            gc.unfreeze()
            gc.collect()  # what the life that ended had frozen would stay for ever
            logger.warning("this broker is starting again under a new broker id")

    def close(self) -> None:
        """Sends the last spans."""
        if self._traces is not None:
            self._traces.close()

    def hanging(self) -> list[str]:
        """Returns the thread pools with hanging calls, and the number of these calls."""
        return [pool for pools in self._pools for pool in pools.hanging()]

    def _run_life(self) -> bool:
        """Runs one life. Returns whether another life must follow."""
        try:
            with uvicorn_loop() as runner:
                return runner.run(self.live())
        except Stopped:
            return False
        except (SeaweedqError, OSError) as error:
            if not self.was_ready or not isinstance(error, Unavailable | OSError):
                raise
            logger.warning("this broker cannot restart yet: %s", error)
        except Exception:
            if not self.was_ready:
                raise
            logger.exception("this broker ended because of an unexpected error")
        return self._pause()

    def _pause(self) -> bool:
        try:
            self._stop.sleep(AGAIN_S)
        except Stopped:
            return False
        return True

    async def live(self) -> bool:
        """Runs one life of a broker in this event loop. Returns whether the life was lost, so that another one must
        follow."""
        self._stop.follow(asyncio.get_running_loop())
        async with AsyncExitStack() as stack:
            listener = listen(self._settings)
            stack.callback(listener.close)
            peer_listener = listen_for_peers(self._settings)
            if peer_listener:
                stack.callback(peer_listener.close)
            url = url_of(self._settings.host, listener, "https" if self._certificate else "http")
            grpc_port = grpc_port_of(self._settings, self._certificate)
            if grpc_port:
                stack.push_async_callback(grpc_port.stop)
            broker = Broker(self._environment(url, peer_url_of(self._settings, peer_listener), stack))
            stack.push_async_callback(self._end, broker)
            stack.callback(asyncio.create_task(self._limit_loss(broker), name="deadline of a lost life").cancel)
            broker.lock()
            if self._settings.brokers.most == 1:  # others may be writing
                await broker.process.store.sweep_temporary()
            if await started(broker, self._stop):
                self.was_ready = True
                server = HttpServer(broker, self._stop, self._certificate, peer_listener, grpc_port)
                gc.freeze()  # of S3's client alone a full collection takes 50 ms, in which nobody is answered
                for one in filter(None, (listener, peer_listener)):
                    one.listen(2048)  # a reader of the greeting may connect
                with suppress(OSError):  # a closed pipe is no reason not to serve
                    greet(self._settings, broker)
                if self._settings.member:
                    stack.callback(asyncio.create_task(tell_wishes(broker), name="wishes for the parent").cancel)
                with shown_live(broker, self._line):
                    await server.run_until_stopped(listener)
        return broker.lost.is_set() and not self._stop.asked

    async def _limit_loss(self, broker: Broker) -> None:
        """Starts the deadline when the life is lost. No signal would start it, and ending the start-up or the serving
        may hang even before the stop begins."""
        await broker.lost.wait()
        self._deadline.begin(self._settings.shutdown_s + OVERTIME_S)

    async def _end(self, broker: Broker) -> None:
        self._deadline.begin(self._settings.shutdown_s + OVERTIME_S)
        await broker.stop()

    def _environment(self, url: str, peer_url: str, stack: AsyncExitStack) -> ProcessContext:
        """Opens the backends of a life; `stack` closes them."""
        settings, clock, ids, pools = self._settings, SystemClock(), SystemIds(), Pools()
        check_folders(settings)
        self._pools = [*(known for known in self._pools if known.hanging()), pools]
        asyncio.get_running_loop().set_default_executor(pools.compute)
        stack.callback(pools.close)
        store = open_store(settings, ids, pools)
        stack.push_async_callback(store.close)
        coordination = open_coordination(settings, clock, pools)
        stack.push_async_callback(coordination.close)
        secret = cluster_secret(settings)
        draw_admin_token(settings)
        return ProcessContext(
            settings,
            InstrumentedStore(store, clock),
            coordination,
            journal_setup(settings, clock, ids, os.environ, sleep=self._stop.sleep, holdings=self._holdings),
            clock,
            ids,
            Peers(self._trust),
            settings.advertise_url.rstrip("/") or url,
            self._revoked,
            secret,
            partial(ReaderProcess.start, IMPORT_WORKER),
            pools=pools,
            peer_url=peer_url,
            grpc_url=grpc_url_of(settings),
            cache=open_cache(settings, clock, stack),
            cpu_s=CpuClock(cores()),
            traces=self._traces,
        )


def run(settings: Settings, line: LiveLine | None = None) -> None:
    """Runs a broker in this process until SIGTERM or SIGINT, and shows its figures in `line`. Raises SeaweedqError or
    OSError if the broker cannot start."""

    def overdue() -> None:
        goes_on = process.was_ready and not stop.asked
        log_hanging(goes_on)
        if not goes_on:
            os._exit(1)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    keep_others_out()
    deadline = StopDeadline(overdue)
    stop = StopSignals(deadline, settings.shutdown_delay_s, settings.shutdown_s + OVERTIME_S)
    process = BrokerProcess(settings, stop, deadline, line)
    stop.handle()
    try:
        process.run()
    finally:
        process.close()
    if hanging := process.hanging():
        logger.warning(
            "the broker's process ends now, although calls in its thread pools have not returned: %s",
            ", ".join(hanging),
        )
        logging.shutdown()
        os._exit(0)  # the interpreter would wait for their threads


def uvicorn_loop() -> asyncio.Runner:
    """Returns an asyncio runner, on uvloop if it is installed."""
    if sys.platform == "win32":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def started(broker: Broker, stop: StopSignals) -> bool:
    """Starts the broker, which may wait long for a store. Returns False if a signal or the loss of the lease ended the
    start."""
    starting = asyncio.create_task(broker.start())
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(broker.lost.wait())]
    await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if not starting.cancelled() and isinstance(starting.exception(), Fenced):
        broker.lost.set()  # it leads no more: its time was over before anybody said so
    if starting.cancelled() or broker.lost.is_set():
        logger.warning("the broker was stopped before it was ready")
        return False
    starting.result()
    return True


async def tell_wishes(broker: Broker) -> None:
    """Tells the parent process (`wish_in`), while this broker leads, how many brokers the load needs and which are the
    least used. A broker that waits for a rebuild leads nothing."""
    while broker.waiting is None:
        await asyncio.sleep(WISH_S)
        if wish := broker.leadership.wish():
            with suppress(OSError):
                typer.echo(wish_line(*wish))


def greet(settings: Settings, broker: Broker) -> None:
    """Prints the greeting of a ready broker: its URL, its console, and commands that publish and query. The commands
    read the token from a file if the broker requires one. If the broker waits for a rebuild of coordination, prints
    that instead."""
    url = broker.process.url
    if broker.waiting:
        typer.echo(f"seaweedq waits for a rebuild of coordination at {url}, store {settings.store_path}")
        typer.echo(f"  {COMMAND} --dry-run --url {url}")
        return
    typer.echo(f"seaweedq {broker.id} at {url}, store {settings.store_path}")
    for label, text in welcome(settings, url):
        typer.echo(f"  {typer.style(f'{label:<8}', bold=True)} {text}")


def welcome(settings: Settings, url: str) -> list[tuple[str, str]]:
    """Returns the labelled lines of a broker's greeting: the console, and commands that publish and query. If the
    broker requires tokens, another line names the token file that the commands read."""
    shown = [
        ("console", url),
        ("publish", f"seaweedq publish events '{{\"n\": 1}}' --url {url}"),
        ("query", f"seaweedq sql 'SELECT * FROM events' --url {url}"),
    ]
    if settings.auth != "required":
        return shown
    file = settings.admin_token_path
    named = quote(str(file.absolute())) if file else "FILE-WITH-YOUR-TOKEN"
    return [("token", f"export SEAWEEDQ_TOKEN_FILE={named}"), *shown]
