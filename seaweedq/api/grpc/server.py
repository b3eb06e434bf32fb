"""The gRPC server of a broker: its port, and the way of each call.

A call goes to the application as a request to its route's handler, without a connection of HTTP: so rights, limits,
audit, bounds and metrics are those of the route. Before its message is read, the call is counted for its address, and a
caller has to count. The message holds memory while it arrives (relay), then what its conversion may need, and then the
memory that a body holds. The answer becomes a message, or the problem a status. What is large is converted in a
thread; and an answer counts among those that nobody takes, until gRPC has sent it (sending).

A `PublishStream` publishes its batches one after the other: it reads a batch, publishes it, and answers. So messages
keep the order of the stream, each stream holds one batch at most, and gRPC's windows hold back a client that is faster.
Only the publishes write. A stream that breaks leaves all batches that were answered, and maybe the next one: its
publish goes on, and the client, which cannot know, sends it again. A producer's sequence then makes the repeat add
nothing. No batch behind that one was begun. A broker that leaves ends the streams between two batches.

A call whose client goes, or whose deadline is over, is cancelled if it lasts. Any other one goes on by itself, as a
request does whose connection breaks: it is bounded by the broker's own timeouts.

The relay owns the port, and bounds connections and what arrives. gRPC itself bounds the bytes of metadata and of a
message, the calls of a connection, pings, how long a connection takes to begin, and how old it gets: so calls end whose
client takes nothing. Compressed messages are refused, since gRPC decompresses them without a bound.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from ssl import SSLContext
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import grpc
import grpc.aio
import msgspec
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection import aio as reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from seaweedq.api.app import Application
from seaweedq.api.connections.connections import ConnectionBounds
from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.api.grpc.bounds import Call, Calls
from seaweedq.api.grpc.call_socket import CallSocket
from seaweedq.api.grpc.methods import (
    ANSWER_COPIES,
    INLINE_BYTES,
    METHODS,
    Incoming,
    Outgoing,
    Streaming,
    Unary,
    answered,
    decoded,
    needed,
    publishing,
)
from seaweedq.api.grpc.relay import BACKLOG, CALLS_PER_CONNECTION, WINDOW_BYTES, Relay
from seaweedq.api.grpc.sending import Context, Sending
from seaweedq.api.grpc.statuses import status_of_error, status_of_problem
from seaweedq.api.problems import problem, unexpected
from seaweedq.api.request import CONNECTION, ClientGone
from seaweedq.broker.broker import Broker
from seaweedq.errors import (
    InvalidRequest,
    NotReady,
    RequestTimeout,
    RequestTooLarge,
    SeaweedqError,
    TopicNotFound,
    Unavailable,
    UnreadableBody,
)
from seaweedq.segments.layout import Format
from seaweedq.settings import Settings

METADATA_BYTES = 16 * 1024
PING_S = 10  # the least time between two pings of a client; after two strikes its connection ends
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60, 20
IDLE_S = 60  # after which a connection without calls ends, so that others find a place
AGE_S, AGE_GRACE_S = 600.0, 60.0  # of a connection, and how long its calls may go on then
HEALTH = "grpc.health.v1.Health"
FOLDER_BYTES = 90  # of its path: that of a Unix socket has 107 at most
WATCH_S = 0.5  # between two looks of a health watch
PASSED = ("authorization", "traceparent", "user-agent", "x-forwarded-for")  # metadata that the request gets as headers
THREAD_BYTES = 64 * 1024  # of an answer that is not
Serve = Callable[..., Awaitable[bytes | None]]
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def options(settings: Settings) -> list[tuple[str, int]]:
    """Returns the bounds that gRPC itself keeps."""
    return [
        ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ("grpc.max_connection_age_ms", int(AGE_S * 1000)),
        ("grpc.max_connection_age_grace_ms", int(AGE_GRACE_S * 1000)),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", 4 * CALLS_PER_CONNECTION),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity alone
        ("grpc.http2.bdp_probe", 0),  # windows stay small until a message is read
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_S * 1000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.server_handshake_timeout_ms", int(settings.head_timeout_s * 1000)),
    ]


class GrpcServer:
    """The gRPC port of one life of a broker, which takes the connections of `listener`. `context` returns the TLS
    context for a new connection."""

    def __init__(
        self, settings: Settings, listener: socket.socket, context: Callable[[], SSLContext] | None = None
    ) -> None:
        self._settings, self._listener, self._context = settings, listener, context
        listener.listen(BACKLOG)
        self._server: Any = None
        self._ending: asyncio.Task[None] | None = None
        self._folder = TemporaryDirectory(prefix="seaweedq-", ignore_cleanup_errors=True)
        if len(self._folder.name.encode("utf-8", "surrogateescape")) > FOLDER_BYTES:
            self._folder.cleanup()
            listener.close()
            raise InvalidRequest(
                f"grpc_port needs a shorter folder for temporary files than {gettempdir()!r}: set the environment "
                f"variable TMPDIR to a path of at most {FOLDER_BYTES - len(Path(self._folder.name).name) - 1} bytes",
                field="grpc_port",
            )
        self.relay = Relay(Path(self._folder.name))
        self._door: Door | None = None

    async def start(self, broker: Broker, application: Application, bounds: ConnectionBounds) -> None:
        """Serves the calls of a broker."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_defect)
        self._door = Door(broker, application, self.relay)
        self._server = grpc.aio.server(options=options(self._settings))
        self._server.add_insecure_port(self.relay.target)
        self._server.add_generic_rpc_handlers(tuple(self._door.handlers()))
        await self._server.start()
        await self.relay.start(self._listener, bounds, self._context)

    def begin_stop(self, grace_s: float) -> None:
        """Sends GOAWAY, so that clients turn to other brokers; calls under way have `grace_s` from now on."""
        self.relay.close()
        if self._server:
            self._ending = asyncio.create_task(self._server.stop(grace_s), name="end of the gRPC port")

    async def stop(self) -> None:
        """Ends the port, and all calls: at once, unless their grace has begun. Requests without calls end as well."""
        if self._ending:
            await asyncio.wait([self._ending])
        if self._server:
            await self._server.stop(None)
        await self.relay.end()
        self._listener.close()
        if self._door:
            await self._door.end()
        self._folder.cleanup()


