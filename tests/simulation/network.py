"""The network of a simulated world: what it does with each request and answer is drawn.

A request is delivered by the network, and not by its sender, so that it arrives though its sender is dead by then. A
receiver that stands still answers late. Of a broker that has died the system refuses connections, and those that are
open are reset; of one that is cut off nobody hears anything.
"""

import asyncio
import errno
import random
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import unquote

import httpx

from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.peer_connections import Headers, Relayed, Request
from seaweedq.broker.rpc.peer_keys import Secured
from seaweedq.concurrency.futures import fail
from seaweedq.errors import Unavailable
from tests.simulation.loop import TIE_S, Life, reach_outside

CLIENTS = "clients"


@dataclass
class Weather:
    """What happens to requests at present: parts of 1."""

    loses: float = 0.0  # requests
    forgets: float = 0.0  # answers
    repeats: float = 0.0  # requests that bear it: they arrive twice
    delays: float = 0.0  # requests: by up to `late_s`
    late_s: float = 20.0
    cut: set[tuple[str, str]] = field(default_factory=set)  # from, to


class Reset(ConnectionError):
    """The connection ended: nobody knows what became of the request."""


class Refused(ConnectionError):
    """Nobody listens there: nothing has happened."""


@dataclass
class _Exchange:
    request: Request
    sender: str
    to: str
    done: asyncio.Future[Relayed]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    runs: list[asyncio.Task[Any]] = field(default_factory=list)


