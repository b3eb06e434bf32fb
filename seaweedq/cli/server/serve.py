"""`seaweedq serve`: parses settings, builds a broker, runs it. The only place where backends are chosen for a
broker."""

import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # Arrow reads it once, when it is loaded

import asyncio
import ctypes
import gc
import inspect
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
import uvicorn
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from seaweedq.api.app import Application
from seaweedq.api.asgi.protocol import BoundedProtocol
from seaweedq.broker.broker import Broker
from seaweedq.broker.imports.reader_process import ReaderProcess
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.services import Environment
from seaweedq.cli.server import shell_hints as paste
from seaweedq.cli.server.coordinations import open_coordination
from seaweedq.cli.server.journals import journal_setup
from seaweedq.cli.server.members import check_members
from seaweedq.cli.server.parent_pipe import end_with_parent
from seaweedq.cli.server.secret import cluster_secret
from seaweedq.cli.server.stores import open_store
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.errors import Fenced, InvalidRequest, Unavailable
from seaweedq.import_worker import child as import_child
from seaweedq.settings import Settings, redacted
from seaweedq.storage.counting import Counted

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
MIB = 1024 * 1024
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# glibc's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX: keep freed buffers rather than give them back to the
# kernel and fault them in again. Arenas of threads would give back whatever they no longer use.
MALLOC = {-1: 256 * MIB, -2: 64 * MIB, -4: 0, -8: 1}
DRAIN_S = 3
LOST_S = 1  # who has lost its lease may answer hardly anybody, and is missed
ACCEPT_S = 0.05
AGAIN_S = 1.0
logger = logging.getLogger("seaweedq")

EXAMPLES = """Examples:

seaweedq serve

seaweedq serve --data-dir /var/lib/seaweedq --port 9000

SEAWEEDQ_FLUSH_MAX_AGE_S=10 seaweedq serve

seaweedq serve --config broker.toml
"""