class Door:
    """The methods of one broker."""

    def __init__(self, broker: Broker, application: Application, relay: Relay) -> None:
        self._broker, self._application = broker, application
        reader = application.parts.reader
        self._decoding, self._unread = reader.decoding, reader.unread
        counted, refusals = application.addresses.counted, application.refusals
        self.calls = Calls(application.connections, counted, refusals, relay.find)
        self._orphans: dict[asyncio.Task[Any], None] = {}  # which go on without their calls

    def handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yields the handlers of all services."""
        names = [pb.DESCRIPTOR.services_by_name[name].full_name for name in METHODS]
        for full_name, methods in zip(names, METHODS.values(), strict=True):
            yield _service(full_name, {one.name: self._method(one) for one in methods})
        check, watch = self._unary("Check", self._health), self._streaming("Watch", self._watch_health)
        yield _service(HEALTH, {"Check": check, "Watch": watch})
        shown = reflection.ReflectionServicer([*names, HEALTH, REFLECTION])
        both = {"ServerReflectionInfo": self._streaming("ServerReflectionInfo", self._reflect, shown)}
        for version in ("v1alpha", "v1"):  # of the same form
            yield _service(f"grpc.reflection.{version}.ServerReflection", both)

    async def end(self) -> None:
        """Ends the requests that go on without their calls."""
        for work in self._orphans:
            work.cancel()
        if self._orphans:
            await asyncio.wait(self._orphans)

    def _method(self, method: Unary | Streaming) -> grpc.RpcMethodHandler:
        if isinstance(method, Streaming):
            return self._streaming(method.name, self._stream, method)
        if method.repeats:
            return self._streaming(method.name, self._serve_each, method)
        return self._unary(method.name, self._serve, method)

    def _unary(self, name: str, serve: Serve, *more: Any) -> grpc.RpcMethodHandler:
        """Returns the handler of a unary method. It reads the message itself, since on the wire that is a stream of
        one; gRPC sends the answer together with the status."""
        return grpc.stream_unary_rpc_method_handler(self._way(name, serve, more))

    def _streaming(self, name: str, serve: Serve, *more: Any) -> grpc.RpcMethodHandler:
        """Returns the handler of a method that reads and writes its messages itself."""
        return grpc.stream_stream_rpc_method_handler(self._way(name, serve, more))

    def _way(self, name: str, serve: Serve, more: Sequence[Any]) -> Callable[[Any, Context], Awaitable[bytes | None]]:
        """Returns the way of a method's calls: counts a call until gRPC has ended it, and answers with the status of an
        error."""
        application, timeout_s = self._application, self._settings.answer_timeout_s

        async def handle(_: Any, context: Context) -> bytes | None:
            sending = Sending(context, self._unread, application.refusals, timeout_s, name)
            context.add_done_callback(sending.release)
            try:
                content, status = await self._answer_of(sending, serve, more)
                application.grpc_calls[name, _code_of(status)] += 1
                if status is not None:
                    await sending.end(status)
            except ClientGone:
                application.grpc_calls[name, "CANCELLED"] += 1
                raise asyncio.CancelledError from None  # the only end that gRPC does not log
            return content

        return handle

    async def _answer_of(
        self, sending: Sending, serve: Serve, more: Sequence[Any]
    ) -> tuple[bytes | None, status_pb2.Status | None]:
        """Serves a call. Returns the message of a unary one, and the status with which the call ends, None if that is
        OK. Raises ClientGone."""
        task, was_cut = asyncio.current_task(), False
        assert task is not None

        def cut() -> None:
            nonlocal was_cut
            was_cut = True
            task.cancel()

        try:
            call = self.calls.begin(sending.context.peer(), sending.method, cut)
            sending.held.append(call.end)
            sending.peer = call.peer
            return await serve(sending, call, *more), None
        except SeaweedqError as error:
            return None, status_of_error(error)
        except StatusError as error:
            return None, error.status
        except asyncio.CancelledError:
            if not was_cut:
                raise ClientGone from None
            task.uncancel()
            detail = "the broker ended the call, because it is stopping; try again"
            return None, status_of_error(Unavailable(detail))
        except ClientGone:
            raise
        except Exception as error:
            unexpected(error)  # logs it
            return None, status_of_error(SeaweedqError("the broker met an unexpected error; see the broker's log"))

    async def _serve(self, sending: Sending, call: Call, method: Unary) -> bytes:
        """Answers a unary call."""
        scope = self._scope(sending.context, call)
        caller = await self._application.check_caller(scope)
        outgoing = await self._outgoing(method, await self.read_one(sending.context), scope, caller)
        found = await self._found(method, call, scope, outgoing)
        if found.status >= 400:
            raise StatusError(status_of_problem(found.status, found.headers, found.body))
        if len(found.body) < THREAD_BYTES:
            content = answered(method, found)
        else:
            size = ANSWER_COPIES * len(found.body)
            content = await self._decoding.run_at_once(size, answered, method, found)
        return sending.last(content)

    async def _serve_each(self, sending: Sending, call: Call, method: Unary) -> None:
        """Answers the messages of a stream, one after the other, as long as its caller counts; each answer says how
        many there were."""
        scope, answer = self._scope(sending.context, call), method.gives()

        async def each(caller: str) -> None:
            while (content := await self._following(sending.context)) is not None:
                try:
                    outgoing = await self._outgoing(method, content, scope, caller)
                    del content  # the request's memory alone counts from here on
                    found = await self._found(method, call, scope, outgoing)
                except SeaweedqError as error:
                    found = Incoming(*problem(error))
                if found.status >= 400:
                    told = {**msgspec.json.decode(found.body), "batches": answer.batches}
                    raise StatusError(status_of_problem(found.status, found.headers, msgspec.json.encode(told)))
                method.answer(answer, found)
                await sending.write(answer.SerializeToString())

        await self._while_known(call, scope, each)

    async def _while_known(
        self, call: Call, scope: MutableMapping[str, Any], work: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        """Does the work of a call that lasts, with the key of its caller, as long as that one counts."""

        async def staying(caller: str) -> None:
            with _staying(call):
                await work(caller)

        await self._application.while_known(scope, staying)

    async def _found(self, method: Unary, call: Call, scope: MutableMapping[str, Any], outgoing: Outgoing) -> Incoming:
        """Returns the answer to a request, which goes on if the call ends, unless the method `lasts`."""
        work = asyncio.create_task(self.ask(scope, outgoing))
        call.work = work
        try:
            found = await asyncio.shield(work)
        except asyncio.CancelledError:
            if method.lasts:
                work.cancel()
            self._orphans[work] = None
            work.add_done_callback(self._forget)
            raise
        return found

    async def _stream(self, sending: Sending, call: Call, method: Streaming) -> None:
        """Relays between a call and the WebSocket of its route, to the end of either."""
        scope = self._scope(sending.context, call)
        caller = await self._application.check_caller(scope)
        outgoing = await self._outgoing(method, await self.read_one(sending.context), scope, caller)
        wire = CallSocket(sending, method, self._decoding, caller)
        asked = {**scope, **_asgi_of(outgoing), "type": "websocket", "subprotocols": []}
        await self._application(asked, wire.receive, wire.send)
        if wire.failed:
            raise wire.failed
        if wire.problem:
            raise StatusError(status_of_problem(*wire.problem))

    async def _outgoing(
        self, method: Unary | Streaming, content: bytes, scope: MutableMapping[str, Any], caller: str
    ) -> Outgoing:
        """Returns the request of a message. Raises UnreadableBody, RequestTooLarge, Overloaded, InvalidRequest, and
        what the route raises for a caller without the right, or for a topic that is not ready."""
        by_format = method if isinstance(method, Unary) and method.by_format else None
        if len(content) < INLINE_BYTES:
            message = decoded(method.takes, content)
            return await self._short(by_format, message, scope) if by_format else method.request(message)
        size, limit = needed(content), self._broker.budget.limit_bytes
        if size > limit:
            raise RequestTooLarge(
                f"decoding the message needs {size} bytes of memory, more than memory_budget_bytes={limit}; "
                "send several smaller requests",
                limit_bytes=limit,
            )
        with self._broker.budget.holding(len(content)):
            if not by_format:
                return await self._decoding.run(caller, 0, size, _requested, method, content)
            named = await self._decoding.run(caller, 0, size, _topic_of, method, content)
            format = await self._format_of(named, scope)
            return await self._decoding.run(caller, 0, size, _requested, method, content, format)

    async def _short(self, method: Unary, message: Any, scope: MutableMapping[str, Any]) -> Outgoing:
        """Returns the request of a short message. For a known topic, the route judges the right; here it is judged only
        if the message is refused, since the reason would tell a stranger the topic's format."""
        topic = self._broker.catalog.get(message.topic)
        if topic is None or topic.record.state == "deleting":
            return method.request(message, await self._format_of(message, scope))
        try:
            return method.request(message, topic.layout.format)
        except SeaweedqError:
            await self._check_publisher(message, scope)
            raise

    async def _check_publisher(self, named: Any, scope: MutableMapping[str, Any]) -> None:
        """Raises what the route of a publish raises for a caller without the right."""
        outgoing = publishing(named)
        await self._application.check_right({**scope, **_asgi_of(outgoing), "method": outgoing.method})

    async def _format_of(self, named: Any, scope: MutableMapping[str, Any]) -> Format:
        """Returns the format of the topic to which a caller publishes; one that does not exist would be created with
        JSON. Another broker may just have created it, so it is looked for, if the caller may publish to it."""
        await self._check_publisher(named, scope)
        self._broker.readiness.check_ready()
        try:
            return (await self._broker.catalog.require(named.topic)).layout.format
        except TopicNotFound:
            return Format.JSON

    async def ask(self, scope: MutableMapping[str, Any], outgoing: Outgoing) -> Incoming:
        """Returns the application's answer to a request."""
        bodies = [{"type": "http.request", "body": outgoing.body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if bodies:
                return bodies.pop()
            await asyncio.Event().wait()  # the call is cancelled if its client goes
            raise AssertionError

        headers = [*scope["headers"], *outgoing.headers]
        if outgoing.body:
            headers.append((b"content-length", b"%d" % len(outgoing.body)))
        asked = {**scope, **_asgi_of(outgoing), "method": outgoing.method, "headers": headers}
        found = await self._application.ask(asked, receive)
        return Incoming(found.status, found.headers, found.body)

    def _forget(self, work: asyncio.Task[Any]) -> None:
        self._orphans.pop(work, None)
        if not work.cancelled() and (error := work.exception()):
            unexpected(error)  # type: ignore[arg-type]

    def _scope(self, context: Context, call: Call) -> MutableMapping[str, Any]:
        """Returns the scope of a request that all requests of a call begin with: the caller's token, its address, its
        connection. The path is that of the call, as long as its message has not told another one."""
        headers = []
        for name, value in context.invocation_metadata():
            if name in PASSED:
                headers.append((name.encode(), value if isinstance(value, bytes) else value.encode("utf-8")))
        return {
            "type": "http",
            "method": "POST",
            "path": f"/{call.method}",
            "raw_path": f"/{call.method}".encode(),
            "query_string": b"",
            "asgi": {"version": "3.0"},
            "http_version": "2",
            "scheme": "http",
            "root_path": "",
            "headers": headers,
            "client": (call.peer.address, 0),
            "server": None,
            "extensions": {CONNECTION: call},
        }

    async def read_one(self, context: Context) -> bytes:
        """Returns the only message of a unary call. Raises RequestTimeout, UnreadableBody."""
        message = await self._next(context)
        if message is None:
            raise UnreadableBody("the call has no message")
        return message

    async def _next(self, context: Context) -> bytes | None:
        """Returns the next message of a call, None at the end. Raises RequestTimeout."""
        timeout_s = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                message = await context.read()
        except TimeoutError:
            detail = f"the message did not arrive within request_timeout_s={timeout_s:g}"
            raise RequestTimeout(detail, timeout_s=timeout_s) from None
        return None if message is grpc.aio.EOF else bytes(message)

    async def _following(self, context: Context) -> bytes | None:
        """Returns the next message of a stream, None at its end. Raises NotReady once the broker leaves."""
        reading = asyncio.ensure_future(context.read())
        leaving = asyncio.ensure_future(self._broker.streaming.watches.ended.wait())
        try:
            await asyncio.wait([reading, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise NotReady("the broker is stopping; connect again")
            message = await reading
        finally:
            reading.cancel()
            leaving.cancel()
        return None if message is grpc.aio.EOF else bytes(message)

    async def _health(self, sending: Sending, call: Call) -> bytes:
        """Answers whether a service is ready."""
        with call.peer.waiting():
            request = decoded(health_pb2.HealthCheckRequest, await self.read_one(sending.context))
        status = self._health_of(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise StatusError(status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0], message="unknown service"))
        return sending.last(health_pb2.HealthCheckResponse(status=status).SerializeToString())

    async def _watch_health(self, sending: Sending, call: Call) -> None:
        """Tells how a service is, now and after each change. It has the place of a stream, so a stranger gets none."""

        async def watch(_: str) -> None:
            request, told = decoded(health_pb2.HealthCheckRequest, await self.read_one(sending.context)), None
            while True:
                status = self._health_of(request.service)
                if status != told:
                    told = status
                    await sending.write(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                if self._broker.readiness.stopping:
                    return
                await asyncio.sleep(WATCH_S)

        await self._while_known(call, self._scope(sending.context, call), watch)

    def _health_of(self, service: str) -> int:
        if service and service not in {f"{pb.DESCRIPTOR.package}.{name}" for name in METHODS}:
            return int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        is_ready = self._broker.readiness.can_take_work
        return int(health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _reflect(self, sending: Sending, call: Call, shown: Any) -> None:
        """Answers the requests of one reflection call, one after the other; each has to come in time."""
        await self._application.check_caller(self._scope(sending.context, call))
        while (content := await self._next(sending.context)) is not None:

            async def one(content: bytes = content) -> Any:
                yield decoded(ServerReflectionRequest, content)

            async for answer in shown.ServerReflectionInfo(one(), None):
                await sending.write(answer.SerializeToString())

    @property
    def _settings(self) -> Settings:
        return self._broker.process.settings


class StatusError(Exception):
    """Ends a call with a status."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


@contextmanager
def _staying(call: Call) -> Iterator[None]:
    call.stay()
    try:
        yield
    finally:
        call.go()


def _is_defect(record: logging.LogRecord) -> bool:
    """Returns whether a log line of gRPC tells more than that a client went before it had its answer."""
    return not str(record.msg).startswith("ExecuteBatchError raised in core")


def _code_of(status: status_pb2.Status | None) -> str:
    return "OK" if status is None else _CODES[status.code]


def _topic_of(method: Unary | Streaming, content: bytes) -> Any:
    """Returns a message with the name of the topic alone: it is the first field of each request."""
    return decoded(method.takes, content, pb.GetTopicRequest)


def _asgi_of(outgoing: Outgoing) -> dict[str, Any]:
    path = outgoing.path
    return {"path": path, "raw_path": path.encode(), "query_string": outgoing.query.encode()}


def _requested(method: Unary | Streaming, content: bytes, *more: Format) -> Outgoing:
    return method.request(decoded(method.takes, content), *more)


def _service(name: str, methods: dict[str, grpc.RpcMethodHandler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, methods)