class Channel:
    """A connection of a client on which an answer comes in parts, or a WebSocket. Parts come in their order, and so do
    frames."""

    def __init__(self, network: "Network", to: str, is_socket: bool) -> None:
        self.to = to
        self._network = network
        self._parts: asyncio.Queue[Mapping[str, Any] | Exception] = asyncio.Queue()
        self._said: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._free_s = self._heard_s = 0.0  # when the last part arrives, and the last frame
        self._is_socket = is_socket
        self._run: asyncio.Task[None] | None = None

    async def read(self, within_s: float) -> Mapping[str, Any]:
        """What the broker sends next, as ASGI has it. Raises Refused, Reset, TimeoutError."""
        async with asyncio.timeout(within_s):
            part = await self._parts.get()
        if isinstance(part, Exception):
            raise part
        return part

    def say(self, text: str) -> None:
        """Sends a frame."""
        self._hear({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        """The client has gone."""
        kind = "websocket.disconnect" if self._is_socket else "http.disconnect"
        self._hear({"type": kind, "code": 1005})

    def begin(self, life: Life, app: Any, scope: dict[str, Any], body: bytes) -> None:
        """Begins at the broker: what comes of the application goes to the client."""
        early = [self._said.get_nowait() for _ in range(self._said.qsize())]  # the client may have gone by now
        if self._is_socket:
            self._said.put_nowait({"type": "websocket.connect"})
        else:
            self._said.put_nowait({"type": "http.request", "body": body, "more_body": False})
        for message in early:
            self._said.put_nowait(message)

        async def send(message: Mapping[str, Any]) -> None:
            await reach_outside()
            if message.get("status") == 500:
                self._network.broken.append(f"{scope['path']}: 500")
            if self._network.breaks(self.to):
                self.put(Reset(f"{self.to} has reset the connection"))
            self.put(message)

        self._run = life.start(app(scope, self._said.get, send))
        self._run.add_done_callback(lambda run: self._network.ended(self, run), context=Context())

    def cancel(self) -> None:
        """The broker's work for it ends."""
        if self._run:
            self._run.cancel()

    def put(self, part: Mapping[str, Any] | Exception) -> None:
        """Goes to the client, behind what is on its way."""
        self._free_s = max(self._free_s + 10 * TIE_S, self._network.at_s())  # a tie would be drawn
        self._network.at(self._free_s, self._parts.put_nowait, part)

    def _hear(self, message: Mapping[str, Any]) -> None:
        """Goes to the broker, behind what is on its way."""
        self._heard_s = max(self._heard_s + 10 * TIE_S, self._network.at_s())
        self._network.at(self._heard_s, self._said.put_nowait, message)


class Network:
    """Brokers listen at URLs; clients and brokers send."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int) -> None:
        self.weather = Weather()
        self.count = 0
        self.broken: list[str] = []  # answers of 500
        self._loop = loop
        self._draw = random.Random(f"network {seed}")
        self._opened = random.Random(f"connections {seed}")
        self._places = count()
        self._listening: dict[str, tuple[Life, Any]] = {}
        self._open: dict[str, dict[int, _Exchange]] = {}  # by URL
        self._channels: dict[str, list[Channel]] = {}  # by URL
        self._context = Context()

    def listen(self, url: str, life: Life, app: Any) -> None:
        """Has a life answer there, until it dies."""
        self._listening[url] = life, app
        life.at_death.append(lambda: self.unlisten(url, life))

    def unlisten(self, url: str, life: Life) -> None:
        """Nobody listens there any more; open connections are reset, and what was to be answered on them ends."""
        if self._listening.get(url, (None,))[0] is life:
            del self._listening[url]
        for exchange in self._open.pop(url, {}).values():
            self._later(self._fail, exchange, Reset(f"{url} has reset the connection"))
            for run in exchange.runs:
                run.cancel()
        for channel in self._channels.pop(url, []):
            channel.put(Reset(f"{url} has reset the connection"))
            channel.cancel()

    def busy(self, url: str) -> int:
        """How many requests and connections of clients are under way at a broker."""
        exchanges = self._open.get(url, {}).values()
        return sum(one.sender == CLIENTS for one in exchanges) + len(self._channels.get(url, ()))

    async def send(self, sender: str, to: str, request: Request) -> Relayed:
        """Sends a request from a URL, or CLIENTS. Raises Refused, Reset, or waits for ever."""
        await reach_outside()
        self.count += 1
        exchange = _Exchange(request, sender, to, self._loop.create_future())
        lost, late, twice, late_s = (self._draw.random() for _ in range(4))
        weather = self.weather
        if lost >= weather.loses and not self._is_cut(sender, to):
            self._later(self._arrive, exchange, by_s=weather.late_s * late_s if late < weather.delays else 0.0)
            if twice < weather.repeats and (sender != CLIENTS or _is_idempotent(request)):
                self._later(self._arrive, exchange, by_s=weather.late_s * late_s)
        try:
            return await exchange.done
        finally:
            self._later(self._hang_up, exchange)

    async def open(self, to: str, request: Request, *, socket: bool = False) -> Channel:
        """Opens a connection of a client. Its request may be lost, or late, as others are; none arrives twice."""
        self.count += 1
        channel, weather = Channel(self, to, socket), self.weather
        lost, late, late_s = (self._opened.random() for _ in range(3))
        if lost >= weather.loses:
            by_s = weather.late_s * late_s if late < weather.delays else 0.0
            self._later(self._connect, channel, request, socket, by_s=by_s)
        return channel

    def at(self, when_s: float, act: Any, *arguments: Any) -> None:
        """Has something happen then."""
        self._loop.call_at(when_s, act, *arguments, context=self._context)

    def at_s(self) -> float:
        """When something arrives that is sent now."""
        return self._loop.time() + 0.0001 + 0.0015 * self._draw.random() ** 3

    def breaks(self, url: str) -> bool:
        """Whether a connection to a client ends where a broker sends something."""
        is_lost = self.weather.forgets > 0 and self._draw.random() < 0.1 * self.weather.forgets
        return is_lost or self._is_cut(url, CLIENTS)

    def ended(self, channel: Channel, run: asyncio.Task[Any]) -> None:
        """The broker has done with a connection."""
        if channel in (there := self._channels.get(channel.to, [])):
            there.remove(channel)
            channel.put(Reset(f"{channel.to} has closed the connection"))
            if not run.cancelled() and (error := run.exception()):
                raise error

    def _connect(self, channel: Channel, request: Request, socket: bool) -> None:
        life, app = self._listening.get(channel.to, (None, None))
        if life is None or self._is_cut(CLIENTS, channel.to):
            channel.put(Refused(errno.ECONNREFUSED, "refused"))
            return
        self._channels.setdefault(channel.to, []).append(channel)
        scope = scope_of(request, channel.to)
        if socket:
            scope |= {"type": "websocket", "scheme": "ws", "subprotocols": [], "extensions": {}}
            del scope["method"]
        channel.begin(life, app, scope, request.body)

    def _is_cut(self, sender: str, to: str) -> bool:
        return (sender, to) in self.weather.cut

    def _later(self, act: Any, *arguments: Any, by_s: float = 0.0) -> None:
        delay_s = by_s + 0.0001 + 0.0015 * self._draw.random() ** 3
        self._loop.call_later(delay_s, act, *arguments, context=self._context)

    def _arrive(self, exchange: _Exchange) -> None:
        life, app = self._listening.get(exchange.to, (None, None))
        if life is None:
            self._later(self._fail, exchange, Refused(errno.ECONNREFUSED, "refused"))
            return
        answer: asyncio.Future[Relayed] = self._loop.create_future()
        place = next(self._places)
        self._open.setdefault(exchange.to, {})[place] = exchange
        run = life.start(answered(app, exchange.request, exchange.to, exchange.gone, answer))
        exchange.runs.append(run)
        run.add_done_callback(lambda ended: self._over(exchange, place, answer, ended), context=self._context)

    def _over(self, exchange: _Exchange, place: int, answer: asyncio.Future[Relayed], run: asyncio.Task[Any]) -> None:
        if self._open.get(exchange.to, {}).pop(place, None) is None:  # it was reset
            return
        found = answer.result() if answer.done() else None
        if found and found.status == 500:
            self.broken.append(f"{exchange.request.method} {exchange.request.path}: 500 {found.body[:300]!r}")
        if self._draw.random() < self.weather.forgets or self._is_cut(exchange.to, exchange.sender):
            return
        if found:
            self._later(self._answer, exchange, found)
        else:
            self._later(self._fail, exchange, Reset(f"{exchange.to} did not answer"))
            if not run.cancelled() and (error := run.exception()):
                raise error

    def _answer(self, exchange: _Exchange, answer: Relayed) -> None:
        if not exchange.done.done():
            exchange.done.set_result(answer)

    def _fail(self, exchange: _Exchange, error: Exception) -> None:
        fail(exchange.done, error)

    def _hang_up(self, exchange: _Exchange) -> None:
        exchange.gone.set()


def _is_idempotent(request: Request) -> bool:
    return any(name.lower() == "producer-id" for name in request.headers)


def scope_of(request: Request, url: str) -> dict[str, Any]:
    """A request as ASGI has it."""
    path, _, query = request.path.partition("?")
    host = url.split("//")[1]
    headers = {"host": host, "content-length": str(len(request.body)), **request.headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": (host, 80),
        "state": {},
    }


async def answered(
    app: Any, request: Request, url: str, gone: asyncio.Event, answer: "asyncio.Future[Relayed]"
) -> None:
    """Asks an ASGI application as a server does; `gone` is set once the client has gone."""
    scope = scope_of(request, url)
    sent = False
    head: dict[str, Any] = {}
    body = bytearray()

    async def receive() -> Mapping[str, Any]:
        nonlocal sent
        if sent:
            await gone.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        else:
            body.extend(message.get("body", b""))
            if not message.get("more_body") and not answer.done():
                named = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
                answer.set_result(Relayed(head["status"], named, bytes(body)))

    await app(scope, receive, send)


class SimulatedTransport(httpx.AsyncBaseTransport):
    """The requests of a Python client."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx has it."""
        body = await request.aread()
        timeout_s = request.extensions["timeout"]["read"] or 60.0
        asked = Request(request.method, request.url.raw_path.decode(), dict(request.headers), body, timeout_s)
        base = f"{request.url.scheme}://{request.url.netloc.decode()}"
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._network.send(CLIENTS, base, asked)
        except Refused as error:
            raise httpx.ConnectError(str(error)) from error
        except Reset as error:
            raise httpx.ReadError(str(error)) from error
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"{base} does not answer") from error
        return httpx.Response(found.status, headers=found.headers, stream=httpx.ByteStream(found.body))


class SimulatedPeers(Peers):
    """The calls of one broker, which is at `own`, to the others."""

    def __init__(self, network: Network, own: str) -> None:
        super().__init__()
        self._network = network
        self._own = own

    async def send(self, base: str, request: Request, shown: Headers, secured: Secured | None = None) -> Relayed:
        """As Peers."""
        full = Request(request.method, request.path, {**request.headers, **shown}, request.body, request.timeout_s)
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._network.send(self._own, base, full)
        except Refused as error:
            raise Unavailable(f"{base} does not answer") from ConnectionRefusedError(errno.ECONNREFUSED, str(error))
        except (Reset, TimeoutError) as error:
            raise Unavailable(f"{base} does not answer") from error