def settings_of(config: Path | None, given: dict[str, Any]) -> Settings:
    """Returns the settings from the command line, SEAWEEDQ_* variables and a TOML file. Raises InvalidRequest, which
    names the setting."""
    if config is not None and not config.is_file():
        raise InvalidRequest(f"--config {config}: the file does not exist", field="config")

    class Configured(Settings, toml_file=config):
        """The settings with their file."""

    try:
        return Configured(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        field = Settings.model_fields.get(name)
        shown = f"={redacted(first['input'])}" if field is None or field.repr else ""  # a secret is not printed
        raise InvalidRequest(
            f"setting {name}{shown}: {first['msg'].removeprefix('Value error, ')}", field=name
        ) from None
    except ValueError as error:  # not TOML
        raise InvalidRequest(f"--config {config}: {error}", field="config") from None


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose options are the settings, with their names, types, help and defaults."""
    options = [_option(name, field) for name, field in Settings.model_fields.items()]
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
    return command


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = field.annotation if field.annotation in (int, float, str, bool, Path) else str
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(
        flag if kind is not bool else f"{flag}/--no-{flag[2:]}",
        help=f"{field.description} \\[default: {str(field.default) or 'none'}]",
        show_default=False,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


@with_settings
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", envvar="SEAWEEDQ_CONFIG", help="A TOML file with settings by name.")
    ] = None,
    **given: Any,
) -> None:
    """Run a broker. Every option is also a SEAWEEDQ_* variable and a key of the TOML file."""
    settings = settings_of(config, given)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    check_members(settings)
    if settings.brokers > 1 and not settings.member:
        from seaweedq.cli.server.supervise import supervise  # a broker needs none of it

        raise typer.Exit(supervise(settings))
    if settings.member:
        end_with_parent()
    for chatty in ("aiobotocore", "botocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    sys.meta_path.insert(0, _NoPandas())
    _keep_freed_memory()
    if settings.host not in LOOPBACK:
        logger.warning(
            "listening on %s WITHOUT AUTHENTICATION: everyone who can connect can read, write and delete everything",
            settings.host,
        )
    again = _run(settings)
    while again:
        logger.warning("starting again under a new broker id")
        again = _run_again(settings)


def _run(settings: Settings) -> bool:
    """Runs one life of a broker. Tells whether it lost its lease and must start again, which it must not after a
    signal."""
    try:
        with uvicorn_loop() as runner:
            return runner.run(_life(settings))
    finally:
        for sig in SIGNALS:
            signal.signal(sig, signal.SIG_DFL)  # a closed loop leaves handlers that do nothing


def _run_again(settings: Settings) -> bool:
    """As `_run`, but an error at start may pass, as a full disk does: then the broker must start again as well."""
    try:
        return _run(settings)
    except Unavailable as error:
        logger.warning("cannot start again yet: %s", error)
        time.sleep(AGAIN_S)
        return True


def uvicorn_loop() -> asyncio.Runner:
    """Returns a runner on uvloop if that is installed."""
    if sys.platform == "win32":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _life(settings: Settings) -> bool:
    listener = _listen(settings)
    url = _url(settings.host, listener)
    clock, ids = SystemClock(), SystemIds()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    store = open_store(settings, ids)
    coordination = open_coordination(settings, clock)
    secret = cluster_secret(settings)
    environment = Environment(
        settings,
        Counted(store),
        coordination,
        journal_setup(settings, clock, ids),
        clock,
        ids,
        Peers(secret),
        settings.advertise_url.rstrip("/") or url,
        secret,
        partial(ReaderProcess.start, import_child.COMMAND),
    )
    broker = Broker(environment)
    told = asyncio.Event()
    try:
        broker.lock()
        if settings.brokers == 1:  # others may be writing
            await store.sweep_temporary()
        if await _started(broker, told):
            server = _Server(broker, told)
            gc.freeze()  # of S3's client alone a full collection takes 50 ms, in which nobody is answered
            listener.listen(2048)  # whoever reads the greeting may connect
            _greet(settings, broker)
            await server.run_until_stopped(listener)
    finally:
        await broker.stop()
        await coordination.close()
        await store.close()
        listener.close()
    return broker.lost.is_set() and not told.is_set()


async def _started(broker: Broker, told: asyncio.Event) -> bool:
    """Starts the broker. Returns False if a signal, or the end of its lease, ended the start, which may wait long for a
    store."""
    starting, losing = asyncio.create_task(broker.start()), asyncio.create_task(broker.lost.wait())

    def stop() -> None:
        told.set()
        starting.cancel()

    loop = asyncio.get_running_loop()
    for sig in SIGNALS:
        loop.add_signal_handler(sig, stop)
    await asyncio.wait([starting, losing], return_when=asyncio.FIRST_COMPLETED)
    losing.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if not starting.cancelled() and isinstance(starting.exception(), Fenced):
        broker.lost.set()  # it leads no more: its time was over before anybody said so
    if starting.cancelled() or broker.lost.is_set():
        logger.warning("stopped before it was ready")
        return False
    starting.result()
    return True


class _Server(uvicorn.Server):
    """uvicorn with the broker's own shutdown: long polls are answered as soon as a signal comes.

    A signal sets `told`.
    """

    def __init__(self, broker: Broker, told: asyncio.Event) -> None:
        protocol = partial(BoundedProtocol, head_timeout_s=broker.environment.settings.request_timeout_s)
        super().__init__(
            uvicorn.Config(
                Application(broker),
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=DRAIN_S,
                timeout_keep_alive=75,
                http=protocol,  # type: ignore[arg-type]
                ws="none",
                server_header=False,
                proxy_headers=False,
            )
        )
        self._broker = broker
        self._told = told
        self._leaving: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None

    async def run_until_stopped(self, listener: socket.socket) -> None:
        """Serves until a signal comes, or the broker's lease is lost."""
        self._listener = listener
        watcher = asyncio.create_task(self._until_lost())
        await self.serve(sockets=[listener])
        watcher.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends the serving in order on a signal. uvicorn would raise the signal once more, and the process would die
        unflushed."""
        loop = asyncio.get_running_loop()
        for sig in SIGNALS:
            loop.add_signal_handler(sig, self.handle_exit, sig, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal: hands over to the other brokers, then accepts no more requests. A second signal does not
        wait."""
        self._told.set()
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave(sig, frame))
        else:
            self._leaving.cancel()
            self._end(sig, frame)

    async def _leave(self, sig: int, frame: FrameType | None) -> None:
        await self._broker.drain()
        if self._listener:  # who waits to be accepted when a listener closes would be cut off
            self._listener.listen(0)
            await asyncio.sleep(ACCEPT_S)
        self._end(sig, frame)

    def _end(self, sig: int, frame: FrameType | None) -> None:
        self._broker.begin_stop()
        super().handle_exit(sig, frame)

    async def _until_lost(self) -> None:
        await self._broker.lost.wait()
        self.config.timeout_graceful_shutdown = LOST_S
        self.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    """Binds the port before anything else, so that a port in use is found before a lease is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from None
    listener.set_inheritable(False)
    return listener


def _url(host: str, listener: socket.socket) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{listener.getsockname()[1]}"


def _greet(settings: Settings, broker: Broker) -> None:
    typer.echo(f"seaweedq {broker.id} at {broker.environment.url}, store {settings.store_path}")
    for line in paste.lines(broker.environment.url, "events", f"{settings.store_path}/topics/events"):
        typer.echo(f"  {line}")


class _NoPandas(MetaPathFinder):
    """Hides pandas from pyarrow, which would import it at its first conversion: that costs a second, and memory, for
    nothing."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Refuses pandas alone."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _keep_freed_memory() -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for parameter, value in MALLOC.items() if hasattr(libc, "mallopt") else ():
            libc.mallopt(parameter, value)
